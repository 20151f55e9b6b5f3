"""Pooling as autograd functions of their own: the gradients of the plain formulas, and what backward keeps."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn.propagate import clt, pooling
from bqn.propagate.windows import windows


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


@pytest.mark.parametrize("absent", [None, torch.tensor([False, True])])
@pytest.mark.parametrize("together", [None, torch.tensor(0.3)])
def test_largest_of_one_level(absent: Tensor | None, together: Tensor | None) -> None:
    """What can be one thing only is that: the largest of constants, of which some may be padding."""
    belief = bqn.Categorical(torch.ones(3, 2, 1), (0.5,))
    largest = pooling.maximum_categorical(belief, absent, together)
    assert largest.level_values == (0.5,)
    assert torch.equal(largest.probs, torch.ones(3, 1))
    assert torch.equal(largest.mean, torch.full((3,), 0.5))
    for pool in (bqn.nn.MaxPool2d(2), bqn.nn.MaxPool2d(2, padding=1), bqn.nn.MaxPool2d(3, stride=1)):
        image = bqn.Categorical(torch.ones(2, 3, 4, 4, 1), (0.5,))
        assert torch.equal(pool(image).mean, pool(image.mean))


TILES = [
    ((2, 3, 8), (2,)),
    ((2, 3, 4, 6), (2, 2)),
    ((1, 2, 6, 4), (3, 2)),
    ((2, 1, 3, 4), (1, 4)),
    ((0, 3, 4, 4), (2, 2)),
]


def largest_of_tiles(mean: Tensor, kernel: tuple[int, ...], together: Tensor | None) -> Tensor:
    return pooling.maximum_of_tiles(bqn.Categorical.of(bqn.BINARY, mean=mean), kernel, together).mean


def largest_of_windows(mean: Tensor, kernel: tuple[int, ...], together: Tensor | None) -> Tensor:
    read = windows(mean, kernel, kernel, (0,) * len(kernel))
    return pooling.maximum_categorical(bqn.Categorical.of(bqn.BINARY, mean=read), None, together).mean


def with_gradient(function, mean: Tensor, *arguments: object) -> tuple[Tensor, Tensor]:
    """What a function makes of the means, and the gradient by them of a sum with weights."""
    mean = mean.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    result = function(mean, *arguments)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    return result.detach(), torch.autograd.grad((weights * result).sum(), mean)[0]


@pytest.mark.parametrize(("shape", "kernel"), TILES)
@pytest.mark.parametrize("share", [None, 0.0, 0.3, 1.0])
def test_tiles_are_windows(shape: tuple[int, ...], kernel: tuple[int, ...], share: float | None) -> None:
    """Also where means are certain, so that factors are zero, and where some are equal."""
    together = None if share is None else torch.tensor(share, dtype=torch.float64)
    mean = (2 * torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1).mul(
        4
    ).round() / 4
    for ours, expected in zip(
        with_gradient(largest_of_tiles, mean, kernel, together),
        with_gradient(largest_of_windows, mean, kernel, together),
        strict=True,
    ):
        assert_close(ours, expected)
    if mean.numel():
        free = (0.9 * mean + 0.05 * torch.rand(shape, dtype=torch.float64)).requires_grad_()
        assert torch.autograd.gradcheck(lambda mean: largest_of_tiles(mean, kernel, together), (free,))
        assert torch.autograd.gradgradcheck(lambda mean: largest_of_tiles(mean, kernel, together), (free,))
        assert kept(lambda mean: largest_of_tiles(mean, kernel, together), free) == (together is not None)


def test_a_tile_of_many_places() -> None:
    mean = torch.rand(1, 1, 16, 16, requires_grad=True)
    largest_of_tiles(mean, (16, 16), torch.tensor(1.0)).sum().backward()
    assert mean.grad.nonzero().tolist() == [[0, 0, *divmod(int(mean.argmax()), 16)]]


@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(("shape", "kernel"), TILES[:4])
@pytest.mark.parametrize("share", [None, 0.3])
def test_tiles_in_a_compiler(shape: tuple[int, ...], kernel: tuple[int, ...], share: float | None) -> None:
    """There the gradient takes another way, in the order of the image, whatever that is."""
    torch.compiler.reset()
    together = None if share is None else torch.tensor(share)
    mean = (2 * torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 1).mul(4).round() / 4
    mean = mean if mean.dim() == 3 else mean.contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(largest_of_tiles, backend="aot_eager", fullgraph=True, dynamic=False)
    ours = with_gradient(compiled, mean, kernel, together)
    for got, expected in zip(ours, with_gradient(largest_of_tiles, mean, kernel, together), strict=True):
        assert_close(got, expected)
    assert mean.dim() == 3 or ours[1].is_contiguous(memory_format=torch.channels_last)


def test_windows_that_leave_a_rest_are_no_tiles() -> None:
    mean = 2 * torch.rand(2, 3, 5, 5) - 1
    pool = bqn.nn.MaxPool2d(2)
    whole, part = (
        pool(bqn.Categorical.of(bqn.BINARY, mean=each)).mean for each in (mean, mean[..., :4, :4].contiguous())
    )
    assert_close(whole, part)
    assert not pooling.tiles((5, 5), (2, 2), (2, 2), (0, 0))
    assert not pooling.tiles((4, 4), (2, 2), (1, 1), (0, 0))
    assert not pooling.tiles((4, 4), (2, 2), (2, 2), (1, 0))


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        ((2, 3, 8), (2,), (2,), (0,)),
        ((2, 3, 4, 6), (2, 3), (2, 3), (0, 0)),
        ((2, 3, 5, 6), (2, 2), (2, 2), (0, 0)),
        ((2, 3, 5, 6), (3, 3), (2, 1), (1, 1)),
        ((2, 3, 5, 6), (2, 3), (1, 1), (0, 0)),
        ((2, 3, 6), (3,), (1,), (0,)),
        ((1, 1, 82), (41,), (41,), (0,)),
    ],
)
def test_average(
    shape: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]
) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    plain = torch.nn.functional.avg_pool1d if len(kernel) == 1 else torch.nn.functional.avg_pool2d

    def function(x: Tensor) -> Tensor:
        return pooling.average_windows(x, kernel, stride, padding)

    assert_close(function(x), plain(x, kernel, stride, padding), rtol=1e-12, atol=1e-12)
    whole = torch.randint(-9, 9, shape, dtype=torch.float64)  # what quantized networks average: sums are exact
    assert torch.equal(function(whole), plain(whole, kernel, stride, padding))
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
