"""Networks to pack: small, of odd sizes, with batch norm statistics that are not trivial."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import reject
from hypothesis import strategies as st

import bqn
from bqn import nn
from bqn.data import to_input
from bqn.deploy import PackedModel, from_bytes, pack_in_memory, to_bytes

LEVELS = (bqn.BINARY, bqn.TERNARY, bqn.QUATERNARY, (-1.0, -0.25, 0.5, 1.0), (0.0, 1.0), (-2.0, 6.0))
ACTIVATIONS = (bqn.BINARY, bqn.TERNARY, bqn.QUATERNARY, (-0.5, 0.0, 1.5), (0.0, 1.0))
BIAS_LEVELS = (None, (-0.25, 0.0, 0.25), (-1.0, 1.0))


def pixels(count: int, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Random uint8 examples; the darkest and the brightest are among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    x[0], x[1 % count] = 0, 255
    return x


def disturb(net: bqn.Network, shape: tuple[int, ...], seed: int = 0, trained: bool = True) -> bqn.Network:
    """Statistics and scales of every kind: negative, zero, tiny; with `trained`, shifted sums behind them."""
    generator = torch.Generator().manual_seed(seed)
    if trained:
        net.train()
        with torch.no_grad():
            net(to_input(pixels(8, shape, seed + 1)))
    with torch.no_grad():
        for norm in net.modules():
            if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)):
                count = norm.num_features
                if not trained:
                    norm.running_mean.copy_(torch.randn(count, generator=generator).mul(3).round())
                    norm.running_var.copy_(torch.rand(count, generator=generator) * 20 + 0.01)
                if norm.weight is not None:
                    norm.weight.normal_(generator=generator)
                    norm.bias.normal_(generator=generator)
                    norm.weight[0] = 0.0
                    norm.weight[-1] = 1e-7
                    norm.bias[count // 2] = 0.0
    return net.eval()


def packed_model(networks: object, kernels: str = "numpy", **options: object) -> PackedModel:
    """Packed, written, read again."""
    return PackedModel(from_bytes(to_bytes(pack_in_memory(networks, **options))), kernels)  # type: ignore[arg-type]


def assert_exact(networks: list[bqn.QuantizedNetwork], x: torch.Tensor, **options: object) -> PackedModel:
    """The packed networks must give the integers of the float networks, every one of them."""
    model = packed_model(networks, **options)
    given = model.logits(x.numpy())
    for network, integers in zip(networks, given, strict=True):
        with torch.no_grad():
            expected = network(to_input(x)).double().numpy()
        np.testing.assert_array_equal(integers * model.step, expected)
    compiled = PackedModel(model.packed)
    if compiled.kernels != "numpy":
        np.testing.assert_array_equal(compiled.logits(x.numpy()), given)
    return model


def sampled(net: bqn.Network, count: int = 2, seed: int = 0) -> list[bqn.QuantizedNetwork]:
    generator = torch.Generator().manual_seed(seed)
    return [net.sample(generator) for _ in range(count)]


@st.composite
def image_networks(draw: st.DrawFn) -> tuple[bqn.Network, tuple[int, int, int]]:
    """Two convolutions with all that may stand between them, and a linear layer."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    shape = (pick(1, 2, 3), draw(st.integers(6, 13)), draw(st.integers(6, 13)))
    first, second = pick(2, 5, 9, 65), pick(4, 8, 33, 70)
    bias = {"bias": pick(True, False), "bias_levels": pick(*BIAS_LEVELS), "method": "clt"}
    layers: list[torch.nn.Module] = [
        nn.Conv2d(shape[0], first, pick(1, 2, 3, (1, 3)), padding=pick(0, 1, (2, 1)), levels=pick(*LEVELS), **bias)
    ]
    layers += _between(draw, first)
    groups = pick(1, 1, 2) if first % 2 == 0 and second % 2 == 0 else 1
    layers.append(
        nn.Conv2d(
            first, second, pick(1, 2, 3), stride=pick(1, 2), padding=pick(1, 2), dilation=pick(1, 2), groups=groups,
            levels=pick(*LEVELS), **bias,
        )
    )  # fmt: skip
    layers += _between(draw, second)
    if pick(True, False):
        inner = nn.Conv2d(second, second, 3, padding=1, bias=False, method="clt")
        layers.append(nn.Shortcut(inner, nn.BatchNorm2d(second)))
        layers.append(nn.Sign())
    layers.append(nn.Flatten())
    try:
        with torch.no_grad():
            features = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
    except ValueError:  # the image is smaller than a window
        reject()
    layers.append(nn.Linear(features, 4, levels=pick(*LEVELS), bias_levels=pick(*BIAS_LEVELS)))
    return bqn.Network(nn.Sequential(*layers), bqn.SoftmaxHead(features)), shape


def _between(draw: st.DrawFn, channels: int) -> list[torch.nn.Module]:
    """Normalization, quantizer and pooling, in one of their orders."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    norm = [nn.BatchNorm2d(channels, affine=pick(True, True, False))] if pick(True, True, False) else []
    levels = pick(*ACTIVATIONS)
    quantizer = [
        pick(nn.Sign(), nn.Quantize(levels), nn.RandomThreshold(channels, (-1.5, 0.0, 2.0), levels), nn.Sign())
    ]
    scaled = [nn.Product(channels)] if pick(True, False, False) else []
    average = [nn.AvgPool2d(2, stride=pick(1, 2), method="clt")]
    odd_average = [nn.AvgPool2d((1, 3), stride=1, method="clt")]
    padded_max = [nn.MaxPool2d(pick(2, 3), stride=pick(1, 2), padding=pick(0, 1))]
    orders = (
        [*norm, *quantizer],
        [*average, *norm, *quantizer],
        [*odd_average, *norm, *quantizer],
        [*padded_max, *norm, *scaled, *quantizer],
        [*norm, *padded_max, *quantizer],
        [*scaled, *norm, *quantizer, *average],
        [*norm, *quantizer, *padded_max],
        [*norm, *quantizer, *average, *quantizer],
    )
    return list(pick(*orders))
