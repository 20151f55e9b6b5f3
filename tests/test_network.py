import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

import bqn
from tests.nn.contract import assert_named_error


class Residual(nn.Module):
    """User code with a forward of its own: a shortcut around a binary layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = bqn.nn.Linear(4, 2)
        self.second = bqn.nn.Linear(2, 2, bias=False)
        self.sign, self.add = bqn.nn.Sign(), bqn.nn.Add()
        self.last = bqn.nn.Linear(2, 2, bias=False)

    def forward(self, x: bqn.Belief) -> bqn.Belief:
        h = self.sign(self.first(x))
        return self.last(self.sign(self.add(h, self.sign(self.second(h)))))


def residual() -> bqn.Network:
    return bqn.Network(Residual(), bqn.SoftmaxHead(2, scale=1.0)).double()


def convolutional() -> bqn.Network:
    return bqn.models.cnn((1, 8, 8), 3, channels=(4, 4), hidden=16)


def test_modes_of_a_classifier() -> None:
    net, x = bqn.models.mlp(6, 3, hidden=(20, 10)), torch.randn(7, 6)
    for mode in ("analytic", "mc", "map"):
        probs = net.predict(x, mode)
        assert probs.shape == (7, 3)
        assert not probs.requires_grad
        assert_close(probs.sum(-1), torch.ones(7))
    assert_close(net.predict(x, "map"), net.mode().predict(x))
    one, two = (net.predict(x, "mc", generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)
    generator = torch.Generator().manual_seed(3)
    by_hand = torch.stack([net.sample(generator).predict(x) for _ in range(5)]).mean(0)
    assert_close(one, by_hand)


def test_modes_of_a_regressor() -> None:
    net, x = bqn.models.regressor(4, hidden=(10,), out_features=2), torch.randn(5, 4)
    for mode in ("analytic", "mc", "map"):
        result = net.predict(x, mode)
        assert all(part.shape == (5, 2) for part in result)
        assert bool((result.var > 0).all())
    y = torch.randn(5, 2)
    (-net.elbo(x, y, 5, 1.0)).backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in net.parameters())


@pytest.mark.parametrize("make", [residual, convolutional])
def test_sampled_networks_are_plain_and_quantized(make) -> None:  # type: ignore[no-untyped-def]
    net = make()
    x = torch.randn(2, 4).double() if make is residual else torch.randn(2, 1, 8, 8)
    for qnn in (net.sample(torch.Generator().manual_seed(0)), net.mode()):
        out = qnn(x)
        assert isinstance(out, Tensor)
        assert isinstance(qnn.head, bqn.SoftmaxHead)
        assert not any(isinstance(m, bqn.nn.Posterior) for m in qnn.modules())
        weights = [m.weight for m in qnn.modules() if isinstance(m, (bqn.nn.Linear, bqn.nn.Conv2d))]
        assert weights
        assert all(set(w.unique().tolist()) <= {-1.0, 1.0} for w in weights)
        assert_close(qnn.predict(x), qnn.head.predict(out).detach())
    qnn.head.log_scale.data.add_(1.0)  # the copy does not share its head
    assert net.head.log_scale.item() != qnn.head.log_scale.item()


def test_residual_network_against_enumeration() -> None:
    """Analytic means of a custom forward with a shortcut; mean field is close, samples are unbiased."""
    net, x = residual(), torch.randn(2, 4).double()
    truth = bqn.exact.predictive(net, x)
    generator = torch.Generator().manual_seed(0)
    sampled = net.predict(x, "mc", samples=3000, generator=generator)
    assert_close(sampled, truth, atol=0.03, rtol=0)
    assert_close(net.predict(x), truth, atol=0.15, rtol=0)
    (-net.elbo(x, torch.tensor([0, 1]), 2, 1.0)).backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in net.parameters())


def test_tied_weights_are_drawn_once() -> None:
    first = bqn.nn.Linear(4, 4)
    second = bqn.nn.Linear(4, 4)
    second.weight = first.weight
    net = bqn.Network(bqn.nn.Sequential(first, bqn.nn.Sign(), second), bqn.SoftmaxHead(4))
    qnn = net.sample(torch.Generator().manual_seed(0))
    assert torch.equal(qnn.body[0].weight, qnn.body[2].weight)
    assert len(list(net.posteriors())) == 3  # the shared one counts once in the divergence


def test_hidden_variables_are_drawn_anew_and_weights_once() -> None:
    net = bqn.Network(bqn.nn.Sequential(bqn.nn.Dropout(0.5), bqn.nn.Linear(30, 3)), bqn.SoftmaxHead(30))
    qnn, x = net.sample(torch.Generator().manual_seed(0)), torch.randn(1, 30)
    weight = qnn.body[1].weight.clone()
    assert not torch.equal(qnn(x), qnn(x))
    assert torch.equal(qnn.body[1].weight, weight)


def test_predict_uses_running_statistics_and_restores_modes() -> None:
    net = bqn.models.mlp(6, 3, hidden=(8,))
    net.body[2].eval()  # one layer in another mode
    before = {name: m.training for name, m in net.named_modules()}
    state = {name: t.clone() for name, t in net.state_dict().items()}
    net.predict(torch.randn(5, 6))
    assert {name: m.training for name, m in net.named_modules()} == before
    assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())


def test_state_dict_and_file_round_trip(tmp_path: Path) -> None:
    net = convolutional()
    x, y = torch.randn(16, 1, 8, 8), torch.randint(3, (16,))
    net.elbo(x, y, 16, 1.0)  # moves the running statistics and centres
    net.save(tmp_path / "net.safetensors")
    other = convolutional().load(tmp_path / "net.safetensors")
    for mode in ("analytic", "map"):
        assert torch.equal(net.predict(x, mode), other.predict(x, mode))
    third = convolutional()
    third.load_state_dict(net.state_dict())
    assert torch.equal(net.predict(x), third.predict(x))
    assert os.listdir(tmp_path) == ["net.safetensors"]  # no temporary file stays


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, path = bqn.models.mlp(4, 2, hidden=(3,)), tmp_path / "net.safetensors"
    net.save(path)
    before = path.read_bytes()

    def full_disk(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bqn.atomic.os.replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        net.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["net.safetensors"]


def test_bad_files_are_refused(tmp_path: Path) -> None:
    net, path = bqn.models.mlp(4, 2, hidden=(3,)), tmp_path / "net.safetensors"
    net.save(path)
    good = path.read_bytes()
    path.write_bytes(good[:-10])
    assert_named_error(lambda: net.load(path), "path", "safetensors")
    path.write_bytes(b"\x80\x04pickle")
    assert_named_error(lambda: net.load(path), "path")
    bqn.models.mlp(4, 2, hidden=(3, 3)).save(path)
    assert_named_error(lambda: net.load(path), "another architecture", "unexpected")
    bqn.models.mlp(5, 2, hidden=(3,)).save(path)
    assert_named_error(lambda: net.load(path), "expected torch.float32")
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, path)
    assert_named_error(lambda: net.load(path), "no bqn-weights")
    with torch.no_grad():
        net.head.log_scale.fill_(float("nan"))
    net.save(path)
    assert_named_error(lambda: bqn.models.mlp(4, 2, hidden=(3,)).load(path), "NaN", "log_scale")
    with pytest.raises(FileNotFoundError):
        net.load(tmp_path / "nothing")


def test_bad_input_is_named() -> None:
    net = bqn.models.mlp(4, 3, hidden=(5,))
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    for bad in (float("nan"), float("inf")):
        broken = x.clone()
        broken[2, 1] = bad
        for call in (net, net.predict, net.mode().predict, lambda b: net.elbo(b, y, 6, 1.0)):
            assert_named_error(lambda call=call, b=broken: call(b), "x", "finite", "1 NaN or infinite")
    assert_named_error(lambda: net(x.long()), "x", "floating", kind=TypeError)
    assert_named_error(lambda: net.predict(x.long()), "x", "floating", kind=TypeError)
    assert_named_error(lambda: net.predict(x[:, :3]), "x", "4 features")
    assert_named_error(lambda: net.predict(x, "average"), "mode", "analytic")
    assert_named_error(lambda: net.predict(x, "mc", samples=0), "samples")
    assert_named_error(lambda: net.elbo(x, y + 3, 6, 1.0), "y", "0 to 2")
    assert_named_error(lambda: net.elbo(x, y[:3], 6, 1.0), "y", "(6,)")
    assert_named_error(lambda: net.elbo(x, y.float(), 6, 1.0), "y", "integer", kind=TypeError)


@pytest.mark.parametrize("mode", ["analytic", "mc", "map"])
@pytest.mark.parametrize("make", [lambda: bqn.models.mlp(64, 3, hidden=(5,)), convolutional])
def test_another_dtype_than_that_of_the_weights_is_named(make, mode: str) -> None:  # type: ignore[no-untyped-def]
    net = make()
    x = torch.randn(2, 64) if isinstance(net.body[0], bqn.nn.Flatten) else torch.randn(2, 1, 8, 8)
    for wrong, right in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
        given, good = x.to(wrong), x.to(right)
        net.to(right)
        for call in (lambda x: net.predict(x, mode), net, net.mode().predict):
            assert_named_error(lambda call=call, x=given: call(x), "x must have the dtype", str(right), f"got {wrong}")
        assert net.predict(good, mode).dtype == right
    net.float()
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    for low in (x.bfloat16(), x.half()):  # layers raise it
        assert_close(net.predict(low, mode, generator=one), net.predict(low.float(), mode, generator=two), atol=5e-3,
                     rtol=0)  # fmt: skip


def test_values_too_large_to_be_squared_are_named() -> None:
    for net in (bqn.models.mlp(4, 3, hidden=(40,)), bqn.models.mlp(4, 3, hidden=(40,)).mode()):
        assert_named_error(lambda net=net: net.predict(torch.full((1, 4), 1e20)), "x must lie within")
    wide = bqn.models.mlp(784, 3, hidden=(40,), levels=bqn.QUATERNARY).eval()
    x = torch.randn(3, 784).sign() * 1e15  # at 1e18 sums of squares overflow, and probabilities were off by 0.3
    assert_close(wide.predict(x), wide.double().predict(x.double()).float(), atol=1e-5, rtol=0)
    assert_named_error(lambda: wide.float().predict(1e3 * x), "x must lie within")


def test_weights_of_other_levels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    net = bqn.models.mlp(4, 3, hidden=(5,))
    net.save(path)
    other = bqn.models.mlp(4, 3, hidden=(5,), levels=(0.0, 1.0))
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    assert_named_error(lambda: other.load(path), "path: body.1.weight", "[-1.0, 1.0]", "expected", "[0.0, 1.0]")
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    activations = bqn.models.mlp(4, 3, hidden=(5,), activations=(0.0, 1.0))
    assert_named_error(lambda: activations.load(path), "path: body.3", "thresholds", "expected", "[0.5]")
    assert bqn.models.mlp(4, 3, hidden=(5,)).load(path) is not None
    odd = (-1 / 3, 0.1, 2.0)  # numbers keep all their digits
    bqn.models.mlp(4, 3, hidden=(5,), levels=odd).save(path)
    bqn.models.mlp(4, 3, hidden=(5,), levels=odd).load(path)


def test_files_that_say_no_levels_are_believed(tmp_path: Path) -> None:
    """Those of versions that did not write them."""
    net, path = bqn.models.mlp(4, 3, hidden=(5,)), tmp_path / "net.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in net.state_dict().items()}
    save_file(tensors, path, metadata={"format": "bqn-weights-1"})
    other = bqn.models.mlp(4, 3, hidden=(5,)).load(path)
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in other.state_dict().items())
    for nonsense in ("[", "[1]"):
        save_file(tensors, path, metadata={"format": "bqn-weights-1", "levels": nonsense})
        assert_named_error(lambda: net.load(path), "path", "levels that cannot be read")


def test_a_file_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    """safetensors writes the metadata in an order of chance."""
    net, path = bqn.models.mlp(4, 3, hidden=(5,)), tmp_path / "net.safetensors"
    files = set()
    for _ in range(20):
        net.save(path)
        files.add(path.read_bytes())
    assert len(files) == 1


def test_states_of_sampled_networks_load_whatever_the_networks_went_through() -> None:
    x = torch.randn(30, 4) + 2
    trained, fresh = bqn.models.mlp(4, 3, hidden=(5,)), bqn.models.mlp(4, 3, hidden=(5,))
    trained(x)
    trained, fresh = trained.eval(), fresh.eval()
    assert "body.1.expected_shift" in trained.mode().state_dict()
    assert "body.1.expected_shift" not in fresh.mode().state_dict()
    for source, target in ((trained, fresh), (fresh, trained), (trained, trained)):
        plain, other = source.mode(), target.mode()
        other.load_state_dict(plain.state_dict())
        assert torch.equal(other(x), plain(x))
        assert other.state_dict().keys() == plain.state_dict().keys()
    plain = trained.mode()
    plain.load_state_dict({"head.log_scale": torch.zeros(())}, strict=False)  # the rest stays as it is
    assert plain.body[1].expected_shift is not None


def test_empty_batch_gives_an_empty_result() -> None:
    for net, shape in ((bqn.models.mlp(4, 3, hidden=(5,)), (0, 4)), (convolutional(), (0, 1, 8, 8))):
        for mode in ("analytic", "mc", "map"):
            assert net.predict(torch.zeros(shape), mode).shape == (0, 3)
    regressor = bqn.models.regressor(4)
    for mode in ("analytic", "mc", "map"):
        assert regressor.predict(torch.zeros(0, 4), mode).mean.shape == (0, 1)


@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("make", ["mlp", "cnn", "residual", "quantized"])
@pytest.mark.parametrize("drawn", [False, True])
def test_training_step_compiles_as_one_graph(make: str, drawn: bool) -> None:
    """No graph break: nothing in the hot path reads a value back. Same value and gradients as eager."""
    net = {
        "mlp": lambda: bqn.models.mlp(12, 3, hidden=(8, 6)),
        "cnn": lambda: bqn.models.cnn((1, 8, 8), 3, (4, 4), 8),
        "residual": lambda: residual().float(),
        "quantized": lambda: bqn.models.mlp(12, 3, hidden=(8, 6), levels=bqn.TERNARY, activations=bqn.QUATERNARY),
    }[make]()
    x = {"cnn": torch.randn(5, 1, 8, 8), "residual": torch.randn(5, 4)}.get(make, torch.randn(5, 12))
    y = torch.randint(2, (5,))

    draws = net.draw()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return -(net.half_drawn_elbo_terms(x, y, 10, 0.1, draws).value if drawn else net.elbo(x, y, 10, 0.1))

    start = {name: t.clone() for name, t in net.state_dict().items()}
    eager = loss(x, y)
    grads = torch.autograd.grad(eager, list(net.parameters()))
    net.load_state_dict(start)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)(x, y)
    assert_close(compiled, eager)
    for ours, expected in zip(torch.autograd.grad(compiled, list(net.parameters())), grads, strict=True):
        assert_close(ours, expected, rtol=1e-4, atol=1e-6)
    torch.compiler.reset()


def test_replicas_train_as_one_batched_program() -> None:
    """Stacked networks under vmap: each replica gets the gradients and statistics it would get alone."""
    nets = [bqn.models.cnn((1, 8, 8), 3, channels=(3,), hidden=6) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(nets)
    x, y = torch.randn(3, 5, 1, 8, 8), torch.randint(3, (3, 5))
    lam = torch.tensor([0.1, 1.0, 2.0])
    template = nets[0]

    class Objective(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = template

        def forward(self, x: Tensor, y: Tensor, lam: Tensor) -> Tensor:
            return self.net.elbo(x, y, 10, lam)

    def objective(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor, lam: Tensor) -> Tensor:
        state = {f"net.{key}": value for key, value in (p | b).items()}
        return torch.func.functional_call(Objective(), state, (x, y, lam))

    values = torch.func.vmap(objective)(params, buffers, x, y, lam)
    grads = torch.autograd.grad(values.sum(), list(params.values()))
    for i, net in enumerate(nets):
        alone = net.elbo(x[i], y[i], 10, lam[i])
        assert_close(values[i], alone)
        for ours, expected in zip(grads, torch.autograd.grad(alone, list(net.parameters())), strict=True):
            assert_close(ours[i], expected, rtol=1e-4, atol=1e-6)
        for name, buffer in net.named_buffers():
            assert_close(buffers[name][i], buffer)


def test_replicas_predict_as_one_batched_program() -> None:
    """Small and large variances in one batch: the choice between expansion and integral needs no look at values."""
    head = bqn.SoftmaxHead(1, scale=1.0)
    mean, var = torch.randn(3, 4, 5), torch.rand(3, 4, 5) * torch.tensor([0.1, 1.0, 9.0]).reshape(3, 1, 1)

    def predict(mean: Tensor, var: Tensor) -> Tensor:
        return head.predict(bqn.Gaussian.of(mean, var))

    together = torch.func.vmap(predict)(mean, var)
    for i in range(3):
        assert_close(together[i], predict(mean[i], var[i]), atol=1e-5, rtol=1e-4)


def test_user_code_may_reshape_beliefs_like_tensors() -> None:
    for belief in (
        bqn.nn.Conv2d(1, 2, 3)(torch.randn(3, 1, 5, 5)),
        bqn.nn.Sign()(bqn.nn.Conv2d(1, 2, 3)(torch.randn(3, 1, 5, 5))),
    ):
        assert belief.reshape(3, -1).shape == belief.reshape((3, -1)).shape == belief.flatten(1).shape == (3, 18)
        assert bqn.nn.Linear(18, 2)(belief.reshape(belief.shape[0], -1)).mean.shape == (3, 2)
        assert_named_error(lambda b=belief: b.reshape(4, -1), "reshape")


def test_map_prediction_with_hidden_variables_can_be_repeated() -> None:
    net = bqn.Network(bqn.nn.Sequential(bqn.nn.Dropout(0.5), bqn.nn.Linear(30, 3)), bqn.SoftmaxHead(30))
    x = torch.randn(4, 30)
    one, two = (net.predict(x, "map", generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, two)


def test_validation_can_be_switched_off() -> None:
    net = bqn.models.mlp(4, 3, hidden=(5,))
    net.validate = False
    assert not bool(torch.isfinite(net(torch.full((2, 4), float("nan"))).mean).all())
