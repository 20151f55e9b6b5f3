"""Writing files: all or nothing."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content`. A crash, a kill or a full disk leaves the old file or the new one, whole.

    Errors name `path`: a full disk names no file by itself, and nobody knows the temporary one.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        publish(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # such as a name that is too long: what went wrong before is what counts
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None
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
