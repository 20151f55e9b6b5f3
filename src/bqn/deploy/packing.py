"""Packing: quantized networks in, one file out."""

from __future__ import annotations

import copy
import math
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module

from bqn.atomic import write_atomic
from bqn.deploy.container import from_bytes, to_bytes
from bqn.deploy.folding import Symbol, UnpackableError
from bqn.deploy.lowering import REASON, Lowering
from bqn.deploy.program import Array, Packed, PackedError, Program
from bqn.deploy.tracing import lower
from bqn.heads import GaussianHead, SoftmaxHead
from bqn.network import QuantizedNetwork

KINDS = ("pixels", "features")
Scale = Sequence[npt.ArrayLike | Tensor]


def pack(
    networks: QuantizedNetwork | Sequence[QuantizedNetwork],
    path: str | os.PathLike[str],
    *,
    inputs: str | None = None,
    input_shape: Sequence[int] | None = None,
    input_scale: Scale | None = None,
    target_scale: Scale | None = None,
    classes: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
) -> Packed:
    """Write quantized networks to one packed file, as `bqn.load_packed` reads it.

    Parameters
    ----------
    networks : QuantizedNetwork or sequence of S of them
        From `net.sample()` or `net.mode()`; all of one architecture. Several are an ensemble, whose predictions are
        averaged.
    path : file to write
    inputs : "pixels" or "features"
        What the networks take: uint8 pixels, seen as `(2x - 255) / 256`, or real numbers. By default features for a
        regression and pixels otherwise.
    input_shape : shape of one example, or None
        `(F,)`, `(C, L)` or `(C, H, W)`. Checked against the layers, and needed by the exporters. Without it any shape
        is taken that the layers allow; with an `input_scale` it is `(F,)`.
    input_scale : (mean, std), each float32 `(F,)`, tensors or arrays, or None
        Standardization of features, done by the packed model.
    target_scale : (mean, std), each float32 `(out,)`, tensors or arrays, or None
        Standardization of the targets of a regression: the packed model predicts in their own units.
    classes : names of the classes
    about : texts and numbers by name to keep in the file

    Raises
    ------
    UnpackableError
        A ValueError: a layer cannot be packed; the message names it and says why.
    """
    packed = pack_in_memory(
        networks, inputs=inputs, input_shape=input_shape, input_scale=input_scale, target_scale=target_scale,
        classes=classes, about=about,
    )  # fmt: skip
    write_atomic(Path(path), to_bytes(packed))
    return packed


@torch.no_grad()
def pack_in_memory(
    networks: QuantizedNetwork | Sequence[QuantizedNetwork],
    *,
    inputs: str | None = None,
    input_shape: Sequence[int] | None = None,
    input_scale: Scale | None = None,
    target_scale: Scale | None = None,
    classes: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
) -> Packed:
    """What `pack` writes, without a file; arguments as there."""
    members = [networks] if isinstance(networks, Module) else list(networks)
    if not members or not all(isinstance(member, QuantizedNetwork) for member in members):
        kinds = sorted({type(member).__name__ for member in members}) or "nothing"
        raise ValueError(f"networks must come from net.sample() or net.mode(), got {kinds}")
    members = [copy.deepcopy(member).cpu().eval() for member in members]
    head = members[0].head
    kind = inputs or ("features" if isinstance(head, GaussianHead) else "pixels")
    if kind not in KINDS:
        raise ValueError(f"inputs must be one of {', '.join(KINDS)}, got {inputs!r}")
    if kind == "pixels" and input_scale is not None:
        raise ValueError("input_scale is for features, pixels are always (2x - 255) / 256")
    if isinstance(head, SoftmaxHead) and target_scale is not None:
        raise ValueError("target_scale is for regression, but the networks have a classification head")
    shape = None if input_shape is None else _shape(input_shape)
    scales = {
        name: _scale(f"{name}_scale", scale)
        for name, scale in (("input", input_scale), ("target", target_scale))
        if scale is not None
    }
    if "input" in scales:
        width = scales["input"][0].shape
        if shape not in (None, width):
            raise ValueError(f"input_scale must be of input_shape, {shape}, got {len(scales['input'][0])} features")
        shape = width
    _require_about(about)
    lowering = Lowering(len(members), kind, shape)
    result = _settle(lower([member.body for member in members], lowering))
    _store_heads(lowering, [member.head for member in members])
    for name, (mean, std) in scales.items():
        lowering.store(f"{name}.mean", [mean])
        lowering.store(f"{name}.std", [std])
    program = Program(
        tuple(lowering.ops),
        result.name,
        float(result.unit),
        "gaussian" if isinstance(head, GaussianHead) else "softmax",
        tuple(classes),
    )
    # Read again at once: what cannot be read must not be written.
    content = to_bytes(Packed(program, len(members), lowering.arrays, dict(about or {})))
    try:
        return from_bytes(content)
    except PackedError as error:
        raise UnpackableError(str(error)) from None


def _shape(given: Sequence[int]) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(size) for size in given)
    except TypeError:
        shape = ()
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise ValueError(f"input_shape must be (features,), (C, L) or (C, H, W), got {given!r}")
    return shape


def _scale(name: str, scale: Scale) -> tuple[Array, Array]:
    parts = [_float32(torch.as_tensor(part)) for part in scale]
    if len(parts) != 2 or parts[0].ndim != 1 or parts[0].shape != parts[1].shape:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise ValueError(f"{name} must be a mean and a std of one number a column each, got the shapes {shapes}")
    mean, std = parts
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
        raise ValueError(f"{name} must be finite, and its std positive, in float32")
    return mean, std


def _require_about(about: Mapping[str, Any] | None) -> None:
    kinds = (str, int, float, NoneType)
    entries = {} if about is None else about
    if not isinstance(entries, Mapping) or not all(
        isinstance(name, str) and isinstance(value, kinds) and (not isinstance(value, float) or math.isfinite(value))
        for name, value in entries.items()
    ):
        raise ValueError(f"about must hold texts and numbers by name, got {about}")


def _settle(result: Symbol) -> Symbol:
    settled = result.settled()
    if settled is None:
        raise UnpackableError(f"the head {REASON}")
    if settled.real and settled.name == "input":
        raise UnpackableError("the body has no layer; there is nothing to pack")
    return settled


def _store_heads(lowering: Lowering, heads: Sequence[Any]) -> None:
    if len({type(head) for head in heads}) > 1:
        raise UnpackableError("the networks have different heads")
    if isinstance(heads[0], SoftmaxHead):
        lowering.store("head.log_scale", [_float32(head.log_scale) for head in heads])
    elif isinstance(heads[0], GaussianHead):
        lowering.store("head.weight", [_float32(head.weight) for head in heads])
        lowering.store("head.log_noise", [_float32(head.log_noise) for head in heads])
    else:
        raise UnpackableError(f"the head is a {type(heads[0]).__name__}, expected a SoftmaxHead or a GaussianHead")


def _float32(value: Tensor) -> Array:
    return np.array(value.detach().cpu().float().numpy(), order="C")
