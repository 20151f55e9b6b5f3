"""What can go wrong in a training run, each with one line that says what to do about it."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting that is unknown, of the wrong type, out of range, or does not fit the model or the data."""


class CheckpointError(ValueError):
    """A run folder or one of its files that cannot be read, does not fit the network, or could not be written."""


class LostProcessError(RuntimeError):
    """Another process of the run has ended or cannot be reached, and this one cannot go on without it."""


class DivergedError(RuntimeError):
    """The loss, a gradient or the validation NLL was not finite, and training stopped before it could do harm.

    Attributes
    ----------
    epoch, step : int
        Where it happened, both counted from 1.
    term : str
        What was not finite: "log-likelihood", "KL", a gradient of one of them, or "validation NLL".
    where : str
        The first parameter or layer that shows it.
    """

    def __init__(self, epoch: int, step: int, term: str, where: str, saved: str = "") -> None:
        self.epoch, self.step, self.term, self.where = epoch, step, term, where
        super().__init__(f"training stopped at epoch {epoch}, step {step}: the {term} is not finite, {where}{saved}")
