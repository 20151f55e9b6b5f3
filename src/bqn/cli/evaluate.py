"""`bqn evaluate`: what a run is worth on examples that it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bqn import evaluation
from bqn.cli._console import footnote, show, show_json, working
from bqn.cli._errors import UsageError
from bqn.cli._options import (
    AsJson,
    BatchSize,
    Corruptions,
    DataDir,
    Device,
    OtherData,
    Outside,
    RunFolderArgument,
    Samples,
    Seed,
    choose_device,
)
from bqn.cli._runs import PARTS, Judged, describe_shape, judge
from bqn.cli._tables import corruptions_table, notes_on, ood_table, scores_table
from bqn.data import DataError, Split, load

EXAMPLES = """
bqn evaluate runs/one --json
bqn evaluate runs/mnist --ood fashion-mnist --corruptions --recalibrate
"""


def evaluate(
    run: RunFolderArgument,
    data: OtherData = None,
    part: Annotated[
        str,
        typer.Option(
            "--part",
            metavar="|".join(PARTS),
            help="Which examples: test, the run's validation examples, or all of --data.",
        ),
    ] = "test",
    ood: Outside = None,
    corruptions: Corruptions = False,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            metavar="",
            help="Also: sampled and map networks with batch norm statistics of their own, from training data.",
        ),
    ] = False,
    temper: Annotated[
        bool,
        typer.Option("--temper", metavar="", help="Also: with a temperature fitted on the run's validation examples."),
    ] = False,
    samples: Samples = 5,
    seed: Seed = 0,
    bins: Annotated[int, typer.Option("--bins", metavar="N", min=1, help="Bins of the calibration error.")] = 15,
    batch_size: BatchSize = 500,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run in its modes: analytic, by sampled networks (mc), by the most probable one (map).

    Runs of other methods have other modes; an ensemble averages the probabilities of its members, or their logits.

    In the JSON object, nll, bound and entropies are in nats, error and ece are fractions.
    """
    if part not in PARTS:
        raise UsageError(f"--part must be one of {', '.join(PARTS)}, got {part!r}")
    judged = judge(run, choose_device(device), data, data_dir, part)
    _require_sense(judged, ood, corruptions, recalibrate, temper)
    outside = None if ood is None else load_outside(judged, ood, data_dir)
    with working(f"evaluating {run} on {judged.name}") as tell:
        result = score(
            judged,
            samples=samples,
            seed=seed,
            bins=bins,
            batch_size=batch_size,
            ood=outside,
            corruptions=corruptions,
            recalibrate_on=judged.training if recalibrate else None,
            temper_on=judged.validation if temper else None,
            tell=tell,
        )
    if ood is not None:
        result["ood"]["data"] = ood
    if as_json:
        show_json(result)
        return
    tables = [scores_table(result)]
    if ood is not None:
        tables.append(ood_table(result, ood))
    if corruptions:
        tables.append(corruptions_table(result))
    show(f"{run} on {judged.name}, {len(judged.examples):,} examples", *tables, footnote(notes_on(result)))


def score(judged: Judged, **options: Any) -> dict[str, Any]:
    """The evaluation of a run, with what it is of; options as for `bqn.evaluation.evaluate`."""
    run = judged.run
    result = evaluation.evaluate(
        run.net,
        judged.examples,
        prepare=run.preprocessing.input,
        target_scale=run.preprocessing.target_scale,
        **options,
    )
    about = {"run": str(judged.path), "method": run.config.method, "model": run.config.model}
    about |= {"data": judged.data, "part": judged.part}
    return {**about, "task": run.preprocessing.task, "classes": list(run.preprocessing.classes), **result}


def _require_sense(judged: Judged, ood: str | None, corruptions: bool, recalibrate: bool, temper: bool) -> None:
    task, shape = judged.run.preprocessing.task, judged.run.preprocessing.input_shape
    if task == "regression" and (ood is not None or corruptions or temper):
        raise UsageError(
            f"--ood, --corruptions and --temper are for classification, but {judged.path} is a run for {task}"
        )
    if corruptions and len(shape) != 3:
        raise UsageError(f"--corruptions is for images, but {judged.path} takes {describe_shape(shape)}")
    if recalibrate and judged.training is None:
        raise UsageError("--recalibrate needs the run's own training data, leave --data out")
    if temper and judged.part == "validation":
        raise UsageError("--temper fits a temperature on the validation examples, so --part validation is not for it")
    if temper and judged.validation is None:
        raise UsageError(f"--temper needs validation examples of the run's own data, and {judged.path} has none here")


def load_outside(judged: Judged, name: str, data_dir: Path | None) -> Split:
    """Examples of another set, of the same form."""
    with working(f"loading {name}"):
        other = load(name, data_dir)
    own = judged.examples.x
    if other.test.x.shape[1:] != own.shape[1:] or other.test.x.dtype != own.dtype:
        raise DataError(
            f"{name} has {describe_shape(other.input_shape)}, but {judged.path} takes "
            f"{describe_shape(tuple(own.shape[1:]))}"
        )
    return other.test
