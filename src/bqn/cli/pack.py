"""`bqn pack`: a run in, one small file out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bqn import __version__
from bqn.cli._console import show, show_json, working
from bqn.cli._options import AsJson, BatchSize, DataDir, Device, RunFolderArgument, Samples, Seed, choose_device
from bqn.cli._rows import require_choice
from bqn.cli._runs import judge, open_run
from bqn.cli.inspect import bytes_in_words
from bqn.deploy import packing
from bqn.deploy.inspection import describe
from bqn.predictions import Predictor
from bqn.training import Run

EXAMPLES = """Examples:
  bqn pack runs/one --out one.bqn
  bqn pack runs/one --mode mc --samples 5 --out five.bqn"""

MODES = ("map", "mc")


def pack(
    run: RunFolderArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.", show_default=False)],
    mode: Annotated[
        str,
        typer.Option("--mode", metavar="|".join(MODES), help="The most probable network, or sampled ones to average."),
    ] = "map",
    samples: Samples = 5,
    seed: Seed = 0,
    recalibrate: Annotated[
        bool,
        typer.Option("--recalibrate", metavar="", help="With batch norm statistics of their own, from training data."),
    ] = False,
    batch_size: BatchSize = 500,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Pack a run into one file that works alone: a bit for a binary weight, integers for everything else.

    The packed networks are those that bqn evaluate draws for the same mode, samples and seed, and they give the same
    figures: see bqn run.
    """
    require_choice(mode, MODES, "--mode")
    chosen = choose_device(device)
    training = judge(run, chosen, None, data_dir) if recalibrate else None
    opened = open_run(run, chosen) if training is None else training.run
    require_choice(mode, opened.net.modes, "--mode")
    with working(f"packing {run}"):
        predictor = Predictor(
            opened.net,
            samples=samples,
            seed=seed,
            batch_size=batch_size,
            prepare=opened.preprocessing.input,
            recalibrate_on=None if training is None or training.training is None else training.training.x,
        )
        members = list(predictor.members(f"{mode}_recalibrated" if recalibrate else mode))
        about = _about(opened, mode, len(members), seed, recalibrate)
        packed = packing.pack(members, out, **_form(opened), about=about)
    facts = describe(packed)
    if as_json:
        show_json({"file": str(out), **facts})
        return
    networks = "the most probable network" if mode == "map" else f"{len(members)} sampled networks"
    show(
        f"{out}: {bytes_in_words(facts['file_bytes'])}, {networks} of {facts['weights']:,} weights at "
        f"{facts['bits_per_weight']:g} bit{'' if facts['bits_per_weight'] == 1 else 's'}; "
        f"in float32 one takes {bytes_in_words(facts['float32_bytes'])}"
    )


def _form(run: Run) -> dict[str, Any]:
    """What a packed file must know of the data."""
    form = run.preprocessing
    scale = None if form.inputs is None else (form.inputs.mean, form.inputs.std)
    return {
        "inputs": "pixels" if len(form.input_shape) == 3 else "features",
        "input_shape": form.input_shape,
        "input_scale": scale,
        "target_scale": form.target_scale,
        "classes": form.classes,
    }


def _about(run: Run, mode: str, members: int, seed: int, recalibrated: bool) -> dict[str, Any]:
    config = run.config
    return {
        "bqn": __version__,
        "model": config.model,
        "data": config.data,
        "split": config.split,
        "target": config.target,
        "task": config.task,
        "mode": mode,
        "samples": members if mode == "mc" else None,
        "seed": seed if mode == "mc" else None,
        "recalibrated": recalibrated,
    }
