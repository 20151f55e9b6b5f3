"""The paper's architectures, each a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module

from bqn import nn
from bqn.heads import GaussianHead, SoftmaxHead
from bqn.levels import BINARY, as_levels
from bqn.network import Network


def _activation(activations: Iterable[float] | Tensor) -> nn.Quantize:
    levels = as_levels(activations, "activations", at_least=2)
    return nn.Sign() if levels == BINARY else nn.Quantize(levels)


def mlp(
    in_features: int,
    classes: int,
    hidden: Sequence[int] = (512, 256),
    levels: Iterable[float] | Tensor = BINARY,
    activations: Iterable[float] | Tensor = BINARY,
    batch_norm: bool = True,
    init: str = "signal",
    mean_field: bool = False,
) -> Network:
    """Fully connected classifier on `(N, in_features)`, or on anything that flattens to it."""
    weights: dict[str, Any] = {"levels": levels, "init": init, "mean_field": mean_field}
    layers: list[nn.Layer] = [nn.Flatten()]
    width = in_features
    for units in hidden:
        layers.append(nn.Linear(width, units, bias=not batch_norm, **weights))
        if batch_norm:
            layers.append(nn.BatchNorm1d(units))
        layers.append(_activation(activations))
        width = units
    layers.append(nn.Linear(width, classes, **weights))
    return Network(nn.Sequential(*layers), SoftmaxHead(width))


def cnn(
    image_shape: tuple[int, int, int],
    classes: int,
    channels: Sequence[int] = (64, 64),
    hidden: int = 1024,
    pool_first: bool = True,
    levels: Iterable[float] | Tensor = BINARY,
    activations: Iterable[float] | Tensor = BINARY,
    init: str = "signal",
    mean_field: bool = False,
) -> Network:
    """The paper's convolutional classifier on `(N, C, H, W)`: 5 × 5 convolutions, 2 × 2 average pooling, one hidden
    layer.

    `pool_first` puts the pooling before batch norm and sign, otherwise it follows them.
    """
    depth, height, width = image_shape
    weights: dict[str, Any] = {"levels": levels, "init": init, "mean_field": mean_field}
    layers: list[nn.Layer] = []
    for units in channels:
        layers.append(nn.Conv2d(depth, units, 5, padding=2, bias=False, **weights))
        rest: list[nn.Layer] = [nn.BatchNorm2d(units), _activation(activations)]
        layers += [nn.AvgPool2d(2), *rest] if pool_first else [*rest, nn.AvgPool2d(2)]
        depth, height, width = units, height // 2, width // 2
    layers += [
        nn.Flatten(),
        nn.Linear(depth * height * width, hidden, bias=False, **weights),
        nn.BatchNorm1d(hidden),
        _activation(activations),
        nn.Linear(hidden, classes, **weights),
    ]
    return Network(nn.Sequential(*layers), SoftmaxHead(hidden))


def vgg(
    image_shape: tuple[int, int, int],
    classes: int,
    channels: Sequence[int] = (128, 256, 512),
    hidden: int = 1024,
    levels: Iterable[float] | Tensor = BINARY,
    activations: Iterable[float] | Tensor = BINARY,
    init: str = "signal",
    mean_field: bool = False,
) -> Network:
    """The paper's small VGG on `(N, C, H, W)`: pairs of 3 × 3 convolutions, 2 × 2 max pooling after each pair."""
    depth, height, width = image_shape
    weights: dict[str, Any] = {"levels": levels, "init": init, "mean_field": mean_field}
    layers: list[nn.Layer] = []
    for units in channels:
        for position in range(2):
            layers.append(nn.Conv2d(depth, units, 3, padding=1, bias=False, **weights))
            layers += [nn.BatchNorm2d(units), _activation(activations)]
            if position == 1:
                layers.append(nn.MaxPool2d(2))
            depth = units
        height, width = height // 2, width // 2
    layers += [
        nn.Flatten(),
        nn.Linear(depth * height * width, hidden, bias=False, **weights),
        nn.BatchNorm1d(hidden),
        _activation(activations),
        nn.Linear(hidden, classes, **weights),
    ]
    return Network(nn.Sequential(*layers), SoftmaxHead(hidden))


def resnet(
    image_shape: tuple[int, int, int],
    classes: int,
    channels: Sequence[int] = (64, 128, 256),
    blocks: int = 2,
    levels: Iterable[float] | Tensor = BINARY,
    activations: Iterable[float] | Tensor = BINARY,
    init: str = "signal",
    mean_field: bool = False,
) -> Network:
    """A residual network on `(N, C, H, W)`: per stage one 3 × 3 convolution, then shortcuts around pairs of them.

    Each later stage halves the image by 2 × 2 average pooling; the last is averaged over all positions.
    """
    weights: dict[str, Any] = {"levels": levels, "init": init, "mean_field": mean_field}

    def unit(inside: int, outside: int) -> list[nn.Layer]:
        convolution = nn.Conv2d(inside, outside, 3, padding=1, bias=False, **weights)
        return [convolution, nn.BatchNorm2d(outside)]

    depth, height, width = image_shape
    layers: list[Module] = []
    for stage, units in enumerate(channels):
        if stage:
            layers.append(nn.AvgPool2d(2))
            height, width = height // 2, width // 2
        layers += [*unit(depth, units), _activation(activations)]
        for _ in range(blocks):
            layers += [
                nn.Shortcut(*unit(units, units), _activation(activations), *unit(units, units)),
                _activation(activations),
            ]
        depth = units
    layers += [nn.AvgPool2d((height, width), method="clt"), nn.Flatten()]
    layers.append(nn.Linear(depth, classes, **weights))
    return Network(nn.Sequential(*layers), SoftmaxHead(depth))


def regressor(
    in_features: int,
    hidden: Sequence[int] = (50,),
    out_features: int = 1,
    levels: Iterable[float] | Tensor = BINARY,
    bias_levels: Iterable[float] | Tensor | None = None,
    activations: Iterable[float] | Tensor = BINARY,
    batch_norm: bool = False,
    init: str = "signal",
    mean_field: bool = False,
) -> Network:
    """Regression on `(N, in_features)`: quantized hidden layers and a Gaussian head with real weights.

    With `batch_norm` the hidden layers have no bias of their own, and `bias_levels` plays no part.
    """
    weights: dict[str, Any] = {"levels": levels, "init": init, "mean_field": mean_field}
    layers: list[nn.Layer] = []
    width = in_features
    for units in hidden:
        layers.append(nn.Linear(width, units, bias=not batch_norm, bias_levels=bias_levels, **weights))
        if batch_norm:
            layers.append(nn.BatchNorm1d(units))
        layers.append(_activation(activations))
        width = units
    return Network(nn.Sequential(*layers), GaussianHead(width, out_features))
