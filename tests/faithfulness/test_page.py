"""The page and the figures say what the records say."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bqn.faithfulness import page
from bqn.faithfulness.figure import draw

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDS = ROOT / "results/faithfulness"


def a_record(
    architecture: str = "cnn", data: str = "stars", modes: tuple[str, ...] = ("mc", "mc_recalibrated")
) -> dict:
    layers = [
        {"layer": "0", "kind": "Conv2d", "shape": [2, 3, 3], "mean_error": 0.0, "variance_ratio": 1.0,
         "correlation": {"neighbour": {"mean": 0.5, "rms": 0.6}, "channel": {"mean": -0.1, "rms": 0.2},
                         "unit": {"mean": 0.0, "rms": 0.03}}},
        {"layer": "2", "kind": "Linear", "shape": [4], "mean_error": 0.25, "variance_ratio": 0.5,
         "correlation": {"neighbour": None, "channel": None, "unit": {"mean": 0.1, "rms": 0.3}}},
    ]  # fmt: skip
    predictions = [
        {"samples": 1, "groups": 5, "nll": 0.9, "nll_std": 0.1, "error": 0.2, "error_std": 0.01, "ece": 0.1,
         "ece_std": 0.01},
        {"samples": 5, "groups": 1, "nll": 0.2, "nll_std": None, "error": 0.1, "error_std": None, "ece": 0.1,
         "ece_std": None},
    ]  # fmt: skip
    return {
        "architecture": architecture, "data": data, "config": {"seed": 3}, "hardware": "a box", "date": "2026-01-02",
        "settings": {"examples": 1000, "layer_examples": 8, "counts": [1, 5]},
        "analytic": {"nll": 0.1, "error": 0.05, "ece": 0.01},
        **{mode: {"predictions": predictions, "layers": layers} for mode in modes},
    }  # fmt: skip


def test_the_page_is_that_of_the_records():
    text = (ROOT / "docs" / page.PAGE).read_text(encoding="utf-8")
    generated = text.split(page.BEGIN)[1].split(page.END)[0]
    assert generated == f"\n{page.render(page.read(RECORDS))}"


def test_the_figures_are_those_of_the_records():
    made = page.figures(page.read(RECORDS))
    there = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/figures").glob("faithfulness-*.svg")}
    assert there == made


def test_what_a_record_becomes():
    text = page.render({"cnn-stars": a_record()})
    assert "| CNN, stars | sampled | 0.1000 / 5.00 | 0.9000 / 20.00 | 0.2000 / 10.00 |" in text
    assert "|  | recalibrated |  | 0.9000 / 20.00 | 0.2000 / 10.00 |" in text
    assert "| 1 | 0 | Conv2d | 2×3×3 | 0.00 / 0.00 | 1.00 / 1.00 | 0.50 / 0.50 | -0.10 / -0.10 | 0.03 / 0.03 |" in text
    assert "| 2 | 2 | Linear | 4 | 0.25 / 0.25 | 0.50 / 0.50 |  |  | 0.30 / 0.30 |" in text
    alone = page.render({"cnn-stars": a_record(modes=("mc",))})
    assert "| 2 | 2 | Linear | 4 | 0.25 | 0.50 |  |  | 0.30 |" in alone
    assert "Behind the slash" not in alone


def test_calibration_of_a_record():
    scores = {"nll": 0.25, "error": 0.1, "ece": 0.031, "auroc": {"moons": {"entropy": 0.987, "epistemic": None}}}
    tempered = {"temperature": 1.5, "nll": 0.125, "error": 0.1, "ece": 0.012}
    record = a_record() | {"calibration": {"map": scores | {"tempered": tempered}, "mc_recalibrated": scores}}
    text = page.render({"cnn-stars": record, "mlp-stars": a_record("mlp")})
    assert "| CNN, stars | map | 0.2500 | 0.1250 | 3.10 | 1.20 | 1.50 | moons 98.7, – |" in text
    assert "|  | mc, recalibrated | 0.2500 |  | 3.10 |  |  | moons 98.7, – |" in text
    assert text.count("98.7") == 2


@pytest.mark.parametrize("records", ["", "nowhere"])
def test_without_records_the_page_stays_as_it_is(tmp_path, capsys, records):
    """Also where the folder of records is a word that was meant otherwise."""
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/faithfulness-cnn-stars.svg").write_text("a figure")
    (tmp_path / page.PAGE).write_text(f"{page.BEGIN}\nold\n{page.END}\n")
    assert page.main([str(tmp_path / records), str(tmp_path)]) == 1
    assert "holds no records" in capsys.readouterr().err
    assert "old" in (tmp_path / page.PAGE).read_text()
    assert (tmp_path / "figures/faithfulness-cnn-stars.svg").exists()


def test_help_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        page.main(["--help"])
    assert "results/faithfulness" in capsys.readouterr().out


def test_small_architectures_come_first(tmp_path):
    for architecture in ("vgg", "cnn", "mlp"):
        (tmp_path / f"{architecture}-stars.json").write_text(json.dumps(a_record(architecture)))
    assert list(page.read(tmp_path)) == ["mlp-stars", "cnn-stars", "vgg-stars"]


def test_writing(tmp_path):
    records, docs = tmp_path / "records", tmp_path / "docs"
    (docs / "figures").mkdir(parents=True)
    records.mkdir()
    (records / "cnn-stars.json").write_text(json.dumps(a_record()))
    (docs / "figures/faithfulness-old.svg").write_text("")
    (docs / "figures/other.svg").write_text("")
    (docs / page.PAGE).write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    subprocess.run([sys.executable, "-m", "bqn.faithfulness.page", str(records), str(docs)], check=True)
    text = (docs / page.PAGE).read_text(encoding="utf-8")
    assert text.startswith(f"before\n{page.BEGIN}\nNLL in nats")
    assert text.endswith(f"{page.END}\nafter\n")
    assert "old" not in text
    assert sorted(path.name for path in (docs / "figures").iterdir()) == ["faithfulness-cnn-stars.svg", "other.svg"]
    (docs / page.PAGE).write_text("no marks")
    with pytest.raises(ValueError, match="must have one line"):
        page.write(records, docs)


def test_a_figure_is_a_document_with_a_panel_a_question():
    svg = ElementTree.fromstring(draw(a_record()))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    for label in ("NLL of S networks, nats", "error of S networks", "variance, analytic / sampled",
                  "correlation of neighbours", "correlation along a channel", "correlation of units, rms",
                  "analytic pass",
                  "sampled networks, recalibrated"):  # fmt: skip
        assert label in texts
    titles = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert "sampled networks, S = 5: 0.2" in titles
    assert "0, sampled networks, recalibrated: 0.5" in titles
    left, top, width, height = map(float, svg.attrib["viewBox"].split())
    assert (left, top) == (0, 0)
    assert width > 3 * 360
    assert height > 2 * 230


def test_no_line_crosses_a_layer_without_a_figure():
    """It would be read as a measurement."""
    record = a_record(modes=("mc",))
    figures = [0.1, 0.2, None, 0.3, 0.4]
    row = record["mc"]["layers"][1]
    record["mc"]["layers"] = [{**row, "layer": str(i), "mean_error": value} for i, value in enumerate(figures)]
    whole = {**record, "mc": {**record["mc"], "layers": [{**row, "mean_error": 0.1} for _ in figures]}}
    lines = [draw(each).count('class="line mc"') for each in (record, whole)]
    assert lines[0] == lines[1] + 1


def test_deviations_lie_within_their_panel():
    """Those at S = 1 reach from 0.4 to 1.4."""
    record = a_record(modes=("mc",))
    record["analytic"]["nll"] = record["mc"]["predictions"][1]["nll"] = 0.5  # close enough for a linear axis
    record["mc"]["predictions"][0]["nll_std"] = 0.5
    svg = ElementTree.fromstring(draw(record))
    marks = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "1.4" in marks or "1.5" in marks


def test_a_damaged_record(tmp_path):
    (tmp_path / "mlp-stars.json").write_text('{"architecture": "mlp", "nll": NaN}')
    with pytest.raises(ValueError, match=r"mlp-stars\.json: NaN is not a JSON number"):
        page.read(tmp_path)


def test_a_figure_of_a_network_without_positions():
    record = a_record("mlp", modes=("mc",))
    record["mc"]["layers"] = record["mc"]["layers"][1:]
    drawn = draw(record)
    assert "correlation of neighbours" not in drawn
    assert "recalibrated" not in drawn
