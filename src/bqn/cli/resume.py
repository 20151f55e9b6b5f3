"""`bqn resume`: go on with a run that was stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from bqn import training
from bqn.cli._console import note
from bqn.cli._options import AsJson, DataDir, Quiet, RunFolderArgument, TensorBoard, choose_device
from bqn.cli._training import assisting, tell, watched
from bqn.training import EpochRecord
from bqn.training.distributed import here, leave
from bqn.training.folder import RunFolder

EXAMPLES = "bqn resume runs/one"


def resume(
    run: RunFolderArgument,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="Another device than before.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    tensorboard: TensorBoard = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run after Ctrl-C, a crash or a power cut, from where it was last saved.

    On a CPU the result is bit by bit that of a run which was never stopped; up to rounding if the number of processes
    (torchrun) is another than before, which may be.
    """
    if device is not None:
        choose_device(device)
    if not here().first:
        with assisting():
            training.resume(run, root=data_dir, device=device)
        leave()
        return
    config = RunFolder(run).read_config()
    worked = False
    with watched(config, run, quiet, tensorboard) as shown:

        def report(record: EpochRecord) -> None:
            nonlocal worked
            worked = True
            shown.report(record)

        done = training.resume(run, root=data_dir, device=device, report=report, tick=shown.tick)
    leave()
    if not worked:
        note(f"{run} was finished already")
    tell(done, run, as_json)
