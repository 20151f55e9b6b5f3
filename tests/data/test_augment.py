"""Pixels become exact inputs; shifts and flips are right, independent, uniform, reproducible, and never wait."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bqn.data import augment, to_input


def shifted(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """One image `(C, H, W)` moved pixel by pixel, zeros coming in."""
    result = torch.zeros_like(image)
    _, height, width = image.shape
    for row in range(height):
        for column in range(width):
            if 0 <= row - down < height and 0 <= column - right < width:
                result[:, row, column] = image[:, row - down, column - right]
    return result


def test_every_pixel_value_is_exact() -> None:
    x = torch.arange(256, dtype=torch.uint8)
    assert to_input(x).dtype == torch.float32
    assert [Fraction(value) for value in to_input(x).tolist()] == [Fraction(2 * v - 255, 256) for v in range(256)]
    assert x.tolist() == list(range(256))


def test_features_pass_through() -> None:
    x = torch.randn(3, 2)
    assert to_input(x) is x
    with pytest.raises(TypeError, match="uint8 pixels"):
        to_input(torch.arange(3))


@pytest.mark.parametrize("flip", [False, True])
def test_every_example_is_one_of_the_allowed_variations(flip: bool) -> None:
    images = torch.randint(1, 256, (40, 3, 5, 6), dtype=torch.uint8)
    result = augment(images, 2, flip, torch.Generator().manual_seed(1))
    assert result.shape == images.shape
    assert result.dtype == torch.uint8
    offsets = [(down, right) for down in range(-2, 3) for right in range(-2, 3)]
    for before, after in zip(images, result, strict=True):
        moved = [shifted(before, *offset) for offset in offsets]
        allowed = moved + [image.flip(-1) for image in moved] if flip else moved
        assert sum(torch.equal(after, candidate) for candidate in allowed) == 1


def test_shifts_and_flips_are_independent_and_uniform() -> None:
    size, examples = 5, 20_000
    marked = torch.zeros(examples, 1, size, size, dtype=torch.uint8)
    marked[:, 0, 2, 2], marked[:, 0, 2, 3] = 1, 2  # the second pixel tells the flip
    result = augment(marked, 1, True, torch.Generator().manual_seed(0)).flatten(1)
    first, second = (result == 1).int().argmax(1), (result == 2).int().argmax(1)
    variations = Counter(zip(first.tolist(), (second - first).tolist(), strict=True))
    assert len(variations) == 18
    expected = examples / 18
    chi_square = sum((count - expected) ** 2 / expected for count in variations.values())
    assert chi_square < 40.8  # 0.999 quantile with 17 degrees of freedom
    repeated = (first[1:] == first[:-1]).double().mean()
    assert abs(repeated - 1 / 9) < 0.01  # neighbours share one of nine shifts no more often than by chance


def test_same_generator_state_same_result() -> None:
    images = torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8)
    first, again, other = (augment(images, 2, True, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_global_randomness_is_left_alone() -> None:
    state = torch.get_rng_state()
    augment(torch.zeros(4, 1, 4, 4, dtype=torch.uint8), 1, True, torch.Generator())
    assert torch.equal(state, torch.get_rng_state())


def test_nothing_asked_nothing_done() -> None:
    images = torch.randint(0, 256, (4, 1, 4, 4), dtype=torch.uint8)
    assert augment(images, 0, False, torch.Generator()) is images


class Watch(TorchDispatchMode):
    """Fails on operators that make the host wait for a device."""

    waiting = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_to_copy", "masked_select")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.waiting, name
        return func(*args, **(kwargs or {}))


def test_the_host_never_waits() -> None:
    images = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    with Watch():
        augment(images, 1, True, torch.Generator())
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Watch():
        int(images.sum())


@pytest.mark.parametrize("shift", [-1, 4, 1.0, True])
def test_refuses_impossible_shifts(shift: Any) -> None:
    with pytest.raises(ValueError, match="shift must be an integer from 0 to 3"):
        augment(torch.zeros(2, 1, 4, 6, dtype=torch.uint8), shift, False, torch.Generator())


def test_refuses_anything_but_images() -> None:
    with pytest.raises(TypeError, match="uint8 images"):
        augment(torch.zeros(2, 1, 4, 6), 1, False, torch.Generator())
