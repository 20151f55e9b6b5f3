"""The linear map of a layer, a matrix product or a convolution, and its transpose."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Geometry(NamedTuple):
    """How a convolution walks over its input; one entry per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def product(x: Tensor, weight: Tensor, geometry: Geometry | None, bias: Tensor | None = None) -> Tensor:
    """The linear map of a layer: a matrix product, or a convolution where a geometry is given."""
    if geometry is None:
        if weight.dim() == 2 and (bias is None or bias.dim() == 1):
            return F.linear(x, weight, bias)
        result = x @ weight.mT  # leading dimensions of the weight are replicas
        return result if bias is None else result + bias.unsqueeze(-2)
    stride, padding, dilation, groups = geometry
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


Pair = tuple[Tensor | None, Tensor | None]


def transposed_linear(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry | None, need_x: bool, need_weight: bool,
    onto_x: Tensor | None = None, onto_weight: Tensor | None = None,
) -> Pair:  # fmt: skip
    """Gradients of `product(x, weight)` by x and by the weight, added to what is there already."""
    grad_x = _matmul_onto(onto_x, grad, weight) if need_x else None
    return grad_x, _matmul_onto(onto_weight, grad.mT, x, weight.shape) if need_weight else None


def _matmul_onto(onto: Tensor | None, a: Tensor, b: Tensor, shape: torch.Size | None = None) -> Tensor:
    if onto is not None and a.dim() == b.dim() == onto.dim() == 2:
        return torch.addmm(onto, a, b)  # no pass of its own for the sum
    result = a @ b if shape is None else (a @ b).sum_to_size(shape)
    return result if onto is None else onto.add_(result)


def transposed_convolution(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, need_x: bool, need_weight: bool,
    onto_x: Tensor | None = None, onto_weight: Tensor | None = None,
) -> Pair:  # fmt: skip
    stride, padding, dilation, groups = geometry
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups, [need_x, need_weight, False]
    )
    grad_x = grad_x if onto_x is None else onto_x.add_(grad_x)
    grad_weight = grad_weight if onto_weight is None else onto_weight.add_(grad_weight)
    return (grad_x if need_x else None), (grad_weight if need_weight else None)


def sum_per_unit(grad: Tensor, geometry: Geometry | None, shape: torch.Size) -> Tensor:
    if geometry is not None:
        return grad.sum((0, *range(2, grad.dim())))
    return grad.sum(-2) if len(shape) > 1 else grad.flatten(0, -2).sum(0)


def padded(geometry: Geometry | None) -> bool:
    return geometry is not None and any(geometry.padding)


def per_unit(values: Tensor, geometry: Geometry | None) -> Tensor:
    """One number per output unit, shaped to broadcast over the output."""
    return values.unsqueeze(-2) if geometry is None else values.reshape(-1, *(1 for _ in geometry.stride))
