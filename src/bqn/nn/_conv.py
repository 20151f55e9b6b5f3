"""Convolutions with quantized random weights."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from bqn.beliefs import Belief
from bqn.checks import require_positive
from bqn.levels import BINARY
from bqn.nn._linear import WeightedSum
from bqn.nn._shapes import numbers, require_input
from bqn.propagate.products import Geometry
from bqn.propagate.windows import output_size


class _Conv(WeightedSum):
    spatial: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        bias: bool = True,
        levels: Iterable[float] | Tensor = BINARY,
        method: str = "auto",
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias_levels: Iterable[float] | Tensor | None = None,
        prior: Iterable[float] | Tensor | None = None,
        init: str = "signal",
        mean_field: bool = False,
    ) -> None:
        self.in_channels = require_positive(in_channels, "in_channels")
        self.out_channels = require_positive(out_channels, "out_channels")
        groups = require_positive(groups, "groups")
        if self.in_channels % groups or self.out_channels % groups:
            raise ValueError(
                f"groups must divide in_channels and out_channels, got {groups} for {in_channels} and {out_channels}"
            )
        self.kernel_size = numbers(kernel_size, self.spatial, "kernel_size", 1)
        geometry = Geometry(
            numbers(stride, self.spatial, "stride", 1),
            numbers(padding, self.spatial, "padding", 0),
            numbers(dilation, self.spatial, "dilation", 1),
            groups,
        )
        super().__init__(
            (self.out_channels, self.in_channels // groups, *self.kernel_size),
            (self.in_channels, *self.kernel_size),
            geometry, bias, levels, bias_levels, prior, method, init, mean_field,
        )  # fmt: skip

    def _require_input(self, x: Belief) -> None:
        assert self.geometry is not None
        require_input(x, self.in_channels, axis=1, dims=(2 + self.spatial,), layer=type(self).__name__)
        stride, padding, dilation, _ = self.geometry
        for size, kernel, step, pad, spread in zip(
            x.shape[2:], self.kernel_size, stride, padding, dilation, strict=True
        ):
            if output_size(size, kernel, step, pad, spread) < 1:
                raise ValueError(
                    f"x must be at least as large as the kernel {self.kernel_size}, got spatial shape "
                    f"{tuple(x.shape[2:])} with padding {padding}"
                )

    def extra_repr(self) -> str:
        assert self.geometry is not None
        stride, padding, dilation, groups = self.geometry
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={stride}, "
            f"padding={padding}, dilation={dilation}, groups={groups}, {self._how()}"
        )


class Conv1d(_Conv):
    """Convolution over one dimension: belief `(N, in_channels, L)` to `(N, out_channels, L')`.

    Parameters as for `Conv2d`.
    """

    spatial = 1


class Conv2d(_Conv):
    """Convolution over two dimensions: belief `(N, in_channels, H, W)` to `(N, out_channels, H', W')`.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, padding, dilation : int or pair of int
        As in `torch.nn.Conv2d`. Padding is with zeros that are known: it adds neither mean nor variance.
    groups : int
        `groups=in_channels` is a depth-wise convolution; its fan-in is small, so that "auto" is exact on discrete
        input.
    bias, levels, bias_levels, prior, method, init, mean_field
        As for `Linear`.
    """

    spatial = 2
