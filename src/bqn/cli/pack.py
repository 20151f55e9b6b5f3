"""`bqn pack`: a run in, one small file out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bqn.atomic import write_atomic
from bqn.cli._console import note, show, show_json, working
from bqn.cli._errors import UsageError, settings_are_usage
from bqn.cli._options import AsJson, BatchSize, DataDir, Device, RunFolderArgument, Samples, Seed, choose_device
from bqn.cli._rows import require_choice
from bqn.cli._runs import judge, open_run
from bqn.data import Split
from bqn.deploy import to_bytes
from bqn.deploy.inspection import describe
from bqn.deploy.runs import MODES, pack_run
from bqn.nn import BatchNorm1d, BatchNorm2d
from bqn.sizes import bytes_in_words
from bqn.training import Distillation, EpochRecord, Run
from bqn.training import distill as distill_run
from bqn.training.distillation import require_posterior

EXAMPLES = """
bqn pack runs/one --out one.bqn
bqn pack runs/one --mode mc --samples 5 --out five.bqn
bqn pack runs/one --distill 5 --out better.bqn
"""


_SAMPLES = 5


def pack(
    run: RunFolderArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.", show_default=False)],
    mode: Annotated[
        str,
        typer.Option("--mode", metavar="|".join(MODES), help="The most probable network, or sampled ones to average."),
    ] = "map",
    samples: Samples = _SAMPLES,
    seed: Seed = 0,
    recalibrate: Annotated[
        bool,
        typer.Option("--recalibrate", metavar="", help="With batch norm statistics of their own, from training data."),
    ] = False,
    temper: Annotated[
        bool,
        typer.Option("--temper", metavar="", help="With a temperature fitted on the run's validation examples."),
    ] = False,
    distill: Annotated[
        int,
        typer.Option(
            "--distill",
            metavar="EPOCHS",
            min=0,
            help="Train what is packed towards the analytic prediction first, on the run's training data.",
        ),
    ] = 0,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Replace FILE if it exists.")] = False,
    batch_size: BatchSize = 500,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Pack a run into one file that works alone: a bit for a binary weight, integers for everything else.

    The packed networks are those that bqn evaluate draws for the same mode, samples and seed, and without --temper and
    --distill they give the same figures: see bqn run.
    """
    require_choice(mode, MODES, "--mode")
    if mode == "map" and samples != _SAMPLES:
        raise UsageError(f"--samples is for --mode mc: there is one most probable network, got {samples}")
    if mode == "map" and seed and not distill:
        raise UsageError(f"--seed is for --mode mc and --distill: the most probable network is not drawn, got {seed}")
    if out.is_file() and not force:
        raise FileExistsError(f"{out} exists already: replace it with --force, or choose another --out")
    if out.is_dir() or not out.parent.is_dir():  # to be known before the work begins
        raise UsageError(f"--out must be a file in a folder that is there, got {out}")
    chosen = choose_device(device)
    if distill and recalibrate:
        raise UsageError("--recalibrate is not for --distill, which ends with statistics from training data anyway")
    judged = judge(run, chosen, None, data_dir) if recalibrate or temper or distill else None
    opened = open_run(run, chosen) if judged is None else judged.run
    require_choice(mode, opened.net.modes, "--mode")
    training = None if judged is None or judged.training is None or not recalibrate else judged.training.x
    validation = None if judged is None or not temper else judged.validation
    if temper and (validation is None or opened.preprocessing.task != "classification"):
        raise UsageError(f"--temper needs a classifier with validation examples, which {run} is not")
    distilled = None
    if distill:
        with settings_are_usage():
            require_posterior(opened)
        assert judged is not None
        assert judged.training is not None  # it comes with the run's own data
        distilled = _distill(opened, judged.training, judged.validation, mode, samples, seed, distill)
    with working(f"packing {run}"):
        packed = pack_run(
            opened,
            mode,
            samples=samples,
            seed=seed,
            recalibrate_on=training,
            temper_on=validation,
            distilled=distilled,
            batch_size=batch_size,
        )
        write_atomic(out, to_bytes(packed))
    if not recalibrate and not distill and _has_own_statistics(opened):
        note("batch norm keeps the statistics of the analytic pass, which may suit what is packed badly: --recalibrate")
    facts = describe(packed)
    if as_json:
        show_json({"file": str(out), **facts})
        return
    networks = "the most probable network" if mode == "map" else f"{packed.members} sampled networks"
    networks += ", distilled," if packed.about["distilled"] else ""
    show(
        f"{out}: {bytes_in_words(facts['file_bytes'])}, {networks} of {facts['weights']:,} weights at "
        f"{facts['bits_per_weight']:g} bit{'' if facts['bits_per_weight'] == 1 else 's'}; "
        f"in float32 one takes {bytes_in_words(facts['float32_bytes'])}"
    )


def _has_own_statistics(run: Run) -> bool:
    """Whether a network of the run would have other batch norm statistics than the average over all networks."""
    return "analytic" in run.net.modes and any(
        isinstance(module, BatchNorm1d | BatchNorm2d) for module in run.net.modules()
    )


def _distill(
    run: Run, training: Split, validation: Split | None, mode: str, samples: int, seed: int, epochs: int
) -> Distillation:
    """Distilled networks, with a line on stderr for each epoch and one for what came of each."""
    count = samples if mode == "mc" else 1

    def tell(number: int, record: EpochRecord) -> None:
        which = f"network {number + 1} of {count}, " if count > 1 else ""
        score = "" if record.validation_nll is None else f", validation NLL {record.validation_nll:.4f}"
        score += "" if record.validation_error is None else f", error {record.validation_error:.2%}"
        note(f"distilling: {which}epoch {record.epoch} of {epochs}{score}")

    made = distill_run(run, training, validation, mode=mode, samples=samples, seed=seed, epochs=epochs, report=tell)
    for number, (before, after, kept) in enumerate(zip(made.before, made.after, made.kept, strict=True)):
        which = f"network {number + 1} of {count}" if count > 1 else "the network"
        if before is None or after is None:
            continue
        if kept:
            note(f"distilled: {which} as of epoch {kept}, validation NLL {before:.4f} before and {after:.4f} now")
        else:
            note(f"not distilled: no epoch was better than none, {which} stays as it was, validation NLL {before:.4f}")
    return made
