"""The generated part of docs/faithfulness.md and its figures, from the records alone.

    python -m bqn.faithfulness.page [RECORDS] [DOCS]

writes them again; by default from results/faithfulness into docs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bqn.atomic import write_atomic
from bqn.faithfulness.figure import MODES, draw, figure_of
from bqn.strict_json import parse_object

BEGIN, END = "<!-- generated from results/faithfulness -->", "<!-- end of the generated part -->"
PAGE, FIGURES = "faithfulness.md", "figures"
_SHORT = {"mc": "sampled", "mc_recalibrated": "recalibrated"}
_COLUMNS = ("mean_error", "variance_ratio", "neighbour", "channel", "unit")


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """All records of a folder, by name, those of small architectures first."""
    order = ("mlp", "cnn", "vgg")
    records = {path.stem: parse_object(path.read_bytes(), str(path)) for path in sorted(folder.glob("*.json"))}

    def place(name: str) -> tuple[int, str]:
        architecture = records[name]["architecture"]
        return order.index(architecture) if architecture in order else len(order), name

    return {name: records[name] for name in sorted(records, key=place)}


def render(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The generated part of the page as Markdown."""
    sections = [_section(name, record) for name, record in records.items()]
    return "\n".join([_overview(records), *_calibration(records), *sections])


def figures(records: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """SVG documents by file name."""
    return {f"faithfulness-{name}.svg": draw(record) for name, record in records.items()}


def write(folder: Path, docs: Path) -> None:
    """Put the records of `folder` into the page and the figures below `docs`."""
    records = read(folder)
    if not records:  # a name that was mistyped must not empty the page
        raise ValueError(f"{folder} holds no records")
    page = docs / PAGE
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{page} must have one line {BEGIN} and, below it, one line {END}")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    (docs / FIGURES).mkdir(exist_ok=True)
    for old in (docs / FIGURES).glob("faithfulness-*.svg"):
        if old.stem.removeprefix("faithfulness-") not in records:
            old.unlink()
    for name, svg in figures(records).items():
        write_atomic(docs / FIGURES / name, svg.encode())
    write_atomic(page, f"{before}{BEGIN}\n{render(records)}{END}{after}".encode())


def _overview(records: Mapping[str, Mapping[str, Any]]) -> str:
    counts = sorted({row["samples"] for record in records.values() for row in record["mc"]["predictions"]})
    heads = ["network", "statistics", "analytic", *(f"S = {count}" for count in counts)]
    lines = ["NLL in nats / error in percent on the test set:\n", *_heads(heads)]
    for record in records.values():
        title, analytic = _title(record), _pair(record["analytic"])
        for mode in (mode for mode in MODES if mode in record):
            rows = {row["samples"]: row for row in record[mode]["predictions"]}
            cells = [_pair(rows[count]) if count in rows else "" for count in counts]
            lines.append(f"| {' | '.join([title, _SHORT[mode], analytic, *cells])} |")
            title = analytic = ""
    return "\n".join(lines) + "\n"


def _calibration(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Calibration and detection of those records that have them, one row a mode."""
    judged = [record for record in records.values() if "calibration" in record]
    if not judged:
        return []
    heads = ["network", "mode", "NLL", "tempered", "ECE %", "tempered", "temperature", "AUROC %, by entropy, epistemic"]
    lines = ["Calibration, before and after a temperature, and detection of other data:\n", *_heads(heads)]
    for record in judged:
        title = _title(record)
        for mode, scores in record["calibration"].items():
            after = scores.get("tempered")
            cells = [
                f"{scores['nll']:.4f}",
                "" if after is None else f"{after['nll']:.4f}",
                f"{100 * scores['ece']:.2f}",
            ]
            cells += ["", ""] if after is None else [f"{100 * after['ece']:.2f}", f"{after['temperature']:.2f}"]
            areas = ("; ".join(f"{name} {_areas(found)}" for name, found in scores["auroc"].items()),)
            lines.append(f"| {' | '.join([title, mode.replace('_', ', '), *cells, *areas])} |")
            title = ""
    return ["\n".join(lines) + "\n"]


def _areas(found: Mapping[str, float | None]) -> str:
    areas = [found[kind] for kind in ("entropy", "epistemic")]
    return ", ".join("–" if area is None else f"{100 * area:.1f}" for area in areas)


def _section(name: str, record: Mapping[str, Any]) -> str:
    settings = record["settings"]
    drawn = max(settings["counts"])
    modes = [mode for mode in MODES if mode in record]
    heads = ["", "layer", "kind", "size", "means", "variances", "neighbours", "channel", "units"]
    lines = [
        f"## {_title(record)}\n",
        f"![The analytic pass beside sampled networks]({FIGURES}/faithfulness-{name}.svg)\n",
        f"{drawn} networks, {settings['examples']:,} test examples, layers on {settings['layer_examples']} of them; "
        f"training seed {record['config']['seed']}, {record['hardware']}, {record['date']}."
        + (" Behind the slash: recalibrated.\n" if len(modes) > 1 else "\n"),
        *_heads(heads),
    ]
    for number, rows in enumerate(zip(*(record[mode]["layers"] for mode in modes), strict=True), 1):
        size = "×".join(map(str, rows[0]["shape"]))
        cells = [_cell([figure_of(row, name) for row in rows]) for name in _COLUMNS]
        lines.append(f"| {' | '.join([str(number), rows[0]['layer'], rows[0]['kind'], size, *cells])} |")
    return "\n".join(lines) + "\n"


def _heads(names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _title(record: Mapping[str, Any]) -> str:
    return f"{record['architecture'].upper()}, {record['data']}"


def _pair(scores: Mapping[str, Any]) -> str:
    return "" if scores["nll"] is None else f"{scores['nll']:.4f} / {100 * scores['error']:.2f}"


def _cell(values: Sequence[float | None]) -> str:
    """One number a mode, nothing where the layer has no such figure."""
    return "" if set(values) == {None} else " / ".join("–" if value is None else f"{value:.2f}" for value in values)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bqn.faithfulness.page",
        description="Write docs/faithfulness.md and its figures from the records.",
    )
    parser.add_argument(
        "records", nargs="?", type=Path, default=Path("results/faithfulness"), help="default: %(default)s"
    )
    parser.add_argument("docs", nargs="?", type=Path, default=Path("docs"), help="default: %(default)s")
    given = parser.parse_args(arguments)
    try:
        write(given.records, given.docs)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
