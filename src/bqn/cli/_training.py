"""What `train` and `resume` share: progress on standard error, a stop between two steps, the words at the end."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from bqn.cli._console import show, show_json
from bqn.cli._errors import InterruptedRunError
from bqn.training import Run, TrainConfig
from bqn.training.folder import RunFolder
from bqn.training.progress import Progress, both, progress, tensorboard


@contextmanager
def watched(config: TrainConfig, folder: Path, quiet: bool, events: bool) -> Iterator[Progress]:
    """Show a run on standard error while it goes on, and let Ctrl-C stop it where it can be continued."""
    with ExitStack() as stack:
        shown = stack.enter_context(progress(config.epochs, quiet, sys.stderr))
        report = shown.report
        if events:
            report = both(report, stack.enter_context(tensorboard(folder / "tensorboard")))
        stop = stack.enter_context(stop_on_interrupt())

        def tick(done: int, total: int) -> None:
            shown.tick(done, total)
            stop()

        try:
            yield Progress(report, tick)
        except KeyboardInterrupt:
            raise InterruptedRunError(_what_remains(folder)) from None


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], None]]:
    """A function to call between steps, which raises KeyboardInterrupt once Ctrl-C was pressed.

    In the middle of a step weights and optimizer are out of tune. Who presses again does not want to wait.
    """
    pressed = False

    def press(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def stop() -> None:
        if pressed:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread only
        yield stop
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def assisting() -> Iterator[None]:
    """For processes beside the first: Ctrl-C is for that one, which saves the run and by ending ends the others."""
    with stop_on_interrupt():
        yield


def _what_remains(folder: Path) -> str:
    if not RunFolder(folder).config.exists():
        return "training had not begun, and nothing was saved"
    return f"the run is saved, continue it with: bqn resume {shlex.quote(str(folder))}"


def tell(run: Run, folder: Path, as_json: bool) -> None:
    """The end of a run: how good it is and what to do next."""
    history = run.history
    best = history.best or (history.records[-1] if history.records else None)
    if as_json:
        summary = {"run": str(folder), "data": run.config.data, "model": run.config.model}
        ending = {"epochs": len(history.records), "stopped_early": history.stopped_early}
        show_json({**summary, **ending, "best": None if best is None else best.to_dict()})
        return
    early = ", stopped early" if history.stopped_early else ""
    if best is not None:
        scores = [f"validation NLL {best.validation_nll:.4f}"] if best.validation_nll is not None else []
        scores += [f"error {best.validation_error:.2%}"] if best.validation_error is not None else []
        scores += [f"RMSE {best.validation_rmse:.4g}"] if best.validation_rmse is not None else []
        words = ", ".join(scores) or f"ELBO {best.elbo:.4f}, no validation data"
        which = "best" if history.best else "last"
        show(f"{which} epoch {best.epoch} of {len(history.records)}{early}: {words}")
    show(f"saved in {folder}; next: bqn evaluate {shlex.quote(str(folder))}")
