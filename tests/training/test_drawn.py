"""The last epochs on networks that are drawn from the posterior."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from bqn import models, nn
from bqn.beliefs import Categorical, Gaussian
from bqn.data import to_input
from bqn.heads import SoftmaxHead
from bqn.network import Network
from bqn.nn import Posterior, draw, drawn
from bqn.propagate import half
from bqn.training import ConfigError, TrainConfig, train
from bqn.training.loop import Trainer
from bqn.training.models import build_model
from bqn.training.replicas import seeds_of, train_together
from tests.training import tiny


def test_a_draw_and_where_its_gradient_goes() -> None:
    torch.manual_seed(0)
    for levels in ((-1.0, 1.0), (-1.0, 0.0, 2.0)):
        layer = nn.Linear(4, 3, bias=False, levels=levels).double()
        posterior = layer.weight
        assert isinstance(posterior, Posterior)
        with drawn(layer, draw(layer, torch.Generator().manual_seed(7))):
            weight = posterior.belief()
        assert isinstance(weight, torch.Tensor)
        assert torch.equal(weight, posterior.sample(torch.Generator().manual_seed(7)))
        assert isinstance(posterior.belief(), Categorical)  # outside it is itself again
        grad = torch.randn(3, 4, dtype=torch.float64)
        (found,) = torch.autograd.grad(weight, posterior.logits, grad)
        (expected,) = torch.autograd.grad(posterior.mean, posterior.logits, grad)
        torch.testing.assert_close(found, expected)


def test_the_most_probable_network_in_place_of_a_draw() -> None:
    torch.manual_seed(0)
    for levels in ((-1.0, 1.0), (-1.0, 0.0, 2.0)):
        layers = nn.Sequential(*(nn.Linear(20, 20, bias=False, levels=levels) for _ in range(2)))
        modes = [each.mode() for each in layers.modules() if isinstance(each, Posterior)]
        generator = torch.Generator().manual_seed(1)
        taken = 0
        for _ in range(400):
            weights = draw(layers, generator, mode_share=0.3).weights
            alike = [torch.equal(weight, mode) for weight, mode in zip(weights, modes, strict=True)]
            assert len(set(alike)) == 1, "all layers or none"
            taken += alike[0]
        assert 400 * 0.3 - 4 * 9.2 < taken < 400 * 0.3 + 4 * 9.2, "four standard deviations of a binomial"
        assert all(map(torch.equal, draw(layers, generator, 1.0).weights, modes))


def test_quantizers_pass_gradients_between_their_outer_levels() -> None:
    x = torch.tensor([-2.0, -1.5, -0.4, 0.0, 1.5, 1.6], requires_grad=True)
    y = nn.Quantize((-1.5, -0.5, 0.5, 1.5))(x)
    assert isinstance(y, torch.Tensor)
    assert y.tolist() == [-1.5, -1.5, -0.5, 0.5, 1.5, 1.5]
    y.backward(torch.arange(1.0, 7.0))
    assert x.grad is not None
    assert x.grad.tolist() == [0, 2, 3, 4, 5, 0]


def test_gradients_are_those_of_the_mean_where_the_network_is_linear() -> None:
    """One layer, one example, a log-likelihood that is nearly linear: the mean of many gradients is exact."""
    torch.manual_seed(0)
    net = models.mlp(6, 2, hidden=()).double()
    x, y = torch.rand(1, 6, dtype=torch.float64), torch.tensor([1])
    net.head.log_scale.data.fill_(math.log(1e3))  # type: ignore[union-attr, operator]
    layer = next(module for module in net.modules() if isinstance(module, Posterior))
    total = torch.zeros_like(layer.logits)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        value = net.half_drawn_elbo_terms(x, y, 1, 0.0, net.draw(generator)).value
        total += torch.autograd.grad(value, layer.logits)[0]
    (exact,) = torch.autograd.grad(net.elbo(x, y, 1, 0.0), layer.logits)
    torch.testing.assert_close(total / 200, exact, rtol=0.02, atol=1e-8)


def test_half_of_the_objective_is_that_of_a_sampled_network() -> None:
    """A network that is sampled later takes a shift out of its sums; batch norm takes it out again, but rounds, and a
    sum on the threshold may go the other way."""
    torch.manual_seed(0)
    net = models.cnn((1, 8, 8), 3, channels=(4,), hidden=8)
    x, y = torch.rand(12, 1, 8, 8), torch.randint(3, (12,))
    net.train()
    sampled = net.sample(torch.Generator().manual_seed(3)).train()  # before there is a shift
    terms = net.half_drawn_elbo_terms(x, y, 50, 0.1, net.draw(torch.Generator().manual_seed(3)))
    expected = 0.5 * (net.elbo_terms(x, y, 50, 0.1).log_likelihood + sampled.head.log_likelihood(sampled(x), y).mean())
    torch.testing.assert_close(terms.log_likelihood, expected)
    torch.testing.assert_close(terms.kl, net.kl())
    torch.testing.assert_close(terms.value, expected - 0.1 * net.kl() / 50)


def test_a_drawn_network_alone() -> None:
    torch.manual_seed(0)
    net = models.cnn((1, 8, 8), 3, channels=(4,), hidden=8)
    x, y = torch.rand(12, 1, 8, 8), torch.randint(3, (12,))
    net.train()
    terms = net.drawn_elbo_terms(x, y, 50, 0.1, net.draw(torch.Generator().manual_seed(3)))
    sampled = net.sample(torch.Generator().manual_seed(3)).train()
    torch.testing.assert_close(terms.log_likelihood, sampled.head.log_likelihood(sampled(x), y).mean())
    torch.testing.assert_close(terms.value, terms.log_likelihood - 0.1 * net.kl() / 50)
    (by_draw,) = torch.autograd.grad(terms.value, net.head.log_scale)
    (analytic,) = torch.autograd.grad(net.elbo_terms(x, y, 50, 0.1).value, net.head.log_scale)
    both = net.half_drawn_elbo_terms(x, y, 50, 0.1, net.draw(torch.Generator().manual_seed(3)))
    (found,) = torch.autograd.grad(both.value, net.head.log_scale)
    torch.testing.assert_close(found, 0.5 * (by_draw + analytic))


def test_analytic_and_drawn_steps_alternate() -> None:
    config = tiny.config(epochs=3, drawn_epochs=2, drawn_alone=2, batch_size=10)
    trainer = Trainer(build_model(config, (1, 6, 6), 3), tiny.images(40), None, config, torch.device("cpu"))
    seen, terms = [], trainer.terms

    def note(batch, lam=None):  # type: ignore[no-untyped-def]
        seen.append(trainer.step_kind)
        return terms(batch, lam)

    trainer.terms = note  # type: ignore[method-assign]
    trainer.run(None, None)
    order = ["drawn", "drawn", "analytic"]
    assert seen == ["analytic"] * 4 + [order[step % 3] for step in range(8)], "counted from the first step of all"


def test_a_step_trains_what_its_turn_is() -> None:
    config = tiny.config(epochs=1, drawn_epochs=1, drawn_alone=1, batch_norm=False)
    trainer = Trainer(build_model(config, (1, 6, 6), 3), tiny.images(40), None, config, torch.device("cpu"))
    for position, kind in enumerate(("analytic", "drawn", "analytic")):
        trainer.state.position = position
        generators = trainer.state.generator_states()
        found = trainer.terms(torch.arange(10))
        trainer.state.set_generator_states(generators)
        draws = trainer.net.draw(trainer.state.augmentation) if kind == "drawn" else None
        x, y = trainer.examples(torch.arange(10))
        if draws is None:
            expected = trainer.net.elbo_terms(to_input(x), y, 40, config.lam, bound=config.bound)
        else:
            expected = trainer.net.drawn_elbo_terms(to_input(x), y, 40, config.lam, draws)
        torch.testing.assert_close(tuple(found), tuple(expected))


@pytest.mark.parametrize("options", [{"drawn_alone": 1}, {"mode_share": 0.5, "shift": 1}])
def test_parts_of_a_batch_add_up_to_the_whole(options: dict[str, Any]) -> None:
    gradients = []
    for accumulate in (1, 2):
        config = tiny.config(epochs=1, drawn_epochs=1, batch_norm=False, accumulate=accumulate, **options)
        trainer = Trainer(build_model(config, (1, 6, 6), 3), tiny.images(40), None, config, torch.device("cpu"))
        trainer.state.position = config.drawn_alone
        trainer.backward(torch.arange(10))
        gradients.append([parameter.grad for parameter in trainer.net.parameters()])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


def test_the_training_loop_uses_it() -> None:
    for share in (0.0, 1.0):
        config = tiny.config(epochs=1, drawn_epochs=1, mode_share=share, batch_norm=False)
        trainer = Trainer(build_model(config, (1, 6, 6), 3), tiny.images(40), None, config, torch.device("cpu"))
        generators = trainer.state.generator_states()
        found = trainer.terms(torch.arange(10))
        trainer.state.set_generator_states(generators)
        draws = trainer.net.draw(trainer.state.augmentation, share)
        x, y = trainer.examples(torch.arange(10))
        expected = trainer.net.half_drawn_elbo_terms(to_input(x), y, 40, config.lam, draws, bound=config.bound)
        torch.testing.assert_close(tuple(found), tuple(expected))


def test_one_network_is_drawn_for_all_parts_of_a_batch() -> None:
    config = tiny.config(epochs=1, drawn_epochs=1, accumulate=2)
    trainer = Trainer(build_model(config, (1, 6, 6), 3), tiny.images(40), None, config, torch.device("cpu"))
    seen, objective = [], trainer.objective

    def note(x, y, lam=None, draws=None):  # type: ignore[no-untyped-def]
        seen.append(draws)
        return objective(x, y, lam, draws)

    trainer.objective = note  # type: ignore[method-assign]
    trainer.backward(torch.arange(10))
    assert len(seen) == 2
    assert seen[0] is seen[1] is not None


def test_layers_that_draw_at_every_pass_are_refused_where_they_cannot_repeat_it() -> None:
    layers = (nn.Flatten(), nn.Linear(36, 8), nn.Sign(), nn.Dropout(0.5), nn.Linear(8, 3))
    net = Network(nn.Sequential(*layers), SoftmaxHead(8))
    config = tiny.config(epochs=2, drawn_epochs=1, checkpoint_activations=True)
    with pytest.raises(ConfigError, match="drawn_epochs does not go with checkpoint_activations where layers draw"):
        Trainer(net, tiny.images(40), None, config, torch.device("cpu"))


@torch.no_grad()
def test_only_weights_on_levels_are_multiplied_in_half_precision() -> None:
    """Real weights of other methods would be rounded."""
    for method, low in (("qnn", True), ("ensemble", False), ("bayesbinn", False)):
        config = tiny.config(method=method)
        net = build_model(config, (1, 6, 6), 3)
        linear = next(module for module in net.modules() if isinstance(module, nn.Linear))
        with half.lowered():
            output = linear(torch.ones(4, linear.in_features))
        assert isinstance(output, torch.Tensor)
        assert (output.dtype == torch.bfloat16) is low, method


def test_in_half_precision_drawn_signs_are_exact() -> None:
    """Sums of few levels fit into bfloat16, so the output and its gradients are those of float32."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(16, 20, 3, padding=1), nn.Sign(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(80, 4))
    x = torch.randint(2, (6, 16, 4, 4)) * 2.0 - 1
    draws = draw(layers, torch.Generator().manual_seed(0))
    found = []
    for precision in (nullcontext(), half.lowered()):
        with precision, drawn(layers, draws):
            output = layers(x)
        assert isinstance(output, torch.Tensor)
        weight = layers[0].weight
        assert isinstance(weight, Posterior)
        found.append((output, *torch.autograd.grad(output.float().sum(), weight.logits)))
    assert (found[0][0].dtype, found[1][0].dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(found[0][0], found[1][0].float())
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0.02, atol=0.02 * float(found[0][1].abs().max()))


def test_the_last_epochs_draw_and_hold_the_best_one() -> None:
    config = tiny.config(epochs=5, drawn_epochs=2)
    training, validation = tiny.images(40), tiny.images(20, seed=1)
    seen = []
    net = build_model(config, (1, 6, 6), 3)
    trainer = Trainer(net, training, validation, config, torch.device("cpu"))
    plain, sampled = net.elbo_terms, net.half_drawn_elbo_terms

    def note(name: str, terms):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            seen.append((trainer.state.epoch, name))
            return terms(*args, **kwargs)

        return call

    net.elbo_terms, net.half_drawn_elbo_terms = note("analytic", plain), note("drawn", sampled)  # type: ignore[method-assign]
    history = trainer.run(None, None)
    assert {epoch for epoch, name in seen if name == "analytic"} == {0, 1, 2}
    assert {epoch for epoch, name in seen if name == "drawn"} == {3, 4}
    assert history.best_epoch in (4, 5)
    assert all(math.isfinite(record.train_nll) for record in history.records)


def test_side_by_side_as_alone() -> None:
    configs = seeds_of(tiny.config(epochs=3, drawn_epochs=1), 2)
    together = train_together(configs, tiny.dataset())
    for config, run in zip(configs, together, strict=True):
        alone = train(config, dataset=tiny.dataset())
        assert not isinstance(run, Exception)
        assert all(
            torch.equal(a, b)
            for a, b in zip(alone.net.state_dict().values(), run.net.state_dict().values(), strict=True)
        )


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="drawn_epochs must be at least 0"):
        tiny.config(drawn_epochs=-1)
    with pytest.raises(ConfigError, match="drawn_epochs is for method bqn"):
        tiny.config(method="qnn", drawn_epochs=1)
    with pytest.raises(ConfigError, match="mode_share must be from 0 to 1"):
        tiny.config(drawn_epochs=1, mode_share=1.5)
    with pytest.raises(ConfigError, match="mode_share needs steps that draw"):
        tiny.config(mode_share=0.5)
    with pytest.raises(ConfigError, match="drawn_alone must be at least 0"):
        tiny.config(drawn_epochs=1, drawn_alone=-1)
    with pytest.raises(ConfigError, match="drawn_alone needs steps that draw"):
        tiny.config(drawn_alone=1)
    with pytest.raises(ConfigError, match="patience does not go with drawn_epochs"):
        tiny.config(drawn_epochs=1, patience=2)
    for count in (3, 4):
        assert tiny.config(epochs=3, drawn_epochs=count, patience=2).best_after == 0, "all epochs can be compared"


def test_the_preset_of_the_vgg_draws_in_all_epochs() -> None:
    vgg = {"model": "vgg", "data": "cifar10"}
    for given in ({}, {"epochs": 7}, {"epochs": 300}, {"epochs": 7, "patience": 2}):
        config = TrainConfig.preset({**vgg, **given})
        assert config.drawn_epochs == config.epochs
    assert TrainConfig.preset({**vgg, "drawn_epochs": 0}).drawn_epochs == 0
    assert TrainConfig.preset({**vgg, "method": "qnn"}).drawn_epochs == 0


@pytest.mark.parametrize("changed", [{}, {"batch_norm": False}, {"levels": "ternary", "accumulate": 2}])
def test_with_checkpointed_activations(changed: dict[str, Any]) -> None:
    """The backward pass repeats the layers of the drawn network, with the same draws."""
    runs = []
    for again in (False, True):
        config = tiny.config(epochs=2, drawn_epochs=1, checkpoint_activations=again, **changed)
        runs.append(train(config, dataset=tiny.dataset()).net.state_dict())
    for plain, repeated in zip(runs[0].values(), runs[1].values(), strict=True):  # which adds up in another order
        torch.testing.assert_close(plain, repeated, rtol=1e-4, atol=1e-5)


def test_hidden_variables_are_drawn_too() -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 40), nn.Sign(), nn.Dropout(0.5), nn.Linear(40, 3))
    net = Network(nn.Sequential(*layers), SoftmaxHead(40))
    draws = net.draw(torch.Generator().manual_seed(0))
    assert draws.generator is not None
    terms = net.half_drawn_elbo_terms(torch.rand(5, 6), torch.randint(3, (5,)), 5, 0.1, draws)
    assert bool(torch.isfinite(terms.value))
    assert isinstance(net(torch.rand(5, 6)), Gaussian)  # as before


def test_blocks_inside_each_other() -> None:
    layer = nn.Linear(3, 2)
    weight = layer.weight
    assert isinstance(weight, Posterior)
    with drawn(layer, draw(layer)):
        outer = weight.belief()
        with drawn(layer, draw(layer)):
            pass
        assert weight.belief() is outer
    assert isinstance(weight.belief(), Categorical)


def test_sampled_networks_learn_nothing() -> None:
    """Their outputs need no gradient; an input that asks for one gets it."""
    net = models.mlp(6, 3, hidden=(8,)).eval()
    x = torch.rand(4, 6)
    for plain in (net.sample(), net.mode()):
        assert not plain(x).requires_grad
        asking = x.clone().requires_grad_()
        plain(asking).sum().backward()
        assert asking.grad is not None
    assert all(parameter.requires_grad for parameter in net.parameters())
