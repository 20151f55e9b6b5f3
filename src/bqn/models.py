"""The paper's architectures, each a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
) -> Network:
    """Fully connected classifier on `(N, in_features)`, or on anything that flattens to it."""
    layers: list[nn.Layer] = [nn.Flatten()]
    width = in_features
    for units in hidden:
        layers.append(nn.Linear(width, units, bias=not batch_norm, levels=levels, init=init))
        if batch_norm:
            layers.append(nn.BatchNorm1d(units))
        layers.append(_activation(activations))
        width = units
    layers.append(nn.Linear(width, classes, levels=levels, init=init))
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
) -> Network:
    """The paper's convolutional classifier on `(N, C, H, W)`: 5 × 5 convolutions, 2 × 2 average pooling, one hidden
    layer.

    `pool_first` puts the pooling before batch norm and sign, otherwise it follows them.
    """
    depth, height, width = image_shape
    layers: list[nn.Layer] = []
    for units in channels:
        layers.append(nn.Conv2d(depth, units, 5, padding=2, bias=False, levels=levels, init=init))
        rest: list[nn.Layer] = [nn.BatchNorm2d(units), _activation(activations)]
        layers += [nn.AvgPool2d(2), *rest] if pool_first else [*rest, nn.AvgPool2d(2)]
        depth, height, width = units, height // 2, width // 2
    layers += [
        nn.Flatten(),
        nn.Linear(depth * height * width, hidden, bias=False, levels=levels, init=init),
        nn.BatchNorm1d(hidden),
        _activation(activations),
        nn.Linear(hidden, classes, levels=levels, init=init),
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
) -> Network:
    """The paper's small VGG on `(N, C, H, W)`: pairs of 3 × 3 convolutions, 2 × 2 max pooling after each pair."""
    depth, height, width = image_shape
    layers: list[nn.Layer] = []
    for units in channels:
        for position in range(2):
            layers.append(nn.Conv2d(depth, units, 3, padding=1, bias=False, levels=levels, init=init))
            layers += [nn.BatchNorm2d(units), _activation(activations)]
            if position == 1:
                layers.append(nn.MaxPool2d(2))
            depth = units
        height, width = height // 2, width // 2
    layers += [
        nn.Flatten(),
        nn.Linear(depth * height * width, hidden, bias=False, levels=levels, init=init),
        nn.BatchNorm1d(hidden),
        _activation(activations),
        nn.Linear(hidden, classes, levels=levels, init=init),
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
) -> Network:
    """A residual network on `(N, C, H, W)`: per stage one 3 × 3 convolution, then shortcuts around pairs of them.

    Each later stage halves the image by 2 × 2 average pooling; the last is averaged over all positions.
    """

    def unit(inside: int, outside: int) -> list[nn.Layer]:
        convolution = nn.Conv2d(inside, outside, 3, padding=1, bias=False, levels=levels, init=init)
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
    layers.append(nn.Linear(depth, classes, levels=levels, init=init))
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
) -> Network:
    """Regression on `(N, in_features)`: quantized hidden layers and a Gaussian head with real weights.

    With `batch_norm` the hidden layers have no bias of their own, and `bias_levels` plays no part.
    """
    layers: list[nn.Layer] = []
    width = in_features
    for units in hidden:
        layers.append(nn.Linear(width, units, bias=not batch_norm, levels=levels, bias_levels=bias_levels, init=init))
        if batch_norm:
            layers.append(nn.BatchNorm1d(units))
        layers.append(_activation(activations))
        width = units
    return Network(nn.Sequential(*layers), GaussianHead(width, out_features))
