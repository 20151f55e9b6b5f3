"""The compiled kernels: where they are, which instruction set they use, and how a plan is run.

`kernels.c` is built when the package is installed, if there is a C compiler; `available()` says whether it was. The
instruction set is the best that this machine has, unless the environment variable `BQN_KERNELS` names another one
(`portable`, `neon`, `avx2`, `avx512`, `amx`, or `numpy` for no compiled code at all). `BQN_KERNELS_LIBRARY` names
another shared library made from `kernels.c`, such as one built with sanitizers.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SETS = ("portable", "neon", "avx2", "avx512", "amx")  # in the order of the enum in kernels.c, from slow to fast
MODES = ("xor", "and", "bytes", "tiles")
KINDS = ("pack", "product", "threshold", "encode", "decode", "sum_pool", "max_pool", "or_pool", "add", "flatten")
_MAX_THREADS = 256
_ALIGNMENT = 64
_SMALL_WORK = 2**26  # products of one thread that are worth starting another for: some tens of microseconds
_threads: int | None = None

_INTEGERS = (  # line by line as in kernels.c
    *("kind", "mode"),
    *("source", "second", "target"),
    *("height", "width", "channels", "planes"),
    *("out_height", "out_width", "out_channels", "out_planes"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w"),
    *("groups", "block"),
    *("pool_h", "pool_w", "rows", "columns", "pitch"),
    *("pixel_bytes", "plane_bytes", "row_step", "column_step"),
    *("padded_height", "padded_width", "direct"),
    *("dilation_h", "dilation_w", "patch_bytes", "unused"),
    *("length", "scale", "code_scale"),
    *("levels", "low", "step", "factor_a", "factor_b"),
    *("weight_planes", "raw", "one_bit"),
)
_POINTERS = ("offsets", "weights", "constants", "classes", "thresholds", "flips")


class OpStruct(ctypes.Structure):
    """`bqn_op` of kernels.c, where the fields are explained."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in _INTEGERS),
        ("image_bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("class_count", ctypes.c_int64),
    )


class _ValueStruct(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_int64), ("bytes", ctypes.c_int64))


class _PlanStruct(ctypes.Structure):
    _fields_ = (
        ("ops", ctypes.POINTER(OpStruct)),
        ("values", ctypes.POINTER(_ValueStruct)),
        *((name, ctypes.c_int64) for name in ("count", "chunk", "values_bytes", "arena_bytes")),
    )


@cache
def _library() -> ctypes.CDLL | None:
    if sys.byteorder != "little":  # packed words are read as bytes
        return None
    if named := os.environ.get("BQN_KERNELS_LIBRARY"):
        return bind(Path(named))
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            return bind(path)
    return None


def bind(path: Path) -> ctypes.CDLL:
    """Load the kernels from a shared library."""
    library = ctypes.CDLL(os.fspath(path))
    library.bqn_op_size.restype = ctypes.c_size_t
    library.bqn_supports.argtypes = [ctypes.c_int]
    library.bqn_run.argtypes = [
        ctypes.POINTER(_PlanStruct),
        *(ctypes.c_int, ctypes.c_int),
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p),
    ]
    library.bqn_run.restype = None
    if library.bqn_op_size() != ctypes.sizeof(OpStruct):
        raise ImportError(f"{path} was built from another version of kernels.c; install bqn again")
    return library


def available() -> bool:
    """Whether the kernels were compiled when the package was installed."""
    return _library() is not None


def supported() -> tuple[str, ...]:
    """The instruction sets that can be used here, from slow to fast; none if the kernels were not compiled."""
    library = _library()
    return () if library is None else tuple(name for code, name in enumerate(SETS) if library.bqn_supports(code))


def kernels() -> str:
    """The instruction set in use: `BQN_KERNELS` if it is set, otherwise the fastest; "numpy" for no compiled code."""
    wanted = os.environ.get("BQN_KERNELS", "")
    if wanted == "numpy":
        return wanted
    here = _supported()
    if not wanted:
        return here[-1] if here else "numpy"
    if wanted not in here:
        choices = ", ".join(("numpy", *here))
        raise ValueError(f"BQN_KERNELS must be one of {choices} on this machine, got {wanted!r}")
    return wanted


_supported = cache(supported)


def threads() -> int | None:
    """The number of threads that was set, or None: as many as the work is worth."""
    return _threads


def set_threads(count: int | None) -> None:
    """Use `count` threads for batches of at least as many images; None (the default) decides by the work."""
    global _threads
    if count is not None and not 1 <= count <= _MAX_THREADS:
        raise ValueError(f"count must lie in 1 … {_MAX_THREADS} or be None, got {count}")
    _threads = count


def threads_for(images: int, work: int) -> int:
    """How many threads a batch gets, if one image takes `work` products."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = _threads or min(cores, images * work // _SMALL_WORK, _MAX_THREADS)
    return max(1, min(wanted, images))


class Plan:
    """Operations ready to run, with all that they read.

    Parameters
    ----------
    ops : list of OpStruct
    keep : arrays that the operations point to
    values : sequence of (offset, bytes)
        Where each value of one image lies; offset -1 is the input and -2 the output.
    scratch : int
        Bytes behind the values.
    chunk : int
        Images that go through the operations together.
    output : shape of one output, int32 if `integers` else uint64
    work : int
        Products of one image, which decides about threads.
    """

    def __init__(
        self,
        ops: Sequence[OpStruct],
        keep: Sequence[Array],
        values: Sequence[tuple[int, int]],
        scratch: int,
        chunk: int,
        output: tuple[tuple[int, ...], type[Any]],
        work: int,
        instructions: str,
        library: ctypes.CDLL | None = None,
    ) -> None:
        found = library or _library()
        if found is None:
            raise RuntimeError("the kernels were not compiled when bqn was installed")
        self._run = found.bqn_run
        self._set = SETS.index(instructions)
        if not found.bqn_supports(self._set):  # asking also gets the permission to use tiles
            raise ValueError(
                f"instructions must be one of {', '.join(supported())} on this machine, got {instructions}"
            )
        self._keep = keep
        self._input_bytes = next(size for offset, size in values if offset == -1)
        self._ops = (OpStruct * len(ops))(*ops)
        self._values = (_ValueStruct * len(values))(*(_ValueStruct(*each) for each in values))
        ends = [offset + -(-size // _ALIGNMENT) * _ALIGNMENT for offset, size in values if offset >= 0]
        values_bytes = chunk * max(ends, default=0)
        self._arena_bytes = values_bytes + -(-scratch // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        self._plan = _PlanStruct(self._ops, self._values, len(ops), chunk, values_bytes, self._arena_bytes)
        self._plan_pointer = ctypes.byref(self._plan)
        self._arenas: list[tuple[int, Array, int]] = []  # (threads, memory, aligned address) that nobody uses now
        self.output_shape, self.output_dtype = output
        self.work = work
        self.ops, self.instructions, self.chunk = tuple(ops), instructions, chunk

    def __call__(self, x: Array) -> Array:
        """Run a batch: C-contiguous input `(N, ...)` to `(N, *output_shape)`."""
        images = len(x)
        if x.nbytes != images * self._input_bytes or not x.flags.c_contiguous:
            raise ValueError(
                f"x must be C-contiguous with {self._input_bytes} bytes an example, got {x.dtype} {x.shape}"
            )
        result = np.empty((images, *self.output_shape), self.output_dtype)
        if images == 0:
            return result
        count = 1 if images == 1 else threads_for(images, self.work)
        arena = self._arena(count)
        self._run(self._plan_pointer, self._set, count, _address(x), images, _address(result), arena[2])
        self._arenas.append(arena)
        return result

    def _arena(self, count: int) -> tuple[int, Array, int]:
        # Calls from several threads of Python each take an arena of their own; list.pop is atomic.
        try:
            arena = self._arenas.pop()
            if arena[0] >= count:
                return arena
        except IndexError:
            pass
        memory = np.empty(count * self._arena_bytes + _ALIGNMENT, np.uint8)
        address = _address(memory)
        return count, memory, address + -address % _ALIGNMENT


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]  # a fraction of what array.ctypes.data takes
    return address
