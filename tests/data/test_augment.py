"""Pixels become exact inputs; augmentation does what it says, at random, reproducibly, and never waits."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor
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


@pytest.fixture
def furthest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image turns and grows as far as it may."""
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.ones(shape))


def varied(images: Tensor, **options: float) -> Tensor:
    return augment(images, 0, False, torch.Generator().manual_seed(1), **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("furthest")
def test_quarter_and_half_turns_are_exact() -> None:
    images = torch.randint(0, 256, (3, 2, 6, 6), dtype=torch.uint8)
    assert torch.equal(varied(images, turn=90), images.rot90(1, (2, 3)))
    wide = torch.randint(0, 256, (3, 2, 4, 8), dtype=torch.uint8)
    assert torch.equal(varied(wide, turn=180), wide.flip(2, 3))


@pytest.mark.usefixtures("furthest")
@pytest.mark.parametrize(("turn", "zoom"), [(0.0, 0.0), (20.0, 0.0), (90.0, 0.5), (33.0, 0.25)])
def test_pixels_come_from_where_geometry_says(turn: float, zoom: float) -> None:
    """On a plane, which interpolation keeps, in images that are wider than high."""
    height, width = 21, 31
    down, right = torch.meshgrid(torch.arange(height) - 10.0, torch.arange(width) - 15.0, indexing="ij")
    image = (120 + 4 * right + 3 * down).to(torch.uint8)[None, None]
    angle, factor = math.radians(turn), 1 + zoom
    from_right = (right * math.cos(angle) - down * math.sin(angle)) / factor
    from_down = (right * math.sin(angle) + down * math.cos(angle)) / factor
    middle = (right.abs() < 6) & (down.abs() < 6)
    expected = 120 + 4 * from_right + 3 * from_down
    found = varied(image, turn=turn or 1e-9, zoom=zoom)[0, 0]
    assert float((found - expected)[middle].abs().max()) < 0.51


def test_turns_and_zooms_stay_within_their_bounds_and_differ() -> None:
    line = torch.zeros(2000, 1, 41, 41, dtype=torch.uint8)
    line[:, 0, 17:24, 20:36] = 255
    result = varied(line, turn=30, zoom=0.25).float()[:, 0]
    places = torch.arange(41) - 20.0
    across, down = (result * places).sum((1, 2)), (result * places[:, None]).sum((1, 2))
    angles = torch.rad2deg(torch.atan2(-down, across))
    assert -30.5 < float(angles.min()) < -29 < 29 < float(angles.max()) < 30.5
    assert float(angles.mean()) == pytest.approx(0, abs=1.5)
    lengths = torch.hypot(across, down) / result.sum((1, 2)) / 7.5
    assert 0.72 < float(lengths.min()) < 0.8
    assert 1.2 < float(lengths.max()) < 1.28


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_cutout_is_a_square_around_any_place(side: int) -> None:
    images = torch.full((4000, 2, 5, 6), 7, dtype=torch.uint8)
    black = varied(images, cutout=side) == 0
    assert torch.equal(black[:, 0], black[:, 1])
    corners: Counter[tuple[int, int]] = Counter()
    for hole in black[:, 0]:
        rows, columns = hole.any(1).nonzero().flatten(), hole.any(0).nonzero().flatten()
        assert int(hole.sum()) == len(rows) * len(columns) > 0, "a rectangle"
        for found, size in ((rows, 5), (columns, 6)):
            first, last = int(found[0]), int(found[-1])
            assert len(found) == last - first + 1 <= side
            assert len(found) == side or first == 0 or last == size - 1, "smaller at the border only"
        corners[int(rows[0]), int(columns[0])] += 1
    assert len({int(hole.sum()) for hole in black[:, 0]} & {side * side}) == 1
    share = black.float().mean().item()
    assert 0.5 * side**2 / 30 < share <= 1.05 * side**2 / 30
    assert len(corners) > 10


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
        stays = name == "_to_copy" and (kwargs or {}).get("device") in (None, *(arg.device for arg in args))
        assert stays or name not in self.waiting, name  # another dtype alone makes nobody wait
        return func(*args, **(kwargs or {}))


def test_the_host_never_waits() -> None:
    images = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    with Watch():
        augment(images, 1, True, torch.Generator(), turn=10, zoom=0.1, cutout=2)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Watch():
        int(images.sum())


@pytest.mark.parametrize("shift", [-1, 4, 1.0, True])
def test_refuses_impossible_shifts(shift: Any) -> None:
    with pytest.raises(ValueError, match="shift must be an integer from 0 to 3"):
        augment(torch.zeros(2, 1, 4, 6, dtype=torch.uint8), shift, False, torch.Generator())


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"turn": -1.0}, "turn must be from 0 to 180, got -1.0"),
        ({"turn": math.nan}, "turn must be from 0 to 180, got nan"),
        ({"zoom": 1.0}, "zoom must be at least 0 and below 1, got 1.0"),
        ({"cutout": 4}, "cutout must be an integer from 0 to 3, got 4"),
        ({"cutout": 1.5}, "cutout must be an integer from 0 to 3, got 1.5"),
    ],
)
def test_refuses_other_impossible_variations(option: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        varied(torch.zeros(2, 1, 4, 6, dtype=torch.uint8), **option)


@pytest.mark.parametrize("option", [{"turn": "x"}, {"turn": True}, {"zoom": None}])
def test_refuses_what_is_no_number(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(option))} must be a number"):
        varied(torch.zeros(2, 1, 4, 6, dtype=torch.uint8), **option)


def test_no_images_stay_none() -> None:
    none = torch.zeros(0, 3, 4, 6, dtype=torch.uint8)
    assert augment(none, 1, True, torch.Generator(), turn=10, zoom=0.1, cutout=2).shape == none.shape


def test_refuses_anything_but_images() -> None:
    with pytest.raises(TypeError, match="uint8 images"):
        augment(torch.zeros(2, 1, 4, 6), 1, False, torch.Generator())
