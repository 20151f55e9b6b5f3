"""Optional libraries, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, extra: str, purpose: str) -> Any:
    """The module, or an ImportError that says which extra brings it and what for."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name not in (package, module):
            raise  # the library is there, but something that it needs is not
        raise ImportError(f'{purpose} needs {package}: pip install "bqn[{extra}]"', name=package) from None
