"""Files of a run: written whole or not at all, and read as strict JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bqn import atomic, strict_json
from bqn.training.errors import CheckpointError


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content`. A crash, a kill or a full disk leaves the old file or the new one, whole."""
    try:
        atomic.write_atomic(path, content)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: Exception) -> CheckpointError:
    """The error for a failed write, a full disk above all."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CheckpointError(f"cannot write {path}: {reason}; what was saved before is unharmed")


def remove_leftovers(path: Path) -> None:
    """Delete temporary files that a killed process left beside `path`."""
    for leftover in path.parent.glob(f"{path.name}*.tmp"):
        leftover.unlink(missing_ok=True)


def read_text(path: Path) -> str:
    """The UTF-8 text of a file of the run."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def to_json(value: object, indent: int | None = None) -> str:
    """JSON without NaN and infinity, which other readers would refuse."""
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)


def parse_object(text: str, source: str) -> dict[str, Any]:
    """The JSON object in `text`; no duplicate keys, no NaN, nothing else beside it."""
    return strict_json.parse_object(text, source, CheckpointError)
