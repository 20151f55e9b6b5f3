"""Writing files: all or nothing."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content`. A crash, a kill or a full disk leaves the old file or the new one, whole."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        publish(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def publish(written: Path, path: Path) -> None:
    """Give a finished file on the same disk its final name, durably."""
    with open(written, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(written, path)
    if os.name == "posix":  # elsewhere a folder cannot be opened to be synced
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
