"""Batch norm on beliefs: statistics by total variance, and the noise that it takes out again."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import bqn
from bqn.propagate import neighbours
from tests.nn.contract import LayerContract, assert_named_error, random_categorical


class TestBatchNorm1d(LayerContract):
    """Evaluation mode: an affine map, exact in mean and variance."""

    input_shape = (1, 3)
    moments_only = True

    def create_layer(self) -> bqn.nn.Layer:
        torch.manual_seed(3)
        norm = bqn.nn.BatchNorm1d(3)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        return norm


def test_statistics_follow_the_law_of_total_variance() -> None:
    norm = bqn.nn.BatchNorm1d(3, momentum=1.0, affine=False).double()
    x = bqn.Gaussian(torch.randn(50, 3).double() * 2 + 1, torch.rand(50, 3).double())
    result = norm(x)
    total = x.mean.var(0, correction=0) + x.var.mean(0)
    assert_close(result.mean, (x.mean - x.mean.mean(0)) / (total + norm.eps).sqrt())
    assert_close(result.var, x.var / (total + norm.eps))
    assert_close(norm.running_mean, x.mean.mean(0))
    assert_close(norm.running_var, total * 50 / 49)
    draws = torch.stack([x.sample() for _ in range(4000)])  # what sampled networks see
    assert_close(draws.flatten(0, 1).var(0), total, rtol=0.02, atol=0)


def test_tensor_input_is_ordinary_batch_norm() -> None:
    ours, theirs = bqn.nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    x = torch.randn(5, 3, 4, 4)
    for _ in range(2):
        assert_close(ours(x), theirs(x))
    ours.eval(), theirs.eval()
    assert_close(ours(x), theirs(x))
    assert ours.num_batches_tracked == 2


@pytest.mark.parametrize("levels", [bqn.BINARY, bqn.TERNARY])
def test_linear_before_batch_norm_leaves_out_the_common_noise(levels: tuple[float, ...]) -> None:
    """V((μ-μ̄)² + ν) + M²ν and no bias variance (reading: what batch norm subtracts is not noise behind it)."""
    linear, norm = bqn.nn.Linear(60, 5, levels=levels).double(), bqn.nn.BatchNorm1d(5, affine=False).double()
    x = random_categorical((20, 60), bqn.BINARY)
    M, V = linear.weight.mean, linear.weight.var
    centre = x.mean.mean(0)
    var = ((x.mean - centre).square() + x.var) @ V.T + x.var @ M.square().T
    mean = x.mean @ M.T + linear.bias.mean
    total = mean.var(0, correction=0) + var.mean(0)
    result = norm(linear(x))
    assert_close(result.mean, (mean - mean.mean(0)) / (total + norm.eps).sqrt())
    assert_close(result.var, var / (total + norm.eps))
    assert_close(linear.input_centre, 0.1 * centre)  # momentum 0.1 from zero


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_before_batch_norm_centres_every_channel(padding: int, groups: int) -> None:
    """ν̃ = S*ν + V*(μ - c)² with padded zeros in μ and in c; here term by term from unfolded windows."""
    conv = bqn.nn.Conv2d(2, 4, 3, padding=padding, groups=groups, bias=False, method="clt").double()
    x = random_categorical((6, 2, 5, 4), bqn.BINARY)
    read_mean = F.unfold(x.mean, 3, padding=padding)  # (N, C*9, L)
    read_var = F.unfold(x.var, 3, padding=padding)
    centre = read_mean.mean((0, 2))
    M, V = torch.zeros(4, 18).double(), torch.zeros(4, 18).double()
    for group in range(groups):  # spread grouped filters over all channels
        rows, columns = slice(group * 4 // groups, (group + 1) * 4 // groups), slice(group * 18 // groups, (group + 1) * 18 // groups)  # noqa: E501  # fmt: skip
        M[rows, columns], V[rows, columns] = conv.weight.mean[rows].flatten(1), conv.weight.var[rows].flatten(1)
    middle = centre.reshape(2, 9).mean(1).repeat_interleave(9)
    distance = (read_mean - middle[:, None]).square()
    expected = torch.einsum("oe,nel->nol", V, distance) + torch.einsum("oe,nel->nol", M.square() + V, read_var)
    result = conv(x).within_batch(momentum=0.1).var
    assert_close(result.flatten(2), expected)
    assert_close(conv.input_centre.flatten(), 0.1 * centre)


def test_one_centre_for_all_kernel_offsets_is_nearly_right() -> None:
    """The variance within the batch is S*ν + V*(μ - μ̄_k)²; with one centre a channel it is hardly more."""
    torch.manual_seed(0)
    x = F.interpolate(torch.randn(32, 3, 6, 6), (16, 16), mode="bicubic")
    body = bqn.models.vgg((3, 16, 16), 3, channels=(16, 16), hidden=8).body
    ratios = []
    with torch.no_grad():
        for layer in body[:-4]:
            if isinstance(layer, bqn.nn.Conv2d) and not isinstance(x, torch.Tensor):
                plain = bqn.Categorical.of(bqn.BINARY, mean=x.mean)
                read_mean, read_var = (F.unfold(part, 3, padding=1) for part in (plain.mean, plain.var))
                noise = layer.weight.var.flatten(1)
                distance = (read_mean - read_mean.mean((0, 2), keepdim=True)).square()
                exact = torch.einsum("oe,nel->nol", noise, distance) + read_var.sum(1, keepdim=True)
                ratios.append(float(layer(plain).within_batch(0.1).var.mean() / exact.mean()))
            x = layer(x)
    assert len(ratios) == 3
    assert all(1 <= ratio < 1.005 for ratio in ratios)


def test_running_centre_makes_evaluation_batch_independent() -> None:
    body = bqn.nn.Sequential(bqn.nn.Linear(30, 6), bqn.nn.BatchNorm1d(6)).double()
    for _ in range(200):
        body(torch.randn(64, 30).double() + 2)
    body.eval()
    x = torch.randn(3, 30).double() + 2
    whole, alone = body(x), body(x[:1])
    assert_close(whole.mean[:1], alone.mean)
    assert_close(whole.var[:1], alone.var)


def _trained_body() -> tuple[nn.Module, torch.Tensor]:
    """Two convolutions with batch norm whose inputs are far from zero mean: the common noise is large."""
    body = bqn.nn.Sequential(
        bqn.nn.Conv2d(1, 16, 3, padding=1, bias=False),
        bqn.nn.BatchNorm2d(16, momentum=1.0),
        bqn.nn.AvgPool2d(2),
        bqn.nn.Sign(),
    ).double()
    x = torch.randn(400, 1, 6, 6).double() * 0.5 - 1
    body(x)
    return body.eval(), x


@pytest.mark.parametrize("recalibrated", [False, True])
def test_sampled_networks_have_the_statistics_that_batch_norm_assumed(recalibrated: bool) -> None:
    """Without the shift or recalibration the drawn channels would be off by their common noise."""
    body, x = _trained_body()
    expected = body[:2](x)
    generator = torch.Generator().manual_seed(0)
    spread, centre = [], []
    for _ in range(150):
        plain = bqn.nn.fix(body, lambda p: p.sample(generator))
        if recalibrated:
            bqn.recalibrate(plain, x)
        out = plain[:2](x)
        centre.append(out.mean((0, 2, 3)))
        spread.append(out.var((0, 2, 3)))
    centre, spread = torch.stack(centre), torch.stack(spread)
    assert centre.abs().max() < 1e-2 if recalibrated else centre.abs().mean() < 1e-6  # one pass: centred exactly
    assert_close(spread.mean(), torch.tensor(1.0).double(), rtol=0.1, atol=0)
    # and what the analytic pass says about one example holds over networks
    draws = torch.stack([bqn.nn.fix(body, lambda p: p.sample(generator))[:2](x[:4]) for _ in range(600)])
    assert_close(draws.mean(0), expected.mean[:4], rtol=0, atol=0.25)
    assert_close(draws.var(0).mean(), expected.var[:4].mean(), rtol=0.1, atol=0)


def test_without_the_shift_the_common_noise_would_show() -> None:
    """The same network with the shift removed has channel means far from what batch norm assumed."""
    body, x = _trained_body()
    plain = bqn.nn.fix(body, lambda p: p.sample(torch.Generator().manual_seed(0)))
    raw = copy.deepcopy(plain)
    raw[0].expected_shift = None
    assert raw[:2](x).mean((0, 2, 3)).abs().mean() > 20 * plain[:2](x).mean((0, 2, 3)).abs().mean()


def test_no_batch_norm_no_shift() -> None:
    layer = bqn.nn.Linear(5, 3)
    layer(torch.randn(4, 5))
    plain = bqn.nn.fix(layer, lambda p: p.mode())
    assert plain.expected_shift is None
    x = torch.randn(4, 5)
    assert_close(plain(x), x @ plain.weight.T + plain.bias)


def test_pooling_flatten_and_add_pass_the_question_on() -> None:
    conv = bqn.nn.Conv2d(1, 4, 3, padding=1, method="clt").double()
    x = torch.randn(8, 1, 4, 4).double() + 3
    pooled = bqn.nn.AvgPool2d(2, padding=1)(conv(x))
    inner = conv(x).within_batch(1.0)
    within, share = inner.var, neighbours.of_average(inner.neighbours.correlation, (2, 2))
    assert 0.25 <= float(share) < 1
    assert_close(pooled.within_batch(1.0).var, F.avg_pool2d(within, 2, padding=1) * share)
    assert within.mean() < 0.5 * conv(x).var.mean()
    assert_close(bqn.nn.Flatten()(conv(x)).within_batch(1.0).var, within.flatten(1))
    assert_close(bqn.nn.Add()(conv(x), torch.zeros_like(within)).within_batch(1.0).var, within)
    assert_close(bqn.nn.Add()(conv(x), conv(x)).within_batch(1.0).var, 2 * within)


def test_batch_norm_takes_an_empty_batch_in_training() -> None:
    norm = bqn.nn.BatchNorm1d(3)
    before = norm.running_mean.clone()
    assert norm(bqn.Gaussian(torch.zeros(0, 3), torch.zeros(0, 3))).mean.shape == (0, 3)
    assert norm(torch.zeros(0, 3)).shape == (0, 3)
    assert torch.equal(norm.running_mean, before)


def test_recalibrate_sets_statistics_and_leaves_modes_alone() -> None:
    net = bqn.models.mlp(6, 3, hidden=(8,))
    x = torch.randn(100, 6)
    for qnn in (net.mode(), net.mode()):
        assert bqn.recalibrate(qnn, x) is qnn
        assert not any(module.training for module in qnn.modules())
        before = qnn.body[1](qnn.body[0](x))
        assert_close(qnn.body[2].running_mean, before.mean(0))
        assert_close(qnn.body[2].running_var, before.var(0))
    for batch_size in (20, 99):  # a last batch of one would have no variance, and would count as much as the first
        batched = bqn.recalibrate(net.mode(), x, batch_size=batch_size)
        assert_close(batched.body[2].running_mean, before.mean(0))
        assert_close(batched.body[2].running_var, before.var(0), rtol=0.2, atol=0)
        assert batched.body[2].momentum == 0.1


def test_recalibrate_gives_a_network_with_posteriors_the_statistics_of_its_weights() -> None:
    """What one pass in training mode measures, if nothing of the past is kept: centres and correlations too."""
    net = bqn.models.cnn((1, 8, 8), 3, channels=(4, 4), hidden=8)
    x = torch.randn(60, 1, 8, 8)
    wanted = copy.deepcopy(net).train()
    for norm in (module for module in wanted.modules() if isinstance(module, (bqn.nn.BatchNorm1d, bqn.nn.BatchNorm2d))):
        norm.momentum = 1.0
    wanted(x)
    net.train()
    net(torch.randn(60, 1, 8, 8) + 1)  # of another past
    net.eval()
    bqn.recalibrate(net, x)
    assert not any(module.training for module in net.modules())
    for name, buffer in net.named_buffers():
        if "batches" not in name:
            assert_close(buffer, wanted.get_buffer(name), msg=lambda text, name=name: f"{name}: {text}")
    averaged = bqn.recalibrate(copy.deepcopy(net), x, batch_size=20)
    first = next(name for name, _ in net.named_buffers() if name.endswith("running_mean"))
    assert_close(averaged.get_buffer(first), net.get_buffer(first))


def test_bad_arguments_are_named() -> None:
    assert_named_error(lambda: bqn.nn.BatchNorm1d(0), "num_features")
    assert_named_error(lambda: bqn.nn.BatchNorm1d(3, momentum=0.0), "momentum")
    assert_named_error(lambda: bqn.nn.BatchNorm2d(3)(torch.zeros(2, 3)), "x", "4 dimensions")
    assert_named_error(lambda: bqn.nn.BatchNorm1d(3)(torch.zeros(2, 4)), "x", "3 features")
    qnn = bqn.models.mlp(6, 3, hidden=(8,)).mode()
    assert_named_error(lambda: bqn.recalibrate(qnn, torch.zeros(1, 6)), "x", "two examples")
    assert_named_error(lambda: bqn.recalibrate(qnn, torch.full((4, 6), float("nan"))), "x", "finite")


@pytest.mark.parametrize("method", ["auto", "clt"])
def test_common_noise_is_left_out_behind_exact_sums_too(method: str) -> None:
    """A small fan-in is summed exactly; batch norm behind it must see the same noise as behind the CLT."""
    linear = bqn.nn.Linear(12, 6, bias=False, method=method).double()
    linear.reset_parameters(rho=0.3, generator=torch.Generator().manual_seed(0))
    x = random_categorical((20, 12), bqn.BINARY)
    M, V, centre = linear.weight.mean, linear.weight.var, x.mean.mean(0)
    expected = ((x.mean - centre).square() + x.var) @ V.T + x.var @ M.square().T
    law = linear(x)
    assert isinstance(law, bqn.Categorical if method == "auto" else bqn.Gaussian)
    assert_close(law.within_batch(0.5).var, expected)
    assert_close(bqn.nn.Flatten()(law).within_batch(0.5).var, expected)
    assert int(linear.centred_batches) == 2


def test_average_of_exact_sums_passes_the_question_on() -> None:
    conv = bqn.nn.Conv2d(2, 2, 2, groups=2, bias=False).double()
    x = random_categorical((8, 2, 5, 5), bqn.BINARY)
    law = conv(x)
    assert isinstance(law, bqn.Categorical)
    pooled, inner = bqn.nn.AvgPool2d(2)(law), law.within_batch(1.0)
    share = neighbours.of_average(inner.neighbours.correlation, (2, 2))
    assert_close(pooled.within_batch(1.0).var, F.avg_pool2d(inner.var, 2) * share)


def test_memory_for_backward_with_batch_norm_behind() -> None:
    """Of the size of the input only the input itself is kept; no squares, no distances."""
    linear, norm = bqn.nn.Linear(512, 40, bias=False), bqn.nn.BatchNorm1d(40)
    x = bqn.Categorical.of(bqn.BINARY, mean=(torch.rand(100, 512) * 2 - 1).requires_grad_())
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        result = norm(linear(x))
    assert result.mean.requires_grad
    sizes = sorted(tuple(t.shape) for t in kept.values() if t.untyped_storage().nbytes() >= 4 * 512 * 40)
    assert [shape for shape in sizes if shape == (100, 512)] == [(100, 512)]


def test_a_whole_network_with_batch_norm_agrees_with_its_samples() -> None:
    """Analytic logits against 400 sampled networks, after the statistics have settled."""
    torch.manual_seed(0)
    net = bqn.models.mlp(40, 3, hidden=(60, 50)).double()
    x = (torch.randn(300, 40).double() * 0.5 - 0.7).clamp(-1, 1)
    for module in net.modules():
        if isinstance(module, bqn.nn.BatchNorm1d):
            module.momentum = 1.0
    net.train()
    net(x)
    net.eval()
    belief = net(x[:5])
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([net.sample(generator)(x[:5]) for _ in range(400)])
    error = (belief.mean - draws.mean(0)).abs() / draws.std(0)
    assert error.max() < 0.35
    assert 0.8 < (draws.var(0) / belief.var).mean() < 1.25


def test_recalibrate_refuses_what_it_cannot_use() -> None:
    net = bqn.models.mlp(6, 3, hidden=(8,))
    x = torch.randn(10, 6)
    assert_named_error(lambda: bqn.recalibrate(net.mode(), x, batch_size=1), "batch_size")
