"""`bqn report`: one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bqn.cli._console import show, working
from bqn.cli._options import Corruptions, DataDir, Device, Outside, RunFolderArgument, Samples, Seed, choose_device

EXAMPLES = "bqn report runs/one --ood fashion-mnist"


def report(
    run: RunFolderArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to write it.", show_default="into RUN")
    ] = None,
    ood: Outside = None,
    corruptions: Corruptions = False,
    samples: Samples = 5,
    seed: Seed = 0,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Write one HTML page about a run: learning curves, calibration, errors, uncertainty.

    The page has everything in it, pictures and scripts too. Prints its path.
    """
    from bqn import report as page
    from bqn.cli._runs import require_folder

    require_folder(run)
    where = str(choose_device(device))
    with working(f"writing a report on {run}") as tell:
        path = page.write(
            run,
            out,
            data_dir=data_dir,
            ood=ood,
            corruptions=corruptions,
            samples=samples,
            seed=seed,
            device=where,
            tell=tell,
        )
    show(str(path))
