"""All methods alike: they learn in the same loop, continue exactly where they were stopped, and refuse bad input."""

import pytest
import torch

from bqn.baselines import METHODS
from bqn.evaluation import evaluate
from bqn.heads import Moments
from bqn.training import ConfigError, DivergedError, TrainConfig, fit, load_run, resume
from bqn.training.models import build_model
from tests.training import tiny

CLASSIFIERS = ("qnn", "e-qnn", "gaussian-bnn", "bayesbinn", "mc-dropout", "ensemble")
REGRESSIONS = ("gaussian-bnn", "mc-dropout", "ensemble")
QUICK = {"e-qnn": {"members": 2}, "ensemble": {"members": 2}, "bayesbinn": {"learning_rate": 0.05, "lam": 1.0}}


def config(method, **values):
    return tiny.config(method=method, **{"learning_rate": 1e-2, **QUICK.get(method, {}), **values})


def build(settings):
    return build_model(
        settings, (4,) if settings.model == "regressor" else (1, 6, 6), 1 if settings.model == "regressor" else 3
    )


class StopError(Exception):
    """As if the power had failed."""


def stop_after(steps):
    def tick(done, total):
        if done == steps:
            raise StopError

    return tick


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_learns(method):
    settings = config(method, epochs=25, batch_size=20, hidden=(32,))
    net = build(settings)
    train, validation = tiny.images(200), tiny.images(60, seed=1)
    history = fit(net, train, validation, settings)
    assert history.best.validation_error <= 0.05
    scores = evaluate(net, tiny.images(100, seed=2), samples=3, temper_on=validation)
    for mode in net.modes:
        assert scores[mode]["error"] <= 0.1
        assert scores["tempered"][mode]["error"] == pytest.approx(scores[mode]["error"], abs=1e-9)
        assert scores["tempered"][mode]["nll"] <= scores[mode]["nll"] + 0.1


@pytest.mark.parametrize("method", REGRESSIONS)
def test_learns_a_regression(method):
    settings = config(method, model="regressor", epochs=60, batch_size=20, hidden=(20,), lam=0.1)
    net = build(settings)
    train, test = tiny.table(200), tiny.table(60, seed=1)
    fit(net, train, test, settings)
    scores = evaluate(net, test, samples=20, prepare=_standardized(train), target_scale=_scale(train))
    deviation = float(test.y.std())
    assert all(scores[mode]["rmse"] < 0.6 * deviation for mode in net.modes)
    usual = scores[net.modes[0]]
    assert usual["epistemic"] > 0
    assert usual["variance"] == pytest.approx(usual["aleatoric"] + usual["epistemic"])


def _standardized(train):
    mean, std = train.x.mean(0), train.x.std(0, correction=0)
    return lambda x: (x - mean) / std


def _scale(train):
    return train.y.mean(0), train.y.std(0, correction=0)


@pytest.mark.parametrize(
    ("method", "model"), [*((m, "mlp") for m in CLASSIFIERS), *((m, "regressor") for m in REGRESSIONS)]
)
def test_a_stopped_run_continues_to_the_same_bits(method, model, tmp_path):
    """Stopped in the second epoch, three steps after the last checkpoint; images are shifted at random."""
    regression = model == "regressor"
    settings = config(method, model=model, epochs=3, batch_size=10, checkpoint_every=4, shift=0 if regression else 1)
    make = tiny.table if regression else tiny.images
    train, validation = make(60), make(30, seed=1)
    with pytest.raises(StopError):
        fit(build(settings), train, validation, settings, out=tmp_path, tick=stop_after(11))
    continued = resume(tmp_path, train=train, validation=validation)
    whole = build(settings)
    history = fit(whole, train, validation, settings)
    assert [record.validation_nll for record in continued.history.records] == [
        record.validation_nll for record in history.records
    ]
    state = whole.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in continued.net.state_dict().items())
    read = load_run(tmp_path)
    x = train.x[:5]
    given, again = (run.predict(x, generator=torch.Generator().manual_seed(0)) for run in (continued, read))
    given, again = (part.mean if isinstance(part, Moments) else part for part in (given, again))
    assert torch.equal(given, again)


@pytest.mark.parametrize("model", ["cnn", "vgg", "resnet"])
@pytest.mark.parametrize("method", CLASSIFIERS)
def test_convolutional_architectures(method, model):
    sizes = {"cnn": {"channels": (4, 4)}, "vgg": {"channels": (4, 4)}, "resnet": {"channels": (4, 8), "blocks": 1}}
    hidden = {"hidden": None} if model == "resnet" else {}
    net = build_model(config(method, model=model, **sizes[model], **hidden), (1, 8, 8), 3)
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    terms = net.train().elbo_terms(x, y, 4, 1e-3)
    terms.value.backward()
    learned = [parameter for parameter in net.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and torch.isfinite(parameter.grad).all() for parameter in learned)
    assert torch.isfinite(torch.stack(terms)).all()
    for mode in net.modes:
        probs = net.predict(x, mode, 2)
        torch.testing.assert_close(probs.sum(-1), torch.ones(4))


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_same_seed_same_network(method):
    first, second, other = (build(config(method, seed=seed)).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_bad_input(method):
    net = build(config(method))
    x, y = torch.randn(3, 1, 6, 6), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match=r"x must be finite, got 1 NaN"):
        net.predict(x.index_fill(0, torch.tensor([1]), 0).index_put((torch.tensor(0),) * 4, torch.tensor(torch.nan)))
    with pytest.raises(TypeError, match=r"x must be a floating-point tensor, got torch\.uint8"):
        net.predict(x.to(torch.uint8))
    with pytest.raises(ValueError, match="y must hold labels from 0 to 2, got values from 0 to 7"):
        net.elbo(x, torch.tensor([0, 1, 7]), 3, 0.0)
    with pytest.raises(TypeError, match="y must be an integer tensor"):
        net.elbo(x, y.float(), 3, 0.0)
    with pytest.raises(ValueError, match="mode must be one of"):
        net.predict(x, "oracle")
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        net.predict(x, samples=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "qn"}, "method must be one of bqn, qnn, e-qnn, .*, got 'qn'"),
        ({"method": "qnn", "model": "regressor"}, "model regressor is not for method qnn: mlp, cnn, vgg, resnet"),
        ({"method": "qnn", "levels": "ternary"}, "levels is not an option of method qnn, which takes hidden"),
        ({"method": "qnn", "members": 3}, "members is not an option of method qnn"),
        ({"members": 3}, "members is not an option of method bqn"),
        ({"method": "e-qnn", "members": 0}, "members must be from 1 to"),
        ({"method": "mc-dropout", "dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"method": "gaussian-bnn", "prior_std": 0.0}, "prior_std must be positive"),
        ({"method": "bayesbinn", "temperature": -1.0}, "temperature must be positive"),
        ({"method": "bayesbinn", "batch_norm": False}, "batch_norm is not an option of method bayesbinn"),
        ({"method": 3}, "method must be a string, got 3"),
        ({"best_by": "luck"}, "best_by must be one of nll, error, got 'luck'"),
    ],
)
def test_bad_settings(values, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig.preset(values)


@pytest.mark.parametrize("method", ["qnn", "gaussian-bnn", "bayesbinn"])
def test_divergence_is_noticed(method, tmp_path):
    settings = config(method, epochs=2)
    net = build(settings)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(DivergedError):
        fit(net, tiny.images(60), None, settings, out=tmp_path)


def test_presets_are_valid_for_every_method_and_model():
    for name, method in METHODS.items():
        for model in method.models:
            made = TrainConfig.preset({"method": name, "model": model})
            assert (made.method, made.model) == (name, model)
            assert TrainConfig.from_json(made.to_json()) == made
