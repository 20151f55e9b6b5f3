"""Units that read the same inputs err together: covariances written out, and networks that are drawn."""

import gc
import weakref

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bqn
from bqn import nn
from bqn.beliefs import Categorical
from bqn.levels import BINARY, TERNARY
from bqn.propagate import neighbours, units
from bqn.propagate.neighbours import Neighbours
from bqn.propagate.units import Units


def two_levels(*shape: int, seed: int = 0, known: Neighbours | None = None) -> Categorical:
    generator = torch.Generator().manual_seed(seed)
    tilt = 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1
    return Categorical.of((-1.0, 1.0), mean=tilt, neighbours=known)


def covariance(inputs: Categorical) -> Tensor:
    """Of the inputs of each example, `(N, inputs, inputs)`; in a channel all places have their mean variance."""
    var = inputs.var
    if inputs.neighbours is None:
        return torch.diag_embed(var)
    correlation, places = inputs.neighbours
    assert places is not None
    apart = neighbours.matrix(correlation, places)
    count = apart.shape[0]
    channels = var.shape[-1] // count
    mean = var.unflatten(-1, (channels, count)).mean(-1)
    blocks = torch.stack([torch.block_diag(*(level * apart for level in example)) for example in mean])
    return blocks - torch.diag_embed(torch.diagonal(blocks, dim1=-2, dim2=-1)) + torch.diag_embed(var)


def written_out(known: Units, inputs: Categorical, weight: Tensor) -> Tensor:
    """w ∘ g by the covariance of the sums by g ∘ w, without its diagonal."""
    assert known.slope is not None
    sums = known.weight @ covariance(inputs) @ known.weight.mT
    sums = sums - torch.diag_embed(torch.diagonal(sums, dim1=-2, dim2=-1))
    scaled = weight * known.slope().unsqueeze(1)
    return torch.einsum("nci,nij,ncj->nc", scaled, sums, scaled)


def example(places: tuple[int, ...] | None, **options: bool) -> tuple[Units, Categorical, Tensor]:
    torch.manual_seed(3)
    near = None if places is None else Neighbours(torch.tensor(0.6, dtype=torch.float64), places)
    inputs = two_levels(5, 12, known=near)
    weight = torch.randn(7, 12, dtype=torch.float64)
    slope = torch.rand(5, 7, dtype=torch.float64)
    known = units.that_read(inputs, weight)._replace(slope=lambda: slope, **options)
    return known, inputs, torch.randn(3, 7, dtype=torch.float64)


@pytest.mark.parametrize("places", [None, (2, 2), (3,)])
def test_noise_is_the_covariance_written_out(places: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    known, inputs, weight = example(places)
    whole = units.common_noise(known, weight)
    assert_close(whole, written_out(known, inputs, weight))
    monkeypatch.setattr(units, "_AT_ONCE", 100)  # example by example
    assert_close(units.common_noise(known, weight), whole)


def test_mean_slopes_are_exact_where_all_examples_have_the_same_up_to_a_factor() -> None:
    known, inputs, weight = example(None, from_batch=True)
    slope = torch.tensor([[0.5], [1.0], [2.0], [1.5], [0.2]], dtype=torch.float64) * torch.linspace(
        0.1, 1, 7, dtype=torch.float64
    )
    known = known._replace(slope=lambda: slope)
    assert_close(units.common_noise(known, weight), written_out(known, inputs, weight))


def test_behind_convolutions_every_example_has_its_own_slopes() -> None:
    """Weights whose noise cancels at the mean slopes claim no more than at the slopes that there are."""
    known, inputs, weight = example((2, 2), from_batch=True)
    assert_close(units.common_noise(known, weight), written_out(known, inputs, weight))


@pytest.mark.parametrize("places", [None, (3,)])
@pytest.mark.parametrize(("from_batch", "at_once"), [(False, 2**25), (False, 10), (True, 2**25)])
def test_gradients(
    from_batch: bool, at_once: int, places: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "_AT_ONCE", at_once)
    tilt = (2 * torch.rand(3, 6, dtype=torch.float64) - 1).requires_grad_()
    inner, outer = (torch.randn(4, 6, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64))
    lean, var = 1.8 * torch.rand(3, 4, dtype=torch.float64) - 0.9, 1 + torch.rand(3, 4, dtype=torch.float64)
    near = None if places is None else Neighbours(torch.tensor(0.6, dtype=torch.float64), places)

    def noise(tilt: Tensor, inner: Tensor, outer: Tensor, lean: Tensor, var: Tensor) -> Tensor | None:
        read = Categorical.of((-1.0, 1.0), mean=tilt, neighbours=near)
        slope = units.slope_of_quantized([units.density_of(lean)], [2.0], var, None)
        known = units.that_read(read, inner)._replace(slope=lambda: slope, from_batch=from_batch)
        return units.common_noise(known, outer)

    assert torch.autograd.gradcheck(noise, [tilt, *(tensor.requires_grad_() for tensor in (inner, outer, lean, var))])


@pytest.mark.parametrize("places", [None, (3,)])
def test_variances_in_half_precision(places: tuple[int, ...] | None) -> None:
    """As on a GPU, which has them in bfloat16; float16 is what CPUs can multiply."""
    torch.manual_seed(0)
    outer, slope, inner = torch.randn(3, 20), torch.rand(5, 20), torch.rand(20, 60) * 2 - 1
    var = torch.rand(5, 60).half()
    near = None if places is None else neighbours.matrix_of_pairs(torch.tensor(0.6), places)
    level = None if places is None else var.unflatten(-1, (-1, *places)).mean(-1)
    pairs = None if near is None else neighbours.over_pairs(inner.unflatten(-1, (-1, *places)), near)
    results = []
    for dtype, low in ((torch.float64, torch.float64), (torch.float32, torch.float16)):
        given = [tensor.to(dtype).requires_grad_() for tensor in (outer, slope, inner)]
        of_pairs = None if pairs is None else pairs.to(dtype).requires_grad_()
        noise = [tensor if tensor is None else tensor.to(low).requires_grad_() for tensor in (var, level)]
        apart = None if near is None else near.to(dtype)
        found = units._Gain.apply(*given, apart, of_pairs, *noise)  # type: ignore[no-untyped-call]
        known = [*given, *(tensor for tensor in (of_pairs, *noise) if tensor is not None)]
        grads = torch.autograd.grad(found.sum(), known)
        assert [grad.dtype for grad in grads] == [tensor.dtype for tensor in known]
        results.append((found.detach(), *grads))
    for exact, rounded in zip(*results, strict=True):
        assert float((rounded.double() - exact).norm() / exact.norm()) < 0.01


@pytest.mark.parametrize("levels", [(-1.0, 1.0), (0.0, 3.0), (-1.0, 0.0, 1.0), (-2.0, -0.5, 0.5, 1.0)])
def test_slope_is_that_of_the_mean(levels: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    linear, norm = nn.Linear(40, 9).double(), nn.BatchNorm1d(9).double().eval()
    norm.weight.data.normal_()  # of either sign
    norm.running_mean.normal_()
    for layers in ([], [norm]):
        sums = linear(two_levels(5, 40))
        mean = sums.mean.detach().requires_grad_()
        sums._mean, sums._total = mean, lambda mean=mean, var=sums.var: (mean, var)
        sums._within = None
        quantized = nn.Sequential(*layers, nn.Quantize(levels))(sums)
        (wanted,) = torch.autograd.grad(quantized.mean.sum(), mean)
        assert_close(quantized.units.slope(), wanted)


def test_there_is_no_slope_where_there_is_no_doubt() -> None:
    """However small the variance that rounding has left: the mean of such a unit does not move."""
    sure = units.density_of(torch.tensor([1.0, -1.0, 1.0]))
    slope = units.slope_of_quantized([sure], [2.0], torch.tensor([0.0, 1.0, 1e-12]), None)
    assert slope.tolist() == [0.0, 0.0, 0.0]


def test_a_sharp_network_has_no_more_doubt_in_float32() -> None:
    torch.manual_seed(0)
    net = bqn.models.mlp(100, 10, hidden=(1000, 1000), batch_norm=False)
    for _, posterior in net.posteriors():
        posterior.logits.data.mul_(40)
    x = torch.randn(20, 100)
    with torch.no_grad():
        single = net(x).var.max()
        exact = net.double()(x.double()).var.max()
    assert float(single) < 2 * float(exact) + 10


def test_beliefs_hold_on_to_one_layer_only() -> None:
    layers = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(40, 40), nn.Sign())))
    x, held = torch.randn(3, 40), []
    with torch.no_grad():
        for layer in layers:
            x = layer(x)
            if isinstance(x, Categorical):
                held.append(weakref.ref(x.mean))
    gc.collect()
    alive = [mean() is not None for mean in held]
    assert alive == [False, False, True, True], "the inputs of the last units, and these themselves"


def trained_layers(batch_norm: bool, levels: tuple[float, ...]) -> tuple[bqn.Network, Tensor]:
    """A network whose last weights follow what the units have in common, as training makes them."""
    torch.manual_seed(0)
    net = bqn.models.mlp(40, 3, hidden=(120, 80), levels=levels, activations=levels, batch_norm=batch_norm)
    x = torch.randn(64, 40)
    y = (x[:, :3] + 0.3 * torch.randn(64, 3)).argmax(-1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    net.train()
    for _ in range(60):
        optimizer.zero_grad()
        (-net.elbo_terms(x, y, 640, 0.3).value).backward()
        optimizer.step()
    if batch_norm:
        bqn.recalibrate(net, x)
    return net.eval(), x[:16]


@pytest.mark.parametrize(("batch_norm", "levels"), [(True, BINARY), (False, BINARY), (True, TERNARY)])
@torch.no_grad()
def test_variance_of_logits_is_that_of_drawn_networks(
    batch_norm: bool, levels: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.enable_grad():
        net, x = trained_layers(batch_norm, levels)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.stack([net.sample(generator)(x) for _ in range(2000)]).var(0).sum()
    assert float(net(x).var.sum() / drawn) == pytest.approx(1, abs=0.1)
    monkeypatch.setattr(units, "common_noise", lambda *_: None)
    assert float(net(x).var.sum() / drawn) < 0.75


def test_left_out_where_it_is_not_known() -> None:
    known, _, weight = example(None)
    assert units.common_noise(known._replace(slope=None), weight) is None
    assert units.common_noise(known, torch.ones(units.MOST_OUTPUTS + 1, 7, dtype=torch.float64)) is None
    layers = nn.Sequential(nn.Linear(40, 50), nn.Sign(), nn.Linear(50, 60), nn.Sign())
    assert layers[:2](torch.randn(4, 40)).units is None, "the inputs are known"
    behind = layers(torch.randn(4, 40))
    assert behind.units is not None
    assert behind.reshape(2, 2, 60).units is None
    assert behind.units.slope().shape == (4, 60)
