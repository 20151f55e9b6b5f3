"""Half-precision moments of more than two levels against float64; Triton on a GPU or in its interpreter."""

import copy

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn.propagate import half, levels_half, levels_kernels, pair_kernels, triple_kernels
from bqn.propagate.pair_kernels import Plan, Tiles
from bqn.propagate.products import Geometry, product
from bqn.propagate.windows import over_places

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.gpu
SMALL = Tiles(16, 16, 16, 4, 2)
KINDS = ["given", "signs", "known"]
SQUARE = 2.25  # of inputs ±1.5
ORDER = 5e-3  # what a library may change that adds up in another order, before it rounds
CASES = {
    "one": ((1, 1), (1, 1), None),
    "odd": ((5, 3), (7, 3), None),
    "tiles": ((33, 40), (17, 40), None),
    "split": ((20, 150), (3, 150), None),
    "wide": ((3, 1030), (2, 1030), None),
    "convolution": ((2, 17, 4, 3), (5, 17, 3, 2), Geometry((1, 2), (1, 0), (1, 1), 1)),
    "no padding": ((2, 18, 4, 4), (3, 18, 4, 4), Geometry((1, 1), (0, 0), (1, 1), 1)),
    "by one": ((3, 16, 2, 2), (5, 16, 1, 1), Geometry((1, 1), (0, 0), (1, 1), 1)),
}
FORMS = ["passes", "kernels", "triple"]
PAIRS = [
    (form, name) for name in CASES for form in FORMS if form != "triple" or (CASES[name][2] is None and name != "wide")
]
FEW = [(form, name) for form, name in PAIRS if name in ("odd", "convolution")]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """In plain torch, or in Triton element by element, or matrix products too, in tiles that the shapes do not fit."""
    name = str(request.param)
    monkeypatch.setattr(half, "kernels_take", lambda *_: name != "passes")
    monkeypatch.setattr(half, "pair_kernels_take", lambda *_: False)
    if name == "triple":
        take_triple(monkeypatch, False)
    return name


def take_triple(monkeypatch: pytest.MonkeyPatch, rounded: bool) -> None:
    """Matrix products in Triton, of inputs that are rounded: it does not take others."""
    dense = levels_half._dense

    def low(x: Tensor, geometry: Geometry | None) -> Tensor:
        return dense(x.bfloat16() if geometry is None else x, geometry)

    monkeypatch.setattr(levels_half, "_dense", low)
    monkeypatch.setattr(half, "pair_kernels_take", lambda x, weight, geometry: geometry is None)
    monkeypatch.setattr(triple_kernels, "plan", lambda *_: Plan(SMALL, SMALL, SMALL, rounded))


def operands(name: str, kind: str) -> tuple[list[Tensor], Geometry | None]:
    """x, ν, M, V and the centre, in float64; what is rounded to bfloat16 is rounded already."""
    x_shape, w_shape, geometry = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    x = (3 * torch.rand(x_shape, generator=generator) - 1.5).bfloat16().double()
    var = (0.1 + torch.rand(x_shape, generator=generator)).bfloat16().double()
    probs = torch.softmax(2 * torch.randn(*w_shape, 4, generator=generator), -1).double()
    levels = torch.tensor([-2.0, -0.5, 0.5, 2.0], dtype=torch.float64)
    mean = probs @ levels
    centre = 0.3 * torch.randn(w_shape[1:], generator=generator).double()
    return [
        tensor.to(DEVICE)
        for tensor in (x, var if kind == "given" else x, mean, probs @ levels.square() - mean.square(), centre)
    ], geometry


def truth(
    x: Tensor, var: Tensor | None, input_square: float | None, mean: Tensor, noise: Tensor, centre: Tensor | None,
    geometry: Geometry | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if centre is None:
        total = product(x.square(), noise, geometry)
    elif geometry is None:
        total = product((x - centre).square(), noise, geometry)
    else:
        middle = over_places(centre)
        total = product(x * (x - 2 * middle), noise, geometry)
        total = total + (noise * middle.square()).sum((1, 2, 3)).reshape(-1, 1, 1)
    doubt = var if input_square is None else input_square - x.square()
    if doubt is not None:
        total = total + product(doubt, noise + mean.square(), geometry)
    return product(x, mean, geometry), total


def run(function, tensors: list[Tensor], kind: str, centred: bool, geometry: Geometry | None, turned: bool = False):
    """Moments, then their gradients by all that are given: x, ν, M, V and the centre."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    turn = (lambda tensor: tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor) if turned else (lambda t: t)
    x, var, mean, noise, centre = map(turn, leaves)
    both = function(
        x, var if kind == "given" else None, SQUARE if kind == "signs" else None, mean, noise,
        centre if centred else None, geometry,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(both[0].shape, generator=generator).bfloat16().to(DEVICE, both[0].dtype) for _ in both]
    by = [leaves[0], *([leaves[1]] if kind == "given" else []), *leaves[2:4], *([leaves[4]] if centred else [])]
    return [*both, *torch.autograd.grad(both, by, list(map(turn, upstream)))]


def assert_alike(ours: list[Tensor], wanted: list[Tensor], within: float = 0.012) -> None:
    for mine, true in zip(ours, wanted, strict=True):
        assert mine.shape == true.shape
        gap = (mine.double() - true.double()).norm() / true.double().norm().clamp_min(1e-3)
        assert float(gap.detach()) < within


def low(function):
    def inside(*args):
        with half.lowered():
            return function(*args)

    return inside


@pytest.mark.parametrize(("form", "name"), PAIRS, indirect=["form"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("centred", [True, False])
def test_moments_and_gradients(form: str, name: str, kind: str, centred: bool) -> None:
    tensors, geometry = operands(name, kind)
    wanted = run(truth, tensors, kind, centred, geometry)
    tensors = [tensor.float() for tensor in tensors]
    ours = run(low(levels_half.moments_of_levels), tensors, kind, centred, geometry)
    assert all(tensor.dtype == torch.float32 for tensor in ours)
    assert bool((ours[1] >= 0).all())
    assert_alike(ours, wanted, 0.03 if name == "one" else 0.012)  # in sums of one no error meets another


@pytest.mark.parametrize("name", ["tiles", "split"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("centred", [True, False])
def test_weights_and_gradients_that_are_rounded_beforehand(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: str, centred: bool
) -> None:
    tensors, geometry = operands(name, kind)
    results = []
    for rounded in (True, False):
        take_triple(monkeypatch, rounded)
        results.append(run(low(levels_half.moments_of_levels), [t.float() for t in tensors], kind, centred, geometry))
    assert_alike(*results, within=1e-3)


def test_the_case_that_splits_its_sum_does() -> None:
    rows, inputs = CASES["split"][0]
    assert pair_kernels.split_of(pair_kernels.blocks_of(rows, 3, SMALL), inputs, SMALL)[0] > 1


@pytest.mark.parametrize(("form", "name"), FEW, indirect=["form"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_strides(form: str, name: str, kind: str) -> None:
    tensors, geometry = operands(name, kind)
    tensors = [tensor.float() for tensor in tensors]
    straight = run(low(levels_half.moments_of_levels), tensors, kind, True, geometry)
    assert_alike(run(low(levels_half.moments_of_levels), tensors, kind, True, geometry, turned=True), straight, ORDER)
    rounded = [tensors[0].bfloat16(), tensors[1].bfloat16(), *tensors[2:]]
    assert_alike(run(low(levels_half.moments_of_levels), rounded, kind, True, geometry, turned=True), straight, 0.008)


@pytest.mark.parametrize("name", ["odd", "convolution"])
def test_tiles_of_several_rows(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(half, "kernels_take", lambda *_: True)
    monkeypatch.setattr(half, "PAIR_KERNELS", False)
    tensors, geometry = operands(name, "signs")
    tensors = [tensor.float() for tensor in tensors]
    alone = run(low(levels_half.moments_of_levels), tensors, "signs", True, geometry)
    monkeypatch.setattr(levels_kernels, "tile_for", lambda *_: {"ROWS": 4, "CHANNELS": 8})
    assert_alike(run(low(levels_half.moments_of_levels), tensors, "signs", True, geometry), alone, ORDER)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (0, 4), (2, 3)])
@pytest.mark.parametrize(("form", "name"), FEW, indirect=["form"])
def test_gradients_that_are_asked_for(form: str, name: str, wanted: tuple[int, ...]) -> None:
    """Alone they are what they are among all."""
    tensors, geometry = operands(name, "given")
    tensors = [tensor.float() for tensor in tensors]
    everything = run(low(levels_half.moments_of_levels), tensors, "given", True, geometry)[2:]
    leaves = [tensor.clone().requires_grad_(index in wanted) for index, tensor in enumerate(tensors)]
    with half.lowered():
        both = levels_half.moments_of_levels(*leaves[:2], None, *leaves[2:], geometry)
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(both[0].shape, generator=generator).bfloat16().float().to(DEVICE) for _ in both]
    ours = torch.autograd.grad(both, [leaves[index] for index in wanted], upstream)
    assert_alike(list(ours), [everything[index] for index in wanted], ORDER)


@pytest.mark.parametrize("shape", [(0, 5, 6), (4, 5, 0)])
@pytest.mark.parametrize("take", [True, False])
def test_nothing_to_add_up(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], take: bool) -> None:
    """No examples, or no inputs: the sum of nothing is a known zero."""
    if take:
        take_triple(monkeypatch, False)
    rows, units, inputs = shape
    leaves = [torch.ones(s, device=DEVICE, requires_grad=True) for s in ((rows, inputs),) * 2 + ((units, inputs),) * 2]
    with half.lowered():
        mean, var = levels_half.moments_of_levels(*leaves[:2], None, *leaves[2:], None, None)
    assert mean.shape == var.shape == (rows, units)
    assert not mean.any()
    assert not var.any()
    for leaf, grad in zip(leaves, torch.autograd.grad((mean.sum() + var.sum()), leaves), strict=True):
        assert grad.shape == leaf.shape
        assert not grad.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("form", "name"), FEW, indirect=["form"])
def test_inputs_in_half_precision_are_what_they_are_in_full(form: str, name: str, kind: str) -> None:
    """The inputs of these tests have no more digits than that."""
    tensors, geometry = operands(name, kind)
    wide = [tensor.float() for tensor in tensors]
    rounded = [wide[0].bfloat16(), wide[1].bfloat16(), *wide[2:]]
    ours, theirs = (run(low(levels_half.moments_of_levels), each, kind, True, geometry) for each in (rounded, wide))
    assert_alike(ours, theirs, 0.008)  # the gradient by the inputs is rounded as they are


@pytest.mark.parametrize("take", [True, False])
@pytest.mark.parametrize("sure", [True, False])
def test_what_is_formed_from_inputs_is_formed_before_they_are_rounded(
    monkeypatch: pytest.MonkeyPatch, take: bool, sure: bool
) -> None:
    """Images that are all alike, and signs that are nearly certain: bfloat16 cannot tell either from a constant."""
    monkeypatch.setattr(half, "kernels_take", lambda *_: take)
    generator = torch.Generator().manual_seed(0)
    x = (0.999 + 0.0009 * torch.rand(8, 64, generator=generator) if sure else
         0.9 + 0.009 * torch.rand(8, 64, generator=generator)).to(DEVICE)  # fmt: skip
    mean = (0.99 * torch.rand(4, 64, generator=generator).sign()).to(DEVICE)
    noise, square = torch.full_like(mean, 1e-3), 1.0 if sure else None
    centre = x.mean(0)
    wanted = truth(*(None if each is None else each.double() for each in (x, None)), square,
                   mean.double(), noise.double(), centre.double(), None)[1]  # fmt: skip
    with half.lowered():
        _, var = levels_half.moments_of_levels(x, None, square, mean, noise, centre, None)
    assert_close(var.double(), wanted, rtol=0.01, atol=0)


def test_many_at_once_and_gradients_of_functions() -> None:
    """`torch.func` goes through it."""
    tensors, _ = operands("tiles", "given")
    x, var, mean, noise, centre = (tensor.float() for tensor in tensors)

    def total(x: Tensor, var: Tensor) -> Tensor:
        moments = levels_half.moments_of_levels(x, var, None, mean, noise, centre, None)
        return moments[0].sum() + moments[1].sum()

    both = torch.stack((x, -x)), torch.stack((var, var))
    with half.lowered():
        ours = torch.func.vmap(torch.func.grad(total))(*both)
        theirs = torch.stack([torch.func.grad(total)(*each) for each in zip(*both, strict=True)])
    assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


def test_a_nearly_certain_weight_keeps_its_variance(form: str) -> None:
    """Rounded to bfloat16 first, these weights would be 1 and have none."""
    x = torch.ones(1, 64, device=DEVICE)
    mean = torch.full((1, 64), 0.999, device=DEVICE)
    with half.lowered():
        _, var = levels_half.moments_of_levels(x, None, 1.0, mean, 1 - mean.square(), None, None)
    assert float(var) == pytest.approx(64 * (1 - 0.999**2), rel=1e-2)


def test_uncertain_inputs_pull_by_the_mean_of_the_weights_alone(form: str) -> None:
    """The variance of ±1 times a weight is S less M² x²; of a weight of mean near zero next to nothing is left."""
    x = torch.full((2, 64), 0.75, device=DEVICE, requires_grad=True)
    mean, noise = torch.full((3, 64), 0.01, device=DEVICE), torch.full((3, 64), 0.7, device=DEVICE)
    with half.lowered():
        _, var = levels_half.moments_of_levels(x, None, 1.0, mean, noise, None, None)
    (grad,) = torch.autograd.grad(var.sum(), x)
    assert_close(grad, torch.full_like(grad, -3 * 2 * 0.75 * 0.01**2), rtol=0.01, atol=0)


def test_what_rounding_took_below_zero_passes_its_gradient(form: str) -> None:
    """All inputs at their centre: nothing is left, but for what bfloat16 makes of the squares."""
    x = torch.full((2, 16, 3, 3), 0.9, device=DEVICE)
    noise = torch.rand(4, 16, 3, 3, device=DEVICE).requires_grad_()
    centre = torch.full((16, 3, 3), 0.9, device=DEVICE)
    geometry = Geometry((1, 1), (0, 0), (1, 1), 1)
    with half.lowered():
        _, var = levels_half.moments_of_levels(x, None, None, torch.zeros_like(noise), noise, centre, geometry)
    assert bool((var >= 0).all())
    assert float(var.detach().max()) < 0.02 * float(noise.detach().sum((1, 2, 3)).max())
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(var.sum(), [noise]))


def test_backward_keeps_the_operands_alone() -> None:
    kept: list[Tensor] = []
    tensors, geometry = operands("convolution", "signs")
    x, _, mean, noise, centre = (tensor.float().requires_grad_() for tensor in tensors)
    noted = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with noted, half.lowered():
        levels_half.moments_of_levels(x, None, SQUARE, mean, noise, centre, geometry)

    assert all(tensor.dtype == torch.float32 for tensor in kept)
    assert [tensor.shape for tensor in kept] == [x.shape, mean.shape, noise.shape, centre.shape]


def test_every_shape_has_a_plan() -> None:
    for rows in (1, 100, 512, 4096):
        for units, inputs in ((10, 256), (512, 784), (1024, 8192), (4096, 4096)):
            assert set(triple_kernels.plan(rows, units, inputs)[:3]) <= set(triple_kernels.CHOICES)


@pytest.mark.parametrize("activations", [bqn.BINARY, (-1.0, -0.25, 0.25, 1.0)])
@pytest.mark.parametrize("levels", [bqn.TERNARY, bqn.BINARY])
@pytest.mark.parametrize("image", [False, True])
def test_a_whole_network_trains_alike(form: str, levels, activations, image: bool) -> None:
    """The objective in mixed precision is that of full precision within a percent; its gradient points the same way."""
    torch.manual_seed(0)
    if image:
        net = bqn.models.cnn((1, 8, 8), 3, (16, 16), 32, levels=levels, activations=activations)
    else:
        net = bqn.models.mlp(20, 3, (40, 30), levels=levels, activations=activations)
    net = net.to(DEVICE)
    x = torch.rand((32, 1, 8, 8) if image else (32, 20), device=DEVICE) * 2 - 1
    y = torch.randint(3, (32,), device=DEVICE)
    twin = copy.deepcopy(net)
    full = net.elbo(x, y, 1000, 1e-2)
    with half.lowered():
        mixed = twin.elbo(x, y, 1000, 1e-2)
    assert_close(mixed, full, rtol=1e-2, atol=0)
    full_grads, mixed_grads = (
        torch.autograd.grad(loss, list(of.parameters())) for loss, of in ((full, net), (mixed, twin))
    )
    for ours, theirs in zip(mixed_grads, full_grads, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        if theirs.numel() > 100:
            assert float(torch.cosine_similarity(ours.flatten(), theirs.flatten(), 0)) > 0.99


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # what the tracer does itself
def test_it_is_traced_as_a_whole() -> None:
    tensors, geometry = operands("convolution", "given")
    tensors = [tensor.float() for tensor in tensors]
    plain = levels_half.moments_of_levels
    traced = torch.compile(plain, fullgraph=True, backend="aot_eager")
    assert_alike(run(low(traced), tensors, "given", True, geometry), run(low(plain), tensors, "given", True, geometry))
    torch.compiler.reset()
