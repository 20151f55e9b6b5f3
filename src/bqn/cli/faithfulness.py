"""`bqn faithfulness`: does the analytic pass say what sampled networks do?"""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bqn.atomic import write_atomic
from bqn.cli._console import footnote, show, show_json, working
from bqn.cli._errors import UsageError
from bqn.cli._options import AsJson, BatchSize, DataDir, Device, RunFolderArgument, Seed, choose_device
from bqn.cli._runs import Judged, judge
from bqn.cli._tables import cell, new_table
from bqn.cli.evaluate import load_outside
from bqn.data import Split
from bqn.faithfulness import COUNTS, calibration, measure
from bqn.faithfulness.figure import MODES, draw, figure_of
from bqn.faithfulness.measuring import LAYER_EXAMPLES
from bqn.nn import BatchNorm1d, BatchNorm2d
from bqn.reproduction.measuring import code, hardware
from bqn.training.files import to_json

EXAMPLES = """
bqn faithfulness runs/one --samples 1,2,5,10 --json
bqn faithfulness runs/mnist --figure faithfulness.svg --ood fashion-mnist,kmnist
"""

_NOTES = (
    "means: root mean square error of mean field's means, in standard deviations of sampled networks; variances: mean "
    "field's over theirs. Correlations in the sampled networks: of neighbours in a channel, of any two positions in "
    "it, and of units or channels (root mean square)."
)


def faithfulness(
    run: RunFolderArgument,
    samples: Annotated[
        str,
        typer.Option(
            "--samples", metavar="N,N,…", help="How many networks to average; the largest, 3 or more, is drawn."
        ),
    ] = ",".join(map(str, COUNTS)),
    examples: Annotated[
        int | None,
        typer.Option("--examples", metavar="N", min=1, help="Only the first N test examples.", show_default="all"),
    ] = None,
    layer_examples: Annotated[
        int, typer.Option("--layer-examples", metavar="N", min=1, help="How many of them to compare layers on.")
    ] = LAYER_EXAMPLES,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE", help="Also draw it, as SVG.", show_default=False)
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="FOLDER", help="Also write FOLDER/MODEL-DATA.json, for the docs.", show_default=False
        ),
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option(
            "--ood",
            metavar="NAME,NAME,…",
            help="Also: calibration before and after a temperature, and how well these data are told from the run's.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    batch_size: BatchSize = 500,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare the analytic pass of a classifier with the sampled networks that it stands for.

    Predictions: NLL and error of averages over few and many networks, all cut from the same ones; with batch norm, also
    with statistics of their own (recalibrated). Layers: how far mean field's means and variances are off, and the
    correlations in the sampled networks.

    In the JSON object, nll is in nats, error and ece are fractions.
    """
    counts = _counts(samples)
    chosen = choose_device(device)
    judged = judge(run, chosen, None, data_dir)
    _require_sense(judged)
    outside = {name: load_outside(judged, name, data_dir) for name in (ood or "").split(",") if name}
    for path in (figure, record):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path} must be in a folder that exists")
    with working(f"drawing {max(counts)} networks of {run}"):
        document = _document(judged, str(chosen), counts, examples, layer_examples, seed, batch_size)
        if outside:
            document["calibration"] = _calibration(judged, outside, examples, seed, batch_size)
    if figure is not None:
        write_atomic(figure, draw(document).encode())
    if record is not None:
        record.mkdir(exist_ok=True)
        name = f"{document['architecture']}-{Path(document['data']).stem}.json"
        write_atomic(record / name, f"{to_json(document, indent=1)}\n".encode())
    if as_json:
        show_json(document)
        return
    layers = [_layers_table(document, mode) for mode in MODES if mode in document]
    settings = document["settings"]
    title = f"{run} on {judged.name}, {settings['examples']:,} examples, {max(counts)} networks"
    judgement = [_calibration_table(document["calibration"])] if outside else []
    show(title, _predictions_table(document), *layers, *judgement, footnote(_NOTES))


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or max(counts) < 3:
        raise UsageError(f"--samples must be whole numbers with commas, the largest at least 3, got {text!r}")
    return counts


def _require_sense(judged: Judged) -> None:
    run = judged.run
    if run.preprocessing.task != "classification":
        raise UsageError(f"faithfulness is measured on classifiers, but {judged.path} is a run for regression")
    if not {"analytic", "mc"} <= set(run.net.modes):
        raise UsageError(
            f"{judged.path} is a run of {run.config.method}, which has the modes {', '.join(run.net.modes)}; "
            "faithfulness compares analytic with mc"
        )


def _document(
    judged: Judged, device: str, counts: list[int], examples: int | None, layer_examples: int, seed: int, batch: int
) -> dict[str, Any]:
    """The record: what was measured, of what, on what, with which code."""
    run = judged.run
    began = time.perf_counter()
    result = measure(
        run.net,
        _test(judged, examples),
        counts=counts,
        seed=seed,
        recalibrate_on=_reference(judged),
        layer_examples=layer_examples,
        batch_size=batch,
        prepare=run.preprocessing.input,
    )
    about = {"architecture": run.config.model, "data": judged.data, "config": json.loads(run.config.to_json())}
    about |= {**code(), "hardware": hardware(device), "date": str(datetime.date.today())}
    return {**about, "seconds": round(time.perf_counter() - began, 1), **result}


def _calibration(
    judged: Judged, outside: dict[str, Split], examples: int | None, seed: int, batch: int
) -> dict[str, Any]:
    return calibration(
        judged.run.net,
        _test(judged, examples),
        outside,
        seed=seed,
        recalibrate_on=_reference(judged),
        temper_on=judged.validation,
        batch_size=batch,
        prepare=judged.run.preprocessing.input,
    )


def _test(judged: Judged, examples: int | None) -> Split:
    return Split(judged.examples.x[:examples], judged.examples.y[:examples])


def _reference(judged: Judged) -> Split | None:
    """Training examples for recalibration, if there is anything to recalibrate."""
    normalizes = any(isinstance(module, BatchNorm1d | BatchNorm2d) for module in judged.run.net.modules())
    return judged.training if normalizes else None


def _predictions_table(document: dict[str, Any]) -> Table:
    modes = [mode for mode in MODES if mode in document]
    names = {"mc": "mc", "mc_recalibrated": "recal."}
    heads = [f"{what}, {names[mode]}" for mode in modes for what in ("NLL", "error")]
    table = new_table("networks", *heads)
    analytic = document["analytic"]
    table.add_row("analytic", *(f"{analytic['nll']:.4f}", f"{analytic['error']:.2%}") * len(modes))
    table.add_section()
    for rows in zip(*(document[mode]["predictions"] for mode in modes), strict=True):
        cells = [cell(row[name], form) for row in rows for name, form in (("nll", ".4f"), ("error", ".2%"))]
        table.add_row(str(rows[0]["samples"]), *cells)
    return table


def _layers_table(document: dict[str, Any], mode: str) -> Table:
    table = new_table("layer", "kind", "means", "variances", "neighbours", "channel", "units", title=MODES[mode][2])
    table.columns[1].justify = "left"
    names = ("mean_error", "variance_ratio", "neighbour", "channel", "unit")
    for row in document[mode]["layers"]:
        table.add_row(row["layer"], row["kind"], *(cell(figure_of(row, name), ".2f") for name in names))
    return table


def _calibration_table(found: dict[str, Any]) -> Table:
    """Calibration errors, and areas under the ROC curve by entropy."""
    sets = list(next(iter(found.values()))["auroc"])
    table = new_table(
        "", "ECE", "tempered", *(f"AUROC, {Path(name).stem}" for name in sets), title="calibration and detection"
    )
    for mode, scores in found.items():
        tempered = cell(scores["tempered"]["ece"] if "tempered" in scores else None, ".2%")
        areas = [cell(scores["auroc"][name]["entropy"], ".2%") for name in sets]
        table.add_row(mode.replace("_recalibrated", " recal."), cell(scores["ece"], ".2%"), tempered, *areas)
    return table
