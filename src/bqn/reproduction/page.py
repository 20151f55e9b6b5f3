"""docs/results.md, docs/ablations.md and their figures, made from records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bqn.atomic import write_atomic
from bqn.reproduction import ablations, provenance, records, tables
from bqn.reproduction.aims import BOSTON_LOG_LIKELIHOOD, BOSTON_RMSE
from bqn.reproduction.coverage import coverage, many_settings
from bqn.reproduction.figures import figures
from bqn.reproduction.quotes import quoted, without_record
from bqn.reproduction.regression import boston, boston_one_split
from bqn.reproduction.remarks import remarks
from bqn.reproduction.shortfalls import shortfalls
from bqn.reproduction.templates import template


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
    text = template("results.md")
    unknown = without_record(text, out)
    return quoted(text, out).format(
        whose_words=_whose_words(unknown),
        short=tables.SHORT,
        nothing=tables.NOTHING,
        scoreboard=tables.scoreboard(out),
        beside_rivals=tables.beside_rivals(out),
        missing=coverage(out),
        cost=provenance.cost(out),
        many_settings=many_settings(out),
        shortfalls=shortfalls(out),
        table1=tables.table1(out),
        bounds=tables.bounds(out),
        table2=tables.table2(out),
        table3=tables.table3(out),
        ratios=tables.ratios(out),
        calibration=tables.calibration(out),
        boston_rmse=BOSTON_RMSE,
        boston_log_likelihood=BOSTON_LOG_LIKELIHOOD,
        boston=boston(out),
        boston_one_split=boston_one_split(out),
        power=_pictures([name for name in drawn if "-power-" in name]),
        sweep=tables.sweep(out),
        gap=_pictures([name for name in drawn if "-gap-" in name]),
        levels=tables.levels(out),
        settings=provenance.settings(out),
        commits=provenance.commits(out),
        remarks=remarks(out),
    )


def _whose_words(missing: int) -> str:
    """A warning for who makes the page from records of their own."""
    if not missing:
        return ""
    return (
        "**The tables and pictures below are made from your records; the sentences are not.** They were written about "
        f"the records that come with the package: {missing} of the figures that they quote are not among yours.\n\n"
    )


def _pictures(names: Sequence[str]) -> str:
    if not names:
        return "Not measured yet."
    words = "Dashed: the paper's points and bands. Full: ours, mean and standard deviation over seeds.\n"
    return "\n".join([words, *(f"![{Path(name).stem}](figures/{name})" for name in names)])
