"""Deployment: files of a few bits a weight, and an integer runtime that needs no torch.

`from bqn.deploy import load_packed` imports numpy and safetensors and nothing else. Packing, which needs torch, and
exporters are imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bqn.deploy._native import set_threads
from bqn.deploy._native import supported as supported_kernels
from bqn.deploy.container import from_bytes, load, to_bytes
from bqn.deploy.model import Moments, PackedModel, Uncertainty, load_packed
from bqn.deploy.program import Lattice, Packed, PackedError, Program

if TYPE_CHECKING:
    from bqn.deploy.c_source import to_c
    from bqn.deploy.folding import UnpackableError
    from bqn.deploy.html import to_html
    from bqn.deploy.onnx import to_onnx
    from bqn.deploy.packing import pack, pack_in_memory

__all__ = [
    "Lattice",
    "Moments",
    "Packed",
    "PackedError",
    "PackedModel",
    "Program",
    "Uncertainty",
    "UnpackableError",
    "from_bytes",
    "load",
    "load_packed",
    "pack",
    "pack_in_memory",
    "set_threads",
    "supported_kernels",
    "to_bytes",
    "to_c",
    "to_html",
    "to_onnx",
]

_LATER = {
    "pack": "packing",
    "pack_in_memory": "packing",
    "UnpackableError": "folding",
    "to_c": "c_source",
    "to_html": "html",
    "to_onnx": "onnx",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"bqn.deploy.{_LATER[name]}"), name)
    raise AttributeError(f"module 'bqn.deploy' has no attribute {name!r}")
