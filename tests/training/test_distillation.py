"""Distillation: networks that learn what their posterior predicts, and a posterior that does not notice."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import bqn
from bqn.data import Dataset, Split
from bqn.heads import GaussianHead, Moments, SoftmaxHead
from bqn.network import Network, QuantizedNetwork
from bqn.nn import recalibrate
from bqn.training import ConfigError, DivergedError, EpochRecord, Run, distill, train
from bqn.training.distillation import Pupil
from tests.training import tiny

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.gpu

# --- what is maximized ------------------------------------------------------------------------------------------------


def test_expected_log_likelihood_of_a_classifier_by_enumeration() -> None:
    head = SoftmaxHead(16).double()
    h, expected = torch.randn(7, 4, dtype=torch.float64) * 5, torch.rand(7, 4, dtype=torch.float64).softmax(-1)
    each = [head.log_likelihood(h, torch.full((7,), label)) for label in range(4)]
    torch.testing.assert_close(
        head.expected_log_likelihood(h, expected), (expected * torch.stack(each, -1)).sum(-1), rtol=1e-12, atol=1e-12
    )
    with pytest.raises(ValueError, match=r"expected must have shape \(7, 4\), got \(7, 3\)"):
        head.expected_log_likelihood(h, expected[:, :3])


def test_expected_log_likelihood_of_a_regression_by_quadrature() -> None:
    head = GaussianHead(5, 2).double()
    with torch.no_grad():
        head.log_noise.copy_(torch.tensor([-1.0, 0.7]))
    h = torch.randn(6, 5, dtype=torch.float64)
    mean, var = torch.randn(6, 2, dtype=torch.float64), torch.rand(6, 2, dtype=torch.float64) + 0.1
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(8))
    weights = weights / weights.sum()
    total = torch.zeros(6, dtype=torch.float64)
    for first, by_first in zip(nodes, weights, strict=True):
        for second, by_second in zip(nodes, weights, strict=True):
            y = mean + var.sqrt() * torch.stack([first, second])
            total += by_first * by_second * head.log_likelihood(h, y)
    expected = Moments(mean, var, torch.zeros_like(mean), torch.full_like(mean, 3.0))
    torch.testing.assert_close(head.expected_log_likelihood(h, expected), total, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"expected must have shape \(6, 2\), got \(5, 2\)"):
        head.expected_log_likelihood(h, Moments(*(part[:5] for part in expected)))


# --- pupils -----------------------------------------------------------------------------------------------------------


def teacher(levels: tuple[float, ...] = (-1.0, 1.0)) -> Network:
    net = bqn.models.mlp(6, 3, hidden=(8,), levels=levels)
    net.train()(torch.randn(20, 6) + 1)  # it knows the centre of its inputs and has statistics of batch norm
    return net.eval()


@pytest.mark.parametrize("levels", [(-1.0, 1.0), (-1.0, 0.0, 1.0), (-1.5, -0.5, 0.5, 1.5)])
def test_a_pupil_begins_as_what_was_drawn(levels: tuple[float, ...]) -> None:
    net = teacher(levels)
    pupil = Pupil(net)
    pupil.begin_as_drawn_(torch.Generator().manual_seed(3))
    drawn = net.sample(torch.Generator().manual_seed(3))
    for (name, own), (_, its) in zip(pupil.posteriors(), net.posteriors(), strict=True):
        assert torch.equal(own.mode(), drawn.get_buffer(name)), name
        assert torch.equal(own.logits.sort(-1).values, its.logits.sort(-1).values), name
        assert not torch.equal(own.logits, its.logits), name


def test_a_pupil_is_its_most_probable_network_all_the_time() -> None:
    pupil, x = Pupil(teacher()), torch.randn(30, 6)
    pupil.train()
    in_training = pupil(x)
    plain = pupil.mode()
    plain.body.train()
    assert torch.equal(in_training, plain(x))
    recalibrate(pupil, x)
    assert torch.equal(pupil.eval()(x), pupil.mode()(x))
    assert torch.equal(pupil.predict(x), pupil.mode().predict(x))
    assert pupil.modes == ("map",)


def test_the_objective_is_what_the_teacher_expects() -> None:
    net, x = teacher(), torch.randn(30, 6)
    pupil = Pupil(net).train()
    expected = net.head.predict(net(x), "coarse").detach()
    value = pupil.elbo_terms(x, torch.zeros(30, dtype=torch.long), 100, 0.0).value
    plain = pupil.mode()
    plain.body.train()
    logits = plain(x) / plain.head.scale
    torch.testing.assert_close(value, (expected * logits.log_softmax(-1)).sum(-1).mean())
    value.backward()
    assert all(parameter.grad is not None for parameter in pupil.parameters())
    assert all(parameter.grad is None for parameter in net.parameters())


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> Run:
    return train(tiny.config(hidden=(32,), epochs=8, device=DEVICE, shift=1), dataset=tiny.dataset(count=300))


@pytest.fixture(scope="module")
def parts() -> tuple[Split, Split]:
    whole = tiny.images(count=300)
    return Split(whole.x[:250], whole.y[:250]), Split(whole.x[250:], whole.y[250:])


def distance(run: Run, networks: Sequence[QuantizedNetwork], split: Split) -> float:
    """How far the prediction of one of them is from the analytic one: the mean KL."""
    x = run.preprocessing.input(split.x.to(DEVICE))
    expected, given = run.net.predict(x), torch.stack([network.predict(x) for network in networks])
    return float((expected * (expected / given.clamp_min(1e-9)).log()).sum(-1).mean())


@pytest.mark.parametrize("mode", ["map", "mc"])
def test_networks_come_nearer_to_the_analytic_prediction(run: Run, parts: tuple[Split, Split], mode: str) -> None:
    training, held_out = parts
    before = {name: tensor.clone() for name, tensor in run.net.state_dict().items()}
    told: list[tuple[int, EpochRecord]] = []
    made = distill(
        run, training, mode=mode, samples=3, seed=5, epochs=6, report=lambda *news: told.append(news)
    ).networks
    generator = torch.Generator(DEVICE).manual_seed(5)
    plain = list(run.net.members(mode, 3, generator))
    reference = run.preprocessing.input(training.x.to(DEVICE))
    assert distance(run, made, held_out) < 0.8 * distance(
        run, [recalibrate(each, reference) for each in plain], held_out
    )
    assert len(made) == len(plain) == (3 if mode == "mc" else 1)
    assert sorted((number, record.epoch) for number, record in told) == [
        (number, epoch) for number in range(len(made)) for epoch in range(1, 7)
    ]
    for name, tensor in run.net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not run.net.training


def settled(networks: Sequence[QuantizedNetwork]) -> list[Tensor]:
    return [tensor.cpu() for network in networks for tensor in network.state_dict().values()]


@pytest.mark.skipif(DEVICE == "cuda", reason="sums on a GPU may differ in their last digits, and signs turn on these")
def test_a_seed_decides(run: Run, parts: tuple[Split, Split]) -> None:
    first, again, other = (
        settled(distill(run, parts[0], mode="mc", samples=2, seed=seed, epochs=2).networks) for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first[: len(first) // 2], first[len(first) // 2 :], strict=True))


def prices(count: int = 600) -> Dataset:
    return Dataset("tiny", "regression", tiny.table(count), tiny.table(20, seed=1), ())


def test_regression() -> None:
    run = train(
        tiny.regression_config(hidden=(32,), epochs=20, batch_size=100, lam=1.0, device=DEVICE), dataset=prices()
    )
    (made,) = distill(run, tiny.table(600), epochs=20).networks
    x = run.preprocessing.input(tiny.table(600, seed=2).x.to(DEVICE))
    given, plain, expected = made.predict(x), run.net.mode().predict(x), run.net.predict(x)
    assert isinstance(given, Moments)
    assert isinstance(expected, Moments)
    assert not torch.equal(given.mean, plain.mean)
    assert float((given.mean - expected.mean).square().mean()) < 0.2 * float(expected.var.mean())
    # What the posterior doubts, and what the network gets wrong, is noise to a network that has no doubt.
    assert float(made.head.noise) > float(expected.var.mean()) > float(run.net.head.noise.detach())


@pytest.mark.parametrize("mode", ["map", "mc"])
def test_no_epoch_counts_that_is_worse_than_none(run: Run, parts: tuple[Split, Split], mode: str) -> None:
    """A learning rate that destroys everything changes nothing where validation examples show it."""
    reference = run.preprocessing.input(parts[0].x.to(DEVICE))
    starts = [recalibrate(each, reference) for each in run.net.members(mode, 2, torch.Generator(DEVICE).manual_seed(7))]
    for held_out, kept in ((parts[1], 0), (None, 1)):
        made = distill(run, parts[0], held_out, mode=mode, samples=2, seed=7, epochs=1, learning_rate=1e3)
        assert made.kept == (kept,) * len(starts)
        assert made.before == made.after
        for network, start in zip(made.networks, starts, strict=True):
            weights = [
                (network.get_buffer(name), start.get_buffer(name)) for name in ("body.1.weight", "body.4.weight")
            ]
            assert all(torch.equal(*pair) for pair in weights) == (kept == 0)
    assert made.before == (None,) * len(starts)
    made = distill(run, parts[0], parts[1], mode=mode, samples=2, seed=7, epochs=1, learning_rate=1e3)
    assert distance(run, made.networks, parts[1]) == pytest.approx(distance(run, starts, parts[1]), rel=0.05)


def test_what_is_kept_is_told(run: Run, parts: tuple[Split, Split]) -> None:
    told: dict[int, float | None] = {}
    made = distill(
        run,
        *parts,
        epochs=4,
        learning_rate=1e-3,
        report=lambda _, record: told.update({record.epoch: record.validation_nll}),
    )
    (kept,), (before,), (after,) = made.kept, made.before, made.after
    assert before is not None
    assert after is not None
    assert after == min(before, *(nll for nll in told.values() if nll is not None))
    assert after == (told[kept] if kept else before)
    assert (made.mode, made.seed, made.epochs) == ("map", 0, 4)


def test_only_what_concerns_a_plain_network_is_taken_over(
    run: Run, parts: tuple[Split, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a pupil draws nothing")

    monkeypatch.setattr(Pupil, "draw", refuse)
    drawn = tiny.config(hidden=(32,), epochs=8, drawn_epochs=8, mode_share=0.5, drawn_alone=1, lam=10.0, device=DEVICE,
                        checkpoint_every=2)  # fmt: skip
    told: list[EpochRecord] = []
    distill(
        Run(run.net, drawn, run.history, run.preprocessing),
        parts[0],
        epochs=2,
        report=lambda _, record: told.append(record),
    )
    assert [(record.epoch, record.lam) for record in told] == [(1, 0.0), (2, 0.0)]
    assert told[0].learning_rate == 0.01
    assert told[1].learning_rate < 0.01


def test_many_networks_learn_in_groups(run: Run, parts: tuple[Split, Split]) -> None:
    numbers: list[int] = []
    many = distill(run, parts[0], mode="mc", samples=7, epochs=1, report=lambda number, _: numbers.append(number))
    assert sorted(numbers) == list(range(7))
    few = distill(run, parts[0], mode="mc", samples=6, epochs=1)
    if DEVICE == "cpu":
        for ours, theirs in zip(settled(few.networks), settled(many.networks), strict=False):
            assert torch.equal(ours, theirs)


def test_a_run_in_training_mode_is_left_as_it_was(run: Run, parts: tuple[Split, Split]) -> None:
    net = copy.deepcopy(run.net).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    made = distill(replace(run, net=net), parts[0], epochs=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.training
    if DEVICE == "cpu":
        expected = distill(run, parts[0], epochs=1)
        assert all(torch.equal(a, b) for a, b in zip(settled(made.networks), settled(expected.networks), strict=True))


def test_a_stop_between_steps(run: Run, parts: tuple[Split, Split]) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill(run, parts[0], epochs=1, tick=stop)


def test_a_run_in_half_precision_is_distilled_on_a_cpu(parts: tuple[Split, Split], run: Run) -> None:
    here = Run(run.net, tiny.config(hidden=(32,), mixed_precision=True, compile=True), run.history, run.preprocessing)
    assert len(distill(here, parts[0], epochs=1).networks) == 1


def test_refusals(run: Run, parts: tuple[Split, Split]) -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        ({"mode": "analytic"}, "mode must be one of map, mc, got 'analytic'"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            distill(run, parts[0], **options)  # type: ignore[arg-type]
    other = train(tiny.config(method="qnn", epochs=1, device=DEVICE), dataset=tiny.dataset())
    with pytest.raises(ConfigError, match="distillation needs a run with a posterior: method must be bqn, got qnn"):
        distill(other, parts[0])


def test_a_failure_is_told(run: Run, parts: tuple[Split, Split], monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Callable[..., Tensor] = Pupil._log_likelihoods
    monkeypatch.setattr(Pupil, "_log_likelihoods", lambda *args, **options: plain(*args, **options) / 0)
    with pytest.raises(DivergedError, match=r"not finite.* in the distillation of network 1 of 1"):
        distill(run, parts[0], epochs=1)
