"""A packed network to use: numpy in, probabilities or moments out."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bqn.deploy import _native
from bqn.deploy._plan import NotNative, compile_program
from bqn.deploy.container import load
from bqn.deploy.program import FEATURE_BITS, FEATURE_LIMIT, Array, Packed
from bqn.deploy.runtime import NumpyPlan
from bqn.deploy.shapes import infer_sizes

Plan: TypeAlias = Callable[[Array], Array]
Floats: TypeAlias = npt.NDArray[np.float64]
_MOST_SHAPES = 8  # for which plans are kept


class Moments(NamedTuple):
    """Moments of a predictive distribution, float64 `(N, outputs)`; `kurtosis` is 3 for a normal one."""

    mean: Floats
    var: Floats
    skewness: Floats
    kurtosis: Floats


class Uncertainty(NamedTuple):
    """What is uncertain about N examples, and why.

    For classes in nats, `(N,)`: the entropy of the prediction, the mean entropy of the members, and the difference. For
    regression as variances, `(N, outputs)`. A single network cannot doubt itself: its `epistemic` is zero.
    """

    total: Floats
    aleatoric: Floats
    epistemic: Floats


class PackedModel:
    """A packed network, or an ensemble of them, as `load_packed` returns it.

    Calling it takes examples `(N, ...)`, uint8 pixels or real-valued features as they were when the network was packed,
    and returns class probabilities float64 `(N, K)` averaged over the members, or the `Moments` of a regression in the
    units of its targets.

    Parameters
    ----------
    packed : Packed
    kernels : str or None
        Which kernels to use: "numpy", or an instruction set of `bqn.deploy.supported_kernels()`. By default what the
        environment variable BQN_KERNELS names, or else the fastest. All give the same integers.
    """

    def __init__(self, packed: Packed, kernels: str | None = None) -> None:
        self.packed = packed
        self.program = packed.program
        self._kernels = _native.kernels() if kernels is None else _require_kernels(kernels)
        self._plans: dict[tuple[int, ...], list[Plan]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the plans, which point into memory; a copy makes its own."""
        return {**self.__dict__, "_plans": {}}

    def __repr__(self) -> str:
        about = ", ".join(str(self.packed.about[key]) for key in ("data", "model") if self.packed.about.get(key))
        networks = "1 network" if self.members == 1 else f"{self.members} networks"
        shape = "?" if self.input_shape is None else "×".join(map(str, self.input_shape))
        kind = f"{len(self.classes)} classes" if self.classes else self.task
        words = [about, networks, f"{self.program.input.kind} {shape}", kind, f"kernels {self.kernels}"]
        return f"PackedModel({'; '.join(filter(None, words))})"

    @property
    def kernels(self) -> str:
        """The kernels that it runs on: those asked for, or "numpy" where they cannot do this program."""
        plans = [plan for each in list(self._plans.values()) for plan in each]
        by_numpy = self.program.input.kind == "features" or any(isinstance(plan, NumpyPlan) for plan in plans)
        return "numpy" if by_numpy else self._kernels

    @property
    def members(self) -> int:
        """Networks in the ensemble."""
        return self.packed.members

    @property
    def task(self) -> str:
        return "classification" if self.program.head == "softmax" else "regression"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, if the file has them."""
        return self.program.classes

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Shape of one example, if the file says."""
        return self.program.input.shape

    def __call__(self, x: npt.ArrayLike) -> Floats | Moments:
        if self.task == "classification":
            members = self.member_probabilities(x)
            average: Floats = members[0] if len(members) == 1 else members.mean(0)
            return average
        return _mix(self.member_moments(x))

    def logits(self, x: npt.ArrayLike) -> list[Array]:
        """The integers before the head, `(N, outputs)`, one array a member; a float network gives `step` times them."""
        examples = self._input(np.asarray(x))
        plans = self._plans_for(examples.shape[1:])
        if plans[0] is plans[-1]:
            return [plans[0](examples)] * self.members
        return [plan(examples) for plan in plans]

    def member_logits(self, member: int, x: npt.ArrayLike) -> Array:
        """The integers of one member alone, `(N, outputs)`."""
        examples = self._input(np.asarray(x))
        return self._plans_for(examples.shape[1:])[member](examples)

    def outputs(self, shape: tuple[int, ...]) -> int:
        """Classes, or columns of the regression target, for examples of a shape."""
        if self.task == "regression":
            return int(self.packed.arrays["head.weight"].shape[1])
        return infer_sizes(self.program, shape)[self.program.output][0]

    @property
    def step(self) -> float:
        """The value of one integer of `logits` in the float network."""
        return self.program.step

    def member_probabilities(self, x: npt.ArrayLike) -> Floats:
        """Class probabilities of each member, `(S, N, K)`."""
        if self.task != "classification":
            raise ValueError("this network is a regression, it has no class probabilities; see member_moments")
        parts = [_softmax(scale * part) for scale, part in zip(self._scales, self.logits(x), strict=True)]
        return parts[0][None] if len(parts) == 1 else np.stack(parts)

    @cached_property
    def _scales(self) -> list[float]:
        """The value of one integer in the softmax of each member."""
        logs = [np.float64(self.packed.array("head.log_scale", member)) for member in range(self.members)]
        return [float(self.step / np.exp(log)) for log in logs]

    def member_moments(self, x: npt.ArrayLike) -> list[Moments]:
        """The moments that each member predicts, in the units of the targets."""
        if self.task != "regression":
            raise ValueError("this network is a classifier, it has no moments; see member_probabilities")
        shift, unit = self._target_scale()
        moments = []
        for member, integers in enumerate(self.logits(x)):
            weight, log_noise = (
                self.packed.array(f"head.{name}", member).astype(np.float64) for name in ("weight", "log_noise")
            )
            mean = (self.step * integers) @ weight.T
            var = np.broadcast_to(np.exp(log_noise) * unit**2, mean.shape)
            moments.append(Moments(mean * unit + shift, var.copy(), np.zeros_like(mean), np.full_like(mean, 3.0)))
        return moments

    def uncertainty(self, x: npt.ArrayLike) -> Uncertainty:
        """How uncertain the prediction is, taken apart into noise (aleatoric) and doubt (epistemic)."""
        if self.task == "classification":
            members = self.member_probabilities(x)
            total, within = _entropy(members.mean(0)), _entropy(members).mean(0)
            return Uncertainty(total, np.minimum(within, total), np.maximum(total - within, 0.0))
        moments = self.member_moments(x)
        noise = np.mean([part.var for part in moments], 0)
        doubt = np.var([part.mean for part in moments], 0)
        return Uncertainty(noise + doubt, noise, doubt)

    # --- from examples to integers ----------------------------------------------------------------------------------

    def _plans_for(self, shape: tuple[int, ...]) -> list[Plan]:
        if shape not in self._plans:
            if len(self._plans) >= _MOST_SHAPES:
                self._plans.clear()
            self._plans[shape] = (
                [self._plan(member, shape) for member in range(self.members)]
                if self._members_differ
                else [self._plan(0, shape)] * self.members
            )
        return self._plans[shape]

    @cached_property
    def _members_differ(self) -> bool:
        """Whether any member has weights or thresholds of its own; a file may name thousands that have none."""
        head = self.program.head_arrays
        return any(len(array) > 1 for name, array in self.packed.arrays.items() if name not in head)

    def _plan(self, member: int, shape: tuple[int, ...]) -> Plan:
        plain = NumpyPlan(self.packed, member, shape)  # checks that the shape fits
        if self._kernels == "numpy":
            return plain
        try:
            return compile_program(self.packed, member, shape, self._kernels)
        except NotNative:
            return plain

    def _input(self, x: Array) -> Array:
        """Examples as integers: uint8 pixels, or features in units of 2^-24 as float64."""
        if x.ndim < 2:
            raise ValueError(f"x must have a batch dimension first, got shape {x.shape}")
        expected = self.input_shape
        if expected is not None and x.shape[1:] != expected:
            flat = (int(np.prod(expected)),)
            if x.shape[1:] != flat:
                raise ValueError(f"x must have shape (N, {', '.join(map(str, expected))}), got {x.shape}")
            x = x.reshape(len(x), *expected)
        rank = self.program.input.rank
        if rank is not None and x.ndim != 1 + rank:
            form = ("N, F", "N, C, L", "N, C, H, W")[rank - 1]
            raise ValueError(f"x must have shape ({form}), as the layers need it, got {x.shape}")
        return np.ascontiguousarray(_pixels(x) if self.program.input.kind == "pixels" else self._features(x))

    def _features(self, x: Array) -> Floats:
        """Standardized in float32, as in training, then rounded to multiples of 2^-24."""
        if x.dtype.kind not in "fiu":
            raise ValueError(f"x must hold numbers, got {x.dtype}")
        values: Array = x.astype(np.float32)
        if "input.mean" in self.packed.arrays:
            mean, std = (self.packed.array(f"input.{name}", 0) for name in ("mean", "std"))
            if x.shape[1:] != mean.shape:
                raise ValueError(f"x must have shape (N, {len(mean)}), got {x.shape}")
            values = (values - mean) / std
        if not np.isfinite(values).all():
            raise ValueError("x must be finite, it has NaN or infinite values")
        if np.abs(values).max(initial=0) >= FEATURE_LIMIT:
            raise ValueError(f"x has values beyond ±{FEATURE_LIMIT} (standardized, if the file has a standardization)")
        return np.rint(values.astype(np.float64) * 2.0**FEATURE_BITS)

    def _target_scale(self) -> tuple[Floats, Floats]:
        if "target.mean" not in self.packed.arrays:
            return np.zeros(1), np.ones(1)
        shift, unit = (self.packed.array(f"target.{name}", 0).astype(np.float64) for name in ("mean", "std"))
        return shift, unit


def load_packed(path: str | os.PathLike[str], kernels: str | None = None) -> PackedModel:
    """Read a packed file. It may come from anywhere: it is checked as a whole, and nothing in it is executed.

    Parameters
    ----------
    path : file that `bqn.pack` or `bqn pack` wrote
    kernels : str or None
        As for `PackedModel`.

    Raises
    ------
    PackedError
        A ValueError: the file is damaged, or not a packed network.
    """
    return PackedModel(load(path), kernels)


def _require_kernels(name: str) -> str:
    known = ("numpy", *_native.supported())
    if name not in known:
        raise ValueError(f"kernels must be one of {', '.join(known)} on this machine, got {name!r}")
    return name


def _pixels(x: Array) -> npt.NDArray[np.uint8]:
    """uint8 pixels from uint8, from integers from 0 to 255, or from `(2x - 255) / 256`."""
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind in "iu":
        pixels = x
    elif x.dtype.kind == "f":
        pixels = (x.astype(np.float64) * 256 + 255) / 2
    else:
        raise ValueError(f"x must hold pixels, got {x.dtype}")
    codes: npt.NDArray[np.uint8] = np.clip(np.nan_to_num(pixels), 0, 255).astype(np.uint8)
    if not np.array_equal(codes, pixels):
        raise ValueError(
            "x must be uint8 pixels, or the network's view of them, (2x - 255) / 256; this network takes no other real "
            "numbers (pack it with inputs='features' for those)"
        )
    return codes


def _softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    result: Floats = shifted / shifted.sum(-1, keepdims=True)
    return result


def _entropy(probs: Floats) -> Floats:
    result: Floats = -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(-1)
    return result


def _mix(parts: list[Moments]) -> Moments:
    """Moments of the mixture with equal weights of normal predictions."""
    mean = np.mean([part.mean for part in parts], 0)
    gaps = np.stack([part.mean for part in parts]) - mean
    variances = np.stack([part.var for part in parts])
    var = (variances + gaps**2).mean(0)
    third = (3 * gaps * variances + gaps**3).mean(0)
    fourth = (3 * variances**2 + 6 * gaps**2 * variances + gaps**4).mean(0)
    return Moments(mean, var, third / var**1.5, fourth / var**2)
