"""Memory that ends where nobody may read: for instructions that the address sanitizer does not watch (AMX tiles)."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from bqn.deploy import _native

_PAGE = mmap.PAGESIZE
_library = ctypes.CDLL(None, use_errno=True)
_library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded_arena(plan: _native.Plan, count: int) -> tuple[int, np.ndarray, int]:
    """An arena that a page without permissions follows; in the place of `Plan._arena`."""
    size = count * plan._arena_bytes
    pages = -(-size // _PAGE) * _PAGE
    memory = np.frombuffer(mmap.mmap(-1, pages + _PAGE), np.uint8)
    address = memory.ctypes.data
    if _library.mprotect(address + pages, _PAGE, 0):
        raise OSError(ctypes.get_errno(), "mprotect failed")
    return count, memory, address + pages - size
