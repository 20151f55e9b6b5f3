"""docs/results.md, docs/ablations.md and their figures, made from records alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from bqn.atomic import write_atomic
from bqn.reproduction import ablations, paper, records, tables
from bqn.reproduction.aims import BOSTON_LOG_LIKELIHOOD, BOSTON_RMSE
from bqn.reproduction.figures import figures
from bqn.reproduction.regression import boston
from bqn.reproduction.remarks import REMARKS
from bqn.reproduction.templates import template

_CHANCE = 0.99 * math.log(10)  # about what a network says that has learned nothing


def write_pages(out: str | Path = "results", docs: str | Path = "docs") -> list[Path]:
    """Write the pages and figures; figures that the page no longer has are removed."""
    if not Path(out).is_dir():
        raise records.RecordError(f"{out} is not a folder, so it holds no records")
    folder, written = Path(docs), []
    made = pages(out)
    for old in folder.glob("figures/results-*.svg"):
        if f"figures/{old.name}" not in made:
            old.unlink()
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
        written.append(path)
    return written


def pages(out: str | Path = "results") -> dict[str, str]:
    """All files by their path under docs/."""
    folder = Path(out)
    drawn = figures(folder)
    return {
        "results.md": _results(folder, list(drawn)),
        "ablations.md": ablations.page(folder),
        **{f"figures/{name}": text for name, text in drawn.items()},
    }


def _results(out: Path, drawn: Sequence[str]) -> str:
    return template("results.md").format(
        short=tables.SHORT,
        nothing=tables.NOTHING,
        scoreboard=tables.scoreboard(out),
        table1=tables.table1(out),
        table2=tables.table2(out),
        table3=tables.table3(out),
        ratios=tables.ratios(out),
        calibration=tables.calibration(out),
        boston_rmse=BOSTON_RMSE,
        boston_log_likelihood=BOSTON_LOG_LIKELIHOOD,
        boston=boston(out),
        power=_pictures([name for name in drawn if "-power-" in name]),
        gap=_pictures([name for name in drawn if "-gap-" in name]),
        levels=tables.levels(out),
        settings=tables.settings(out),
        remarks=_remarks(out),
    )


def _pictures(names: Sequence[str]) -> str:
    if not names:
        return "Not measured yet."
    words = "Dashed: the paper's points and bands. Full: ours, mean and standard deviation over seeds.\n"
    return "\n".join([words, *(f"![{Path(name).stem}](figures/{name})" for name in names)])


def _remarks(out: Path) -> str:
    """Remarks by hand on what is recorded, and what shows by itself: failed runs and those that learned nothing."""
    lines = []
    for network in paper.NETWORKS:
        for recipe in ("paper", "best"):
            documents = records.seeds(*network, recipe, out)
            name = f"{tables.title(*network)}, recipe `{recipe}`"
            if documents and (*network, recipe) in REMARKS:
                lines.append(f"- {name}: {REMARKS[(*network, recipe)]}")
            lines += [f"- {name}, seed {row['seed']}: {row['failed']}." for row in documents if "failed" in row]
            stuck = [row for row in documents if row.get("test", {}).get("analytic", {}).get("nll", 0) > _CHANCE]
            if stuck:
                lines.append(f"- {name}: {len(stuck)} of {len(documents)} runs learned nothing, their NLL is ln 10.")
    return "\n".join(lines) or "None so far."
