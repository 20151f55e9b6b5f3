"""The compiled passes of convolutional networks on a CPU against float64 and against plain torch."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

import bqn
from bqn.propagate import compiled, cpu, cpu_cnn, devices, half, neighbours, normalized_sign, units
from bqn.propagate.pooling import running_average, strided_average

LOW = torch.bfloat16
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def images(*shape: int, layout: torch.memory_format = torch.contiguous_format) -> Tensor:
    return torch.randn(shape).to(LOW, memory_format=layout)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """As inside a function with a gradient of its own, where these passes are made."""
    with torch.no_grad():
        yield


def test_they_were_built_and_what_they_do_not_take() -> None:
    image = images(1, 2, 3, 3)
    assert cpu_cnn.averages(image, (2, 2))
    assert not cpu_cnn.averages(image, (2, 2, 2))
    assert not cpu_cnn.averages(image.float(), (2, 2))
    assert not cpu_cnn.averages(image.transpose(1, 2), (2, 2))
    assert not cpu_cnn.averages(images(1, 1, 1, 40), (1, 33))  # torch is faster
    with forward_ad.dual_level():
        assert not cpu_cnn.averages(image, (2, 2))  # a tangent would be lost
    with torch.enable_grad():  # a gradient may be asked for, of a backward pass too
        assert not cpu_cnn.averages(image, (2, 2))
        assert not cpu_cnn.rounds(torch.zeros(3))
        assert not cpu_cnn.pairs(torch.zeros(2, 49), torch.zeros(49, 49))
    for dtype in (LOW, torch.float32, torch.float64, torch.float16):
        with pytest.raises(ValueError, match=r"a window of \(4, 1\) does not fit into an image of \(3, 3\)"):
            strided_average(image.to(dtype), (4, 1), (2, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 5, 9, 11), (2, 64, 18, 18), (1, 1, 6, 6), (2, 1, 7, 9), (2, 3, 6, 1)])
@pytest.mark.parametrize("walk", [((2, 2), (1, 1)), ((6, 1), (2, 1)), ((1, 1), (1, 1)), ((3, 1), (2, 3))])
def test_window_means_are_rounded_once(
    layout: torch.memory_format, shape: tuple[int, ...], walk: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    kernel, stride = walk
    if any(window > size for window, size in zip(kernel, shape[2:], strict=True)):
        kernel = (kernel[0], 1)
    x = images(*shape, layout=layout)
    found = strided_average(x, kernel, stride)
    assert_close(found, F.avg_pool2d(x.double(), kernel, stride).to(LOW), rtol=0, atol=0)
    assert found.is_contiguous(memory_format=layout)


def test_window_means_of_signals_and_what_torch_does_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(4, 3, 21)
    assert_close(strided_average(x, (5,), (2,)), F.avg_pool1d(x.double(), 5, 2).to(LOW), rtol=0, atol=0)
    assert_close(strided_average(x, (5,), (2,)), F.avg_pool1d(x, 5, 2))
    monkeypatch.setattr(cpu_cnn, "window_means", None)  # whoever calls it fails
    turned = x.mT.contiguous().mT
    assert_close(strided_average(turned, (5,), (2,)), F.avg_pool1d(x, 5, 2))  # in another layout
    learned = x.clone().requires_grad_()
    with torch.enable_grad():
        running_average(learned, (3,)).sum().backward()  # a gradient is asked for
    assert learned.grad is not None
    assert running_average(x[:0], (3,)).shape == (0, 3, 19)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((2, 2), (1, 1), (0, 0)), ((6, 6), (2, 2), (2, 2)), ((3, 5), (2, 1), (1, 2)), ((4, 4), (3, 3), (0, 1))],
)
def test_their_gradient(
    layout: torch.memory_format, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]
) -> None:
    x = torch.zeros(3, 5, 9, 10, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        out = F.avg_pool2d(F.pad(x, [padding[1]] * 2 + [padding[0]] * 2), kernel, stride)
    grad = images(*out.shape, layout=layout)
    (wanted,) = torch.autograd.grad(out, x, grad.double())
    found = cpu_cnn.window_means_backward(grad, (9, 10), kernel, stride, padding)
    assert_close(found, wanted.to(LOW), rtol=2**-7, atol=1e-6)
    assert found.is_contiguous(memory_format=layout)


def test_their_gradient_by_signals() -> None:
    x = torch.zeros(3, 5, 9, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        out = F.avg_pool1d(F.pad(x, [2, 2]), 4, 2)
    grad = images(*out.shape)
    (wanted,) = torch.autograd.grad(out, x, grad.double())
    assert_close(cpu_cnn.window_means_backward(grad, (9,), (4,), (2,), (2,)), wanted.to(LOW), rtol=2**-7, atol=1e-6)


def test_rounding_is_that_of_torch() -> None:
    numbers = torch.randn(100_000) * torch.logspace(-38, 38, 100_000)
    halves = torch.arange(-300, 300).float() / 256 + 1  # as near to two numbers in bfloat16
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 3.4e38, -3.4e38])
    weight = torch.cat((numbers, halves, special))
    low, noise = cpu_cnn.low_weights(weight, 1.0)
    assert_close(low, weight.to(LOW), rtol=0, atol=0, equal_nan=True)
    assert_close(noise, (1 - weight.double().square()).float().to(LOW), rtol=0.01, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, LOW])
def test_through_square(dtype: torch.dtype) -> None:
    linear, square = torch.randn(2, 7, 13).to(dtype)
    at = torch.randn(7, 13)
    found = cpu_cnn.through_square(linear, square, at, -2.0)
    assert_close(found.double(), linear.double() - 2 * at.double() * square.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("places", [(2, 2), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8)])
def test_pairs_of_places(places: tuple[int, ...]) -> None:
    near = neighbours.matrix_of_pairs(torch.tensor(0.7), places)
    x, scale = torch.randn(5, 3, near.shape[0]), torch.randn(5, 3)
    wide = x.double(), near.double()
    assert_close(cpu_cnn.over_pairs(x, near).double(), neighbours.over_pairs(*wide), rtol=1e-5, atol=1e-5)
    assert_close(cpu_cnn.beside(x, near).double(), wide[0] @ wide[1], rtol=1e-5, atol=1e-5)
    scaled = scale.double().unsqueeze(-1) * (wide[0] @ wide[1])
    assert_close(cpu_cnn.beside(x, near, scale).double(), scaled, rtol=1e-5, atol=1e-5)
    low = x.to(LOW)
    assert_close(cpu_cnn.beside(low, near).double(), low.double() @ wide[1], rtol=1e-5, atol=1e-5)


@torch.enable_grad()
def test_learned_pairs_have_the_gradient_of_float64() -> None:
    near = neighbours.matrix_of_pairs(torch.tensor(0.6), (7, 7))
    weight, grad = torch.randn(4, 3, 49, requires_grad=True), torch.randn(4, 3)
    neighbours.over_learned_pairs(weight, near).backward(grad)
    wide = weight.detach().double().requires_grad_()
    neighbours.over_pairs(wide, near.double()).backward(grad.double())
    assert weight.grad is not None
    assert wide.grad is not None
    assert_close(weight.grad.double(), wide.grad, rtol=1e-5, atol=1e-5)


def test_many_places_are_left_to_torch() -> None:
    near = neighbours.matrix_of_pairs(torch.tensor(0.6), (9, 9))
    assert not cpu_cnn.pairs(torch.randn(2, 81), near)
    assert neighbours.over_learned_pairs(torch.randn(2, 81), near).shape == (2,)


# --- units that have inputs in common ---------------------------------------------------------------------------------


def noise_and_gradients(
    function: Callable[..., Tensor], tensors: dict[str, Tensor | None], wide: torch.dtype, low: torch.dtype
) -> dict[str, Tensor]:
    """Of a function of outer, slope, inner, near, pairs, var and level, with the last two in `low`."""
    given = {
        name: None if tensor is None else tensor.to(low if name in ("var", "level") else wide)
        for name, tensor in tensors.items()
    }
    learned = {name: tensor.requires_grad_() for name, tensor in given.items() if tensor is not None and name != "near"}
    with torch.enable_grad():
        out = function(**given)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
    grads = torch.autograd.grad(out, tuple(learned.values()), weights)
    return {"out": out.detach(), **dict(zip(learned, grads, strict=True))}


def plain(**given: Tensor | None) -> Tensor:
    names = ("outer", "slope", "inner", "near", "pairs", "var", "level")
    result: Tensor = units._Gain.apply(*(given[name] for name in names))  # type: ignore[no-untyped-call]
    return result


def kept(**given: Tensor | None) -> Tensor:
    noise = compiled.Noise(given["var"], given["level"], given["near"], given["pairs"])  # type: ignore[arg-type]
    return compiled.noise_of_each(given["outer"], given["slope"], given["inner"], noise)  # type: ignore[arg-type]


def layer(places: tuple[int, ...] | None, examples: int = 6) -> dict[str, Tensor | None]:
    torch.manual_seed(0)
    inner, var = 2 * torch.rand(40, 3 * 49) - 1, torch.rand(examples, 3 * 49)
    tensors: dict[str, Tensor | None] = {
        "outer": torch.randn(10, 40), "slope": torch.rand(examples, 40), "inner": inner, "near": None, "pairs": None,
        "var": var, "level": None,
    }  # fmt: skip
    if places is not None:
        near, count = neighbours.matrix_of_pairs(torch.tensor(0.6), places), math.prod(places)
        tensors["near"], tensors["pairs"] = near, neighbours.over_pairs(inner.unflatten(-1, (-1, count)), near)
        tensors["level"] = var.unflatten(-1, (-1, count)).mean(-1)
    return tensors


@pytest.mark.parametrize("places", [None, (7, 7), (7,)])
@pytest.mark.parametrize(("low", "within"), [(torch.float32, 1e-5), (LOW, 2e-2)])
def test_noise_of_each_against_float64(places: tuple[int, ...] | None, low: torch.dtype, within: float) -> None:
    if low == LOW and not devices.CPU_HAS_BFLOAT16:
        pytest.skip("torch forms products in bfloat16 slowly here, and nobody asks for them")
    tensors = layer(places)
    wanted = noise_and_gradients(plain, tensors, torch.float64, torch.float64)
    found = noise_and_gradients(kept, tensors, torch.float32, low)
    for name, value in wanted.items():
        assert float((found[name].double() - value).norm() / value.norm()) < within, name


def test_who_has_too_much_to_keep_forms_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = layer((7, 7))
    near, level = tensors["near"], tensors["level"]
    arguments = [tensors[name] for name in ("outer", "slope", "inner")] + [
        near,
        tensors["pairs"],
        tensors["var"],
        level,
    ]
    assert units._kept(*arguments)  # type: ignore[arg-type]
    monkeypatch.setattr(units, "_KEPT_AT_MOST", 100)
    assert not units._kept(*arguments)  # type: ignore[arg-type]


# --- batch norm and sign ----------------------------------------------------------------------------------------------


def moments(shape: tuple[int, ...], layout: torch.memory_format, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    form = layout if len(shape) == 4 else torch.contiguous_format
    mean, var = 3 * torch.randn(shape) + 1, 4 * torch.rand(shape)
    mean.flatten()[0], var.flatten()[0] = 5.0, 0.0  # one that is certain
    return mean.to(dtype, memory_format=form), var.to(dtype, memory_format=form)


SHAPES = [(50, 7), (6, 5, 4, 3), (5, 64, 7, 7), (4, 3, 9)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_statistics(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    mean, var = moments(shape, layout, LOW)
    wanted = normalized_sign.statistics(mean.double(), var.double())
    for found, value in zip(cpu_cnn.statistics(mean, var), wanted, strict=True):
        assert_close(found.double(), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_statistics_where_the_first_number_lies_far_away(layout: torch.memory_format) -> None:
    mean, var = (tensor.to(memory_format=layout) for tensor in (images(8, 3, 9, 9), images(8, 3, 9, 9).abs()))
    mean[0, :, 0, 0] = 1000.0
    wanted = normalized_sign.statistics(mean.double(), var.double())
    for found, value in zip(cpu_cnn.statistics(mean, var), wanted, strict=True):
        assert_close(found.double(), value, rtol=1e-6, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [LOW, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_sign_and_its_gradients(shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format) -> None:
    mean, var = moments(shape, layout, dtype)
    channels = shape[1]
    direction, offset = torch.randn(channels).sign(), torch.randn(channels)
    direction[0], offset[0] = 0.0, math.inf  # a channel without a weight is certain
    centre, total = torch.randn(channels), 1 + torch.rand(channels)
    shift = offset - direction * centre
    wide = [tensor.double() for tensor in (mean, var, direction, shift)]
    found = cpu_cnn.sign(mean, var, direction, shift)
    wanted = torch.erf(normalized_sign._score(*wide) * 0.5**0.5)
    assert found.dtype == LOW
    assert_close(found.double(), wanted, rtol=2**-8, atol=1e-6)
    grad = torch.randn(shape).to(LOW)
    kept_mean, kept_var = mean.to(LOW), var.to(LOW)
    for count in (math.inf, float(mean.numel() // channels)):
        arguments = (direction, offset, shift, centre, total)
        exact = normalized_sign._backward(
            grad.double(), kept_mean.double(), kept_var.double(), *(each.double() for each in arguments), count,
            torch.float64,
        )  # fmt: skip
        results = cpu_cnn.sign_backward(grad, kept_mean, kept_var, *arguments, count, dtype)
        for result, value in zip(results, exact, strict=True):
            assert_close(result.double(), value, rtol=1e-2 if result.dtype == LOW else 1e-4, atol=2e-4)
        assert {result.dtype for result in results[:2]} == {dtype}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["expanded", "expanded over examples", "turned", "half of more channels", "cropped"])
def test_gradients_of_any_layout(form: str, layout: torch.memory_format) -> None:
    """What comes back from a sum, a mean, a transposition or a concatenation is not dense."""
    shape = (6, 5, 4, 4)
    mean, var = moments(shape, layout, LOW)
    grad = {
        "expanded": images(1).expand(shape),
        "expanded over examples": images(1, *shape[1:], layout=layout).expand(shape),
        "turned": images(*shape, layout=layout).mT,
        "half of more channels": images(6, 10, 4, 4, layout=layout)[:, 2:7],
        "cropped": images(6, 5, 6, 6, layout=layout)[:, :, 1:5, 1:5],
    }[form]
    assert grad.shape == shape
    channels = [torch.ones(5), torch.randn(5), torch.randn(5), torch.randn(5), 1 + torch.rand(5)]
    for dtype in (LOW, torch.float32):
        found = cpu_cnn.sign_backward(grad, mean, var, *channels, 96.0, dtype)
        wanted = cpu_cnn.sign_backward(grad.clone(memory_format=layout), mean, var, *channels, 96.0, dtype)
        assert_close(found, wanted, rtol=0, atol=0)


def test_sums_of_a_network_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a sum is one number in all places."""
    if not devices.CPU_HAS_BFLOAT16:
        pytest.skip("nothing is lowered here")
    torch.manual_seed(0)
    net = bqn.nn.Sequential(bqn.nn.Linear(16, 8), bqn.nn.BatchNorm1d(8), bqn.nn.Sign())
    x, found = torch.randn(5, 16), []
    for library in (cpu._library, None):
        monkeypatch.setattr(cpu, "_library", library)
        net.zero_grad()
        with torch.enable_grad(), half.lowered():
            net(x).mean.sum().backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in net.parameters()]))  # type: ignore[union-attr]
    fast, slow = found
    assert float((fast - slow).norm()) <= 0.02 * float(slow.norm())


def test_a_nan_stays_a_nan() -> None:
    mean, var = images(2, 3, 4, 4), images(2, 3, 4, 4).abs()
    mean[0, 0, 0, 0], var[1, 2, 3, 3] = math.nan, math.nan
    found = cpu_cnn.sign(mean, var, torch.ones(3), torch.zeros(3))
    assert torch.isnan(found).sum() == 2
    assert torch.isnan(cpu_cnn.statistics(mean, var)[1]).tolist() == [True, False, True]
    assert torch.isnan(strided_average(mean, (2, 2), (2, 2))).sum() == 1


# --- a network --------------------------------------------------------------------------------------------------------


def gradients(net: bqn.Network, x: Tensor, y: Tensor, low: bool) -> dict[str, Tensor]:
    net.zero_grad()
    with torch.enable_grad(), half.lowered() if low else nullcontext():
        (-net.elbo(x, y, len(x), 1e-2)).backward()
    return {name: parameter.grad.double() for name, parameter in net.named_parameters() if parameter.grad is not None}


def errors(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    assert found.keys() == wanted.keys()
    return {name: float((found[name] - value).norm() / (value.norm() + 1e-9)) for name, value in wanted.items()}


@pytest.mark.skipif(not devices.CPU_HAS_BFLOAT16, reason="this CPU has no products in bfloat16")
@pytest.mark.parametrize("build", [bqn.models.cnn, bqn.models.vgg], ids=["cnn", "vgg"])
def test_gradients_of_a_network_are_as_near_to_float64_as_without_them(
    build: Callable[..., bqn.Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    channels = (16, 24) if build is bqn.models.cnn else (16, 16, 24)
    net = build((1, 16, 16), 4, channels=channels, hidden=32).train()
    x, y = torch.rand(8, 1, 16, 16) * 2 - 1, torch.randint(4, (8,))
    fast = gradients(net, x, y, low=True)
    monkeypatch.setattr(cpu, "_library", None)
    slow = gradients(net, x, y, low=True)
    exact = gradients(net.double(), x.double(), y, low=False)
    fast_errors, slow_errors = errors(fast, exact), errors(slow, exact)
    for name, error in fast_errors.items():
        assert error < 1.5 * slow_errors[name] + 0.01, (name, error, slow_errors[name])
    assert sum(fast_errors.values()) < 1.1 * sum(slow_errors.values())
