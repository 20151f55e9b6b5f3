"""Corruptions against scipy, exact rotations and counted moments."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from bqn.corruptions import STRENGTHS, corrupt, gaussian_blur, gaussian_noise, rotate

KINDS = list(STRENGTHS)


def _images(examples: int = 5, channels: int = 3, height: int = 12, width: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (examples, channels, height, width), generator=generator, dtype=torch.uint8)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestCorrupt:
    @pytest.mark.parametrize("kind", KINDS)
    def test_five_ascending_strengths(self, kind: str) -> None:
        assert len(STRENGTHS[kind]) == 5
        assert list(STRENGTHS[kind]) == sorted(set(STRENGTHS[kind]))

    @pytest.mark.parametrize("kind", KINDS)
    def test_zero_strength_changes_nothing(self, kind: str) -> None:
        x = _images()
        assert torch.equal(corrupt(x, kind, 0.0, _generator()), x)

    @pytest.mark.parametrize("kind", ["noise", "blur"])
    def test_stronger_is_further_away(self, kind: str) -> None:
        x = _images(height=16, width=16)
        distances = [
            (corrupt(x, kind, strength, _generator()).double() - x.double()).abs().mean()
            for strength in STRENGTHS[kind]
        ]
        assert distances == sorted(distances)
        assert distances[0] > 0

    @pytest.mark.parametrize("kind", KINDS)
    def test_input_is_left_alone_and_kind_of_output_kept(self, kind: str) -> None:
        x = _images(height=9)
        before = x.clone()
        result = corrupt(x, kind, STRENGTHS[kind][2], _generator())
        assert torch.equal(x, before)
        assert result.dtype == torch.uint8
        assert result.shape == x.shape

    @pytest.mark.parametrize("kind", ["noise", "rotation"])
    def test_deterministic_for_a_seed(self, kind: str) -> None:
        x = _images()
        first, again, other = (corrupt(x, kind, STRENGTHS[kind][2], _generator(seed)) for seed in (3, 3, 4))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_rotation_turns_either_way(self) -> None:
        x = _images(40)
        turned = corrupt(x, "rotation", 30.0, _generator())
        left = (turned == rotate(x, 30.0)).flatten(1).all(1)
        right = (turned == rotate(x, -30.0)).flatten(1).all(1)
        assert (left ^ right).all()
        assert 5 < int(left.sum()) < 35

    def test_many_images_pass_in_parts(self) -> None:
        x = _images(2300, 1, 4, 4)
        assert torch.equal(corrupt(x, "blur", 0.4), gaussian_blur(x, 0.8))
        assert corrupt(x, "rotation", 10.0, _generator()).shape == x.shape

    def test_bad_input(self) -> None:
        x = _images()
        with pytest.raises(ValueError, match="kind must be one of noise, blur, rotation, got 'fog'"):
            corrupt(x, "fog", 1.0)
        with pytest.raises(ValueError, match="strength must not be negative, got -1"):
            corrupt(x, "noise", -1)
        with pytest.raises(ValueError, match="x must be uint8 images"):
            corrupt(x.float(), "noise", 0.1)
        with pytest.raises(ValueError, match="x must be uint8 images"):
            corrupt(x[0], "noise", 0.1)
        with pytest.raises(ValueError, match="degrees must be a number or of shape"):
            rotate(x, torch.zeros(2))
        with pytest.raises(ValueError, match="size must be a number or of shape"):
            rotate(x, 10.0, torch.ones(2))
        assert rotate(x[:0], 10.0).shape == x[:0].shape


class TestNoise:
    def test_moments_where_nothing_is_clipped(self) -> None:
        x = torch.full((20, 1, 50, 50), 128, dtype=torch.uint8)
        noise = gaussian_noise(x, 0.1, _generator()).double() - 128
        assert float(noise.mean()) == pytest.approx(0, abs=0.5)
        assert float(noise.std()) == pytest.approx(25.5, rel=0.01)

    def test_ends_of_the_range_are_clipped(self) -> None:
        x = torch.zeros(20, 1, 50, 50, dtype=torch.uint8)
        noisy = gaussian_noise(x, 0.1, _generator())
        assert float((noisy == 0).double().mean()) == pytest.approx(0.5, abs=0.02)
        assert float(noisy.double().mean()) == pytest.approx(25.5 / np.sqrt(2 * np.pi), rel=0.02)


class TestBlur:
    @pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0, 9.0])
    def test_against_scipy(self, sigma: float) -> None:
        x = _images(height=9, width=13)
        expected = ndimage.gaussian_filter(x.double().numpy(), (0, 0, sigma, sigma), mode="reflect", truncate=4.0)
        gap = gaussian_blur(x, sigma).double() - torch.as_tensor(expected)
        assert gap.abs().max() < 0.5 + 1e-3  # rounding to whole pixels alone

    @pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0, 9.0])
    def test_mean_is_conserved(self, sigma: float) -> None:
        x = _images(4, 1, 40, 40)
        change = gaussian_blur(x, sigma).double().mean() - x.double().mean()
        assert abs(float(change)) < 0.5 / np.sqrt(x.numel()) * 4  # what rounding 6400 pixels may leave

    def test_constant_images_stay(self) -> None:
        x = torch.full((2, 1, 7, 7), 93, dtype=torch.uint8)
        assert torch.equal(gaussian_blur(x, 2.5), x)

    def test_a_point_spreads_as_the_kernel(self) -> None:
        x = torch.zeros(1, 1, 21, 21, dtype=torch.uint8)
        x[0, 0, 10, 10] = 255
        kernel = np.exp(-0.5 * (np.arange(-4, 5) / 1.0) ** 2)
        expected = np.round(255 * np.outer(kernel, kernel) / kernel.sum() ** 2)
        assert np.array_equal(gaussian_blur(x, 1.0)[0, 0, 6:15, 6:15].numpy(), expected)


class TestRotation:
    @pytest.mark.parametrize("size", [2, 7, 28, 32])
    @pytest.mark.parametrize("turns", [-2, -1, 1, 2, 3, 4])
    def test_quarter_turns_are_exact(self, size: int, turns: int) -> None:
        x = _images(height=size, width=size)
        assert torch.equal(rotate(x, 90.0 * turns), torch.rot90(x, turns, (-2, -1)))

    def test_half_turn_of_an_oblong_is_exact(self) -> None:
        x = _images(height=6, width=11)
        assert torch.equal(rotate(x, 180.0), x.flip(-1, -2))

    @pytest.mark.parametrize("degrees", [10.0, -37.0, 60.0])
    def test_against_scipy_within_the_image(self, degrees: float) -> None:
        x = _images(2, 1, 24, 30)
        expected = ndimage.rotate(x.double().numpy(), degrees, (-2, -1), reshape=False, order=1, mode="constant")
        middle = (..., slice(7, 17), slice(10, 20))  # away from the edges, which the two fill differently
        gap = rotate(x, degrees).double()[middle] - torch.as_tensor(expected)[middle]
        assert gap.abs().max() < 0.51

    def test_corners_are_filled_with_black(self) -> None:
        turned = rotate(torch.full((1, 1, 20, 20), 255, dtype=torch.uint8), 45.0)
        assert turned[0, 0, 0, 0] == turned[0, 0, -1, -1] == 0
        assert turned[0, 0, 10, 10] == 255

    def test_each_image_by_its_own_angle(self) -> None:
        x = _images(3)
        turned = rotate(x, torch.tensor([90.0, 0.0, 33.0]))
        assert torch.equal(turned[0], torch.rot90(x[0], 1, (-2, -1)))
        assert torch.equal(turned[1], x[1])
        assert torch.equal(turned[2:], rotate(x[2:], 33.0))
