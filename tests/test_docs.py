"""The documents tell the truth: their code runs, their tables are those of the records."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def blocks(path: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def test_links_to_sections_lead_somewhere() -> None:
    def slug(head: str) -> str:
        return re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-")

    found = 0
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for file, section in re.findall(r"\]\(([\w\-/.]*\.md)?#([\w\-]+)\)", page.read_text()):
            text = (page.parent / file).read_text() if file else page.read_text()
            assert section in {slug(head) for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}, (
                page.name,
                section,
            )
            found += 1
    assert found > 30


def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks("README.md", "python")
    assert code
    scope: dict[str, object] = {}
    for block in code:
        exec(compile(block, "README.md", "exec"), scope)  # our own text
    probs = scope["probs"]
    assert isinstance(probs, torch.Tensor)
    assert probs.shape == (500, 10)
    assert (tmp_path / "net.safetensors").exists()


def test_first_commands_of_the_readme_print_what_it_shows(tmp_path: Path) -> None:
    """Up to what rounding of another processor moves: the analytic NLL by little, errors by a few of 359 examples."""
    page = (ROOT / "README.md").read_text()
    command = re.search(r"^\$ (bqn train --data digits .*?) --out runs/one$", page, re.MULTILINE)
    assert command is not None
    bqn = [sys.executable, "-m", "bqn"]
    train = [*command[1].split()[1:], "--threads", "1", "--device", "cpu", "--out", str(tmp_path / "one")]
    subprocess.run([*bqn, *train], check=True, capture_output=True)
    judge = [*bqn, "evaluate", str(tmp_path / "one"), "--json", "--device", "cpu"]
    scores = json.loads(subprocess.run(judge, check=True, capture_output=True, text=True).stdout)
    for mode, nearness in (("analytic", 0.002), ("mc", 0.02), ("map", 0.03)):
        row = re.search(rf"^{mode} +([\d.]+) +\S+ +([\d.]+)%", page, re.MULTILINE)
        assert row is not None
        assert scores[mode]["nll"] == pytest.approx(float(row[1]), abs=nearness)
        assert 100 * scores[mode]["error"] == pytest.approx(float(row[2]), abs=1.5)


def test_layer_of_the_contributing_page_keeps_the_contract() -> None:
    layer, test = blocks("CONTRIBUTING.md", "python")
    scope: dict[str, object] = {"__name__": "contributed"}
    exec(compile(layer, "CONTRIBUTING.md", "exec"), scope)
    import bqn

    bqn.nn.Negate = scope["Negate"]  # type: ignore[attr-defined]
    try:
        exec(compile(test, "CONTRIBUTING.md", "exec"), scope)
        contract = scope["TestNegate"]()  # type: ignore[operator]
        contract.test_moments_are_those_of_the_enumerated_truth()
        contract.test_probabilities_are_those_of_the_enumerated_truth()
        contract.test_gradcheck()
    finally:
        del bqn.nn.Negate  # type: ignore[attr-defined]


def test_table_of_the_start_is_that_of_the_record() -> None:
    rows = json.loads((ROOT / "results/benchmarks/start.json").read_text())["rows"]
    page = (ROOT / "docs/start.md").read_text()
    for row in rows:
        cells = [
            f"{row[f'{k}_nll']:.4f} / {100 * row[f'{k}_error']:.2f}"
            for k in ("analytic", "mc", "mc_recalibrated", "map")
        ]
        start = "Xavier" if row["rho"] == "xavier" else row["rho"]
        assert f"| {row['what'].upper()} | {start} | {row['rate']} | {' | '.join(cells)} |" in page
    assert page.count("| VGG |") + page.count("| CNN |") + page.count("| MLP |") == len(rows)


def test_table_of_units_is_that_of_the_record() -> None:
    page = (ROOT / "docs/method.md").read_text()
    rows = json.loads((ROOT / "results/benchmarks/units.json").read_text())["rows"]
    assert len(rows) >= 4
    for row in rows:
        cells = [
            f"{1e3 * row['validation'][mode]['nll']:.1f} / {100 * row['validation'][mode]['error']:.2f}"
            for mode in ("analytic", "mc_recalibrated", "map_recalibrated")
        ]
        how = "together" if row["together"] else "apart"
        line = f"| {row['model'].upper()}, {row['data']} | {how} | {' | '.join(cells)} | {row['variance_ratio']:.2f} |"
        assert line in page


def test_table_of_the_readme_is_that_of_the_records() -> None:
    from bqn.reproduction import records

    page = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (MLP|CNN|VGG), ([\w-]+) \| (.*) \|$", page, re.MULTILINE)
    rows = [row for row in rows if "%" in row[2]]
    assert len(rows) == 7
    for architecture, data, cells in rows:
        data = data.lower().replace("-10", "10")
        runs = records.seeds(architecture.lower(), data, "best", ROOT / "results")
        modes = ("analytic", "mc_recalibrated", "map_recalibrated")
        for mode, cell in zip(modes, cells.split(" | ")[::2], strict=True):
            nll, error = (records.figure(runs, "test", mode, key) for key in ("nll", "error"))
            assert nll is not None
            assert error is not None
            assert cell == f"{nll.mean:.3f} / {100 * error.mean:.2f} %"


def test_table_of_the_rivals_is_that_of_the_records() -> None:
    printed = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/rivals.py"), "--figures"], capture_output=True, text=True, check=True
    ).stdout
    assert printed.count("\n") > 20
    assert printed in (ROOT / "docs/baselines.md").read_text()


def test_pages_of_results_are_those_of_the_records() -> None:
    """After new records: bqn reproduce page."""
    from bqn.reproduction.page import pages

    made = pages(ROOT / "results")
    for name, text in made.items():
        assert (ROOT / "docs" / name).read_text() == text, name
    drawn = {f"figures/{path.name}" for path in (ROOT / "docs/figures").glob("results-*.svg")}
    assert drawn == {name for name in made if name.startswith("figures/")}


def test_table_of_distillation_is_that_of_the_records() -> None:
    """Means over the seeds that have both."""
    from bqn.reproduction import paper, records, tables

    modes = ("analytic", "mc_recalibrated", "mc_distilled", "map_recalibrated", "map_distilled")
    page = (ROOT / "docs/deploy.md").read_text()
    for model, data in paper.NETWORKS:
        rows = [row for row in records.seeds(model, data, "best", ROOT / "results") if "map_distilled" in row["test"]]
        assert len(rows) == (1 if model == "vgg" else 5)
        name = tables.title(model, data).replace(" ", ", ", 1)
        cells = []
        for mode in modes:
            nll, error = (records.figure(rows, "test", mode, figure) for figure in ("nll", "error"))
            assert nll is not None
            assert error is not None
            cells.append(f"{1e3 * nll.mean:.1f} / {100 * error.mean:.2f}")
        assert f"| {name} | {' | '.join(cells)} |" in page


def test_tables_of_the_speed_page_are_those_of_the_records() -> None:
    subprocess.run([sys.executable, str(ROOT / "benchmarks/speed_tables.py"), "--check"], check=True)
