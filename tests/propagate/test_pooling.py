"""Pooling as autograd functions of their own: the gradients of the plain formulas, and what backward keeps."""

import pytest
import torch
from torch import Tensor

import bqn
from bqn.propagate import clt, pooling


def kept(function, *inputs: Tensor) -> int:
    """Elements that autograd holds on to beside the inputs themselves."""
    own = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    held: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function(*inputs)
    assert result.requires_grad
    return sum(held.values())


@pytest.mark.parametrize("absent", [None, torch.tensor([False, True, False, False])])
@pytest.mark.parametrize("levels", [(-1.0, 1.0), (0.0, 3.0)])
@pytest.mark.parametrize("together", [None, torch.tensor(0.3, dtype=torch.float64)])
def test_largest_of_two_levels(absent: Tensor | None, levels: tuple[float, float], together: Tensor | None) -> None:
    low, high = levels

    def function(mean: Tensor) -> Tensor:
        return pooling.maximum_categorical(bqn.Categorical.of(levels, mean=mean), absent, together).mean

    mean = (low + (high - low) * torch.rand(3, 4, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(function, (mean,))
    assert torch.autograd.gradgradcheck(function, (mean,))
    kept_beside = (0 if absent is None else absent.numel()) + (0 if together is None else 1)
    assert kept(function, mean) == kept_beside


def test_of_equal_inputs_that_are_largest_together_the_first_gets_the_gradient() -> None:
    mean = torch.tensor([[0.0, 0.5, 0.5], [-0.5, -0.5, -0.5]], requires_grad=True)
    belief = bqn.Categorical.of(bqn.BINARY, mean=mean)
    pooling.maximum_categorical(belief, together=torch.tensor(1.0)).mean.sum().backward()
    assert torch.equal(mean.grad, torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))


def test_padding_takes_no_gradient_from_inputs_that_are_certain_to_lose() -> None:
    mean = torch.full((1, 3), -1.0, requires_grad=True)
    belief, absent = bqn.Categorical.of(bqn.BINARY, mean=mean), torch.tensor([True, False, False])
    pooling.maximum_categorical(belief, absent, torch.tensor(0.5)).mean.sum().backward()
    assert torch.equal(mean.grad, torch.tensor([[0.0, 1.0, 0.5]]))


def test_largest_of_two_levels_beside_certain_ones() -> None:
    """A certain 1 wins whatever the others do, and is the only one that matters; two of them leave nothing to learn."""
    mean = torch.tensor([[1.0, 0.5, -0.5], [1.0, 1.0, 0.0]], requires_grad=True)
    pooling.maximum_categorical(bqn.Categorical.of(bqn.BINARY, mean=mean)).mean.sum().backward()
    assert torch.equal(mean.grad, torch.tensor([[0.25 * 0.75, 0.0, 0.0], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        ((2, 3, 8), (2,), (2,), (0,)),
        ((2, 3, 4, 6), (2, 3), (2, 3), (0, 0)),
        ((2, 3, 5, 6), (2, 2), (2, 2), (0, 0)),
        ((2, 3, 5, 6), (3, 3), (2, 1), (1, 1)),
        ((2, 3, 5, 6), (2, 3), (1, 1), (0, 0)),
        ((2, 3, 6), (3,), (1,), (0,)),
    ],
)
def test_average(
    shape: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]
) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    plain = torch.nn.functional.avg_pool1d if len(kernel) == 1 else torch.nn.functional.avg_pool2d

    def function(x: Tensor) -> Tensor:
        return pooling.average_windows(x, kernel, stride, padding)

    assert torch.equal(function(x), plain(x, kernel, stride, padding))
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "kernel"), [((2, 3, 7), (3,)), ((2, 3, 5, 6), (2, 3)), ((2, 3, 5, 6), (1, 6))])
def test_running_average(shape: tuple[int, ...], kernel: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    plain = torch.nn.functional.avg_pool1d if len(kernel) == 1 else torch.nn.functional.avg_pool2d
    torch.testing.assert_close(pooling.running_average(x, kernel), plain(x, kernel, 1))


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_an_average_keeps_nothing(stride: tuple[int, int]) -> None:
    source = torch.randn(2, 3, 4, 4, requires_grad=True)
    assert kept(lambda x: pooling.average_windows(x * 1, (2, 2), stride, (0, 0)), source) == 0


def test_a_convolution_before_batch_norm_keeps_none_of_its_outputs() -> None:
    layer = bqn.nn.Conv2d(3, 40, 3, padding=1, bias=False)
    x, outputs = torch.randn(8, 3, 16, 16), 8 * 40 * 16 * 16
    assert kept(lambda *_: layer(x).within_batch(0.1).var, x, layer.weight.logits) < outputs / 4
    assert clt.not_negative(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
