"""Whether this process is one of several that torchrun has started, without importing torch where it is not."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bqn.training.distributed import Processes


def here() -> Processes | None:
    """The processes of this run; None where torchrun has not started this one.

    Raises
    ------
    ConfigError
        What torchrun has set cannot be used.
    """
    if "RANK" not in os.environ and "bqn.training" not in sys.modules:
        return None
    from bqn.training import distributed

    return distributed.here()


def is_first() -> bool:
    """Whether this process is the one that shows and writes."""
    processes = here()
    return processes is None or processes.first
