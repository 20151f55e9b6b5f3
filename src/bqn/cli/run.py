"""`bqn run`: evaluate or use a packed network, with nothing but its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("bqn run needs torch: pip install torch; bqn.load_packed predicts without it") from None

from bqn.cli._console import footnote, show, show_json, working
from bqn.cli._errors import UsageError
from bqn.cli._options import AsJson, BatchSize, DataDir
from bqn.cli._packed import PackedArgument, form_of, open_packed, predict_packed
from bqn.cli._rows import Format, Out, choose_format, require_choice
from bqn.cli._runs import load_other, require_like, same_source, with_own_columns, with_own_labels
from bqn.cli._tables import notes_on, scores_table
from bqn.data import Dataset, Split, Task, load
from bqn.deploy.columns import from_about
from bqn.deploy.model import PackedModel
from bqn.deploy.network import MODE, evaluate
from bqn.training.preprocessing import Preprocessing

EXAMPLES = """
bqn run one.bqn --data digits --json
bqn run digits-mlp-mc5 --data digits
bqn run one.bqn scan-1.png scan-2.png
"""

PARTS = ("test", "all")
_BINS = 15


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A packed file in the place of a run."""

    preprocessing: Preprocessing


def run(
    file: PackedArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[EXAMPLES]", help="Files to predict for, as bqn predict takes them.", show_default=False
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="NAME|PATH", help="Evaluate on these data instead.", show_default=False),
    ] = None,
    part: Annotated[
        str, typer.Option("--part", metavar="|".join(PARTS), help="Which examples of --data: test, or all.")
    ] = "test",
    bins: Annotated[int, typer.Option("--bins", metavar="N", min=1, help="Bins of the calibration error.")] = _BINS,
    form: Format = None,
    out: Out = None,
    batch_size: BatchSize = 500,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a packed file on data, or predict for examples in files, by integer arithmetic.

    The figures are those that bqn evaluate gives for the same networks. In the JSON object, nll and entropies are in
    nats, error and ece are fractions.
    """
    if (data is None) == (not files):
        raise UsageError("name either --data to evaluate on, or files to predict for")
    require_choice(part, PARTS, "--part")
    if files and (part != "test" or bins != _BINS):
        raise UsageError("--part and --bins are for --data, leave them out where files are predicted for")
    if files and as_json and (form not in (None, "json") or out is not None):
        raise UsageError("--json prints one JSON object, so it goes with no other --format, and not with --out")
    packed = open_packed(file)
    if files:
        form = choose_format("json" if as_json and form is None else form, out)
        predict_packed(file, packed, files, form, out, batch_size)
        return
    assert data is not None
    model = PackedModel(packed)
    if form is not None or out is not None:
        raise UsageError("--format and --out are for predictions, leave --data out")
    with working(f"loading {data}"):
        dataset = _load(model, data, data_dir)
    prepared = _Prepared(form_of(model, dataset.input_shape))
    dataset = with_own_columns(file, prepared, dataset)
    require_like(file, prepared, dataset)
    examples = with_own_labels(file, prepared, dataset, _part(dataset, part))
    with working(f"running {file} on {dataset.name}"):
        scores = evaluate(model, examples, bins, batch_size)
    if as_json:
        about = {"file": str(file), "members": model.members, "kernels": model.kernels, "task": model.task}
        show_json({**about, "data": dataset.name, "part": part, "examples": len(examples), **scores})
        return
    result = {MODE: scores, "settings": {"bins": bins, "samples": model.members}}
    members = "1 network" if model.members == 1 else f"{model.members} networks"
    show(
        f"{file}, {members}, on {dataset.name} ({part}), {len(examples):,} examples, kernels {model.kernels}",
        scores_table(result),
        footnote(notes_on(result)),
    )


def _load(model: PackedModel, data: str, data_dir: Path | None) -> Dataset:
    """The data; those that the network was trained on are read and split as then."""
    about = model.packed.about
    if not same_source(data, about.get("data")):
        task: Task | None = "regression" if model.task == "regression" else about.get("task")
        return load_other(data, data_dir, about.get("split", 0), about.get("target"), from_about(about).target, task)
    return load(data, data_dir, split=about.get("split", 0), target=about.get("target"), task=about.get("task"))


def _part(dataset: Dataset, part: str) -> Split:
    if part == "test":
        return dataset.test
    both = (dataset.train, dataset.test)
    return Split(torch.cat([each.x for each in both]), torch.cat([each.y for each in both]))
