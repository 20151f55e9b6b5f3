"""The loop: it learns, it is deterministic, it chooses on validation, and it stops before harm is done."""

import math

import pytest
import torch

import bqn
from bqn.data import DataError, Split
from bqn.propagate import devices
from bqn.training import ConfigError, DivergedError, Preprocessing, build_model, fit, load_run, loop
from bqn.training.folder import RunFolder
from bqn.training.surroundings import flushes_denormals
from tests.training import tiny


def train_tiny(config, train=None, validation=None, **options):
    train = train or tiny.images()
    outputs = train.y.shape[1] if train.y.is_floating_point() else 3
    net = build_model(config, tuple(train.x.shape[1:]), outputs)
    return net, fit(net, train, validation, config, **options)


def same_weights(a, b):
    return all(torch.equal(tensor, b.state_dict()[name]) for name, tensor in a.state_dict().items())


def test_learns_to_classify():
    records = []
    config = tiny.config(epochs=12, seed=1)
    net, history = train_tiny(config, tiny.images(200), tiny.images(50, seed=2), report=records.append)
    assert tuple(records) == history.records
    assert [record.epoch for record in records] == list(range(1, 13))
    assert history.best.validation_nll < 0.2 < records[0].validation_nll
    assert history.best.validation_error < 0.1
    assert records[-1].train_nll < records[0].train_nll
    test = tiny.images(50, seed=3)
    assert bqn.metrics.error(net.predict(bqn.data.to_input(test.x)), test.y) < 0.1


@pytest.mark.parametrize("method", ["bqn", "qnn", "gaussian-bnn", "mc-dropout", "e-qnn"])
def test_statistics_are_those_of_the_weights_when_the_network_is_judged(method, monkeypatch):
    """They are brought up to date before validation, and training notices nothing of it."""
    options = {"members": 2} if method == "e-qnn" else {}
    config = tiny.config(method=method, epochs=3, learning_rate=0.1, lr_schedule="constant", shift=1, **options)
    validation, trained = tiny.images(40, seed=1), {}
    monkeypatch.setattr(loop.TrainingState, "best_epoch", lambda self: None)  # the last weights, not the best
    for settled in (True, False):
        with monkeypatch.context() as patch:
            if not settled:
                patch.setattr(loop.Trainer, "settle", lambda self: None)
            trained[settled] = train_tiny(config, tiny.images(), validation)
    net, history = trained[True]
    lagging, _ = trained[False]
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, lagging.get_parameter(name)), name
    assert not same_weights(net, lagging), "their statistics differ"
    if method == "bqn":
        bqn.recalibrate(lagging, bqn.data.to_input(tiny.images().x))
        nll = bqn.metrics.nll(lagging.predict(bqn.data.to_input(validation.x)), validation.y)
        assert history.records[-1].validation_nll == pytest.approx(nll, rel=1e-4)


def test_records_add_up():
    config = tiny.config(epochs=2, lr_schedule="exponential", lr_decay=0.5)
    _, history = train_tiny(config, validation=tiny.images(seed=1))
    for record in history.records:
        assert record.elbo == pytest.approx(record.log_likelihood - record.lam / 60 * record.kl, rel=1e-5)
        assert record.train_nll == -record.log_likelihood
        assert record.validation_rmse is None
        assert record.seconds > 0
    assert [record.learning_rate for record in history.records] == [3e-2, 1.5e-2]
    assert history.records[0].eta == pytest.approx(history.records[0].seconds)
    assert history.records[1].eta == 0


def test_learns_a_regression_and_reports_in_units_of_the_data():
    train, validation = tiny.table(200), tiny.table(100, seed=1)
    config = tiny.regression_config(epochs=20, batch_size=10, hidden=(50,), learning_rate=3e-2)
    net, history = train_tiny(config, train, validation)
    best = history.best
    assert best.validation_rmse < 0.5 * float(validation.y.std())
    assert best.validation_error is None
    # the same numbers, worked out in the units of the data
    preprocessing = Preprocessing.of(train)
    predicted = preprocessing.output(net.predict(preprocessing.input(validation.x)))
    density = torch.distributions.Normal(predicted.mean, predicted.var.sqrt())
    assert best.validation_nll == pytest.approx(-float(density.log_prob(validation.y).mean()), abs=1e-3)
    assert best.validation_rmse == pytest.approx(
        float((predicted.mean - validation.y).square().mean().sqrt()), rel=1e-3
    )
    assert best.train_nll == pytest.approx(math.log(float(train.y.std(correction=0))) - best.log_likelihood)


def test_table_of_features_is_standardized_for_a_classifier():
    table = tiny.table(200)
    split = Split(table.x, (table.x[:, 1] > 7).long())
    config = tiny.config(epochs=10, hidden=(32,))
    net = build_model(config, (4,), 2)
    history = fit(net, split, split, config)
    assert history.best.validation_error < 0.15


def test_same_seed_same_network_and_the_callers_generator_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, _ = train_tiny(tiny.config(shift=1, flip=True))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, _ = train_tiny(tiny.config(shift=1, flip=True))
    assert same_weights(first, second)
    other, _ = train_tiny(tiny.config(shift=1, flip=True, seed=1))
    assert not same_weights(first, other)


def test_every_example_is_seen_once_an_epoch_in_batches_of_nearly_equal_size(monkeypatch):
    seen = []
    terms = loop.Trainer.terms
    monkeypatch.setattr(loop.Trainer, "terms", lambda self, batch, lam: seen.append(batch) or terms(self, batch))
    train_tiny(tiny.config(epochs=1, batch_size=59))
    assert [len(batch) for batch in seen] == [30, 30]
    assert sorted(torch.cat(seen).tolist()) == list(range(60))


def test_augmentation_is_applied():
    assert not same_weights(train_tiny(tiny.config())[0], train_tiny(tiny.config(shift=1))[0])
    assert not same_weights(train_tiny(tiny.config())[0], train_tiny(tiny.config(flip=True))[0])


def test_settings_of_the_objective_are_applied():
    plain = train_tiny(tiny.config())[0]
    assert not same_weights(plain, train_tiny(tiny.config(bound="jensen"))[0])
    assert not same_weights(plain, train_tiny(tiny.config(lam_schedule="warm-up"))[0])


def test_best_epoch_is_kept_and_patience_ends_the_run(monkeypatch):
    scores = iter([0.5, 0.3, 0.4, 0.35, 0.6, 0.1])
    weights = []

    def scripted(net, *arguments):
        weights.append({name: tensor.clone() for name, tensor in net.state_dict().items()})
        return loop.Scores(next(scores), 0.5, None)

    monkeypatch.setattr(loop, "validate_once", scripted)
    net, history = train_tiny(tiny.config(epochs=6, patience=3), validation=tiny.images())
    assert len(history.records) == 5
    assert history.stopped_early
    assert history.best_epoch == 2
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in net.state_dict().items())


def test_without_validation_the_last_epoch_counts():
    net, history = train_tiny(tiny.config(epochs=3))
    assert history.best is None
    assert not history.stopped_early
    assert history.records[-1].validation_nll is None
    assert not net.training


def test_threads_and_checks_are_restored():
    before = torch.get_num_threads()
    config = tiny.config(threads=before + 1)
    used = []
    net, _ = train_tiny(config, tick=lambda done, total: used.append(torch.get_num_threads()))
    assert used == [before + 1] * 8
    assert torch.get_num_threads() == before
    assert net.validate


def test_numbers_below_the_normal_range_are_zero_while_a_run_lasts() -> None:
    seen = []
    train_tiny(tiny.config(epochs=1), tick=lambda done, total: seen.append(flushes_denormals()))
    assert all(seen)
    assert not flushes_denormals()


def test_tick_counts_all_steps():
    ticks = []
    train_tiny(tiny.config(), tick=lambda done, total: ticks.append((done, total)))
    assert ticks == [(step, 8) for step in range(1, 9)]


@pytest.mark.parametrize("look_every", [1, 3])
def test_divergence_stops_before_the_harm_and_says_where(tmp_path, monkeypatch, look_every):
    """On a GPU several steps pass before a look; the replay must find the same step and the same state."""
    monkeypatch.setitem(loop.LOOK_EVERY, "cpu", look_every)
    config = tiny.config(epochs=2, shift=1)
    terms = loop.Trainer.terms

    def overflow(self, batch, lam=None):
        found = terms(self, batch)
        if (self.state.epoch, self.state.position) < (1, 2):
            return found
        return found._replace(kl=found.kl / 0, value=found.value / 0)

    monkeypatch.setattr(loop.Trainer, "terms", overflow)
    with pytest.raises(DivergedError, match="epoch 2, step 3: the KL is not finite") as caught:
        train_tiny(config, out=tmp_path / "run", validation=tiny.images())
    assert (caught.value.epoch, caught.value.step, caught.value.term) == (2, 3, "KL")
    assert f"saved in {tmp_path / 'run'}" in str(caught.value)
    monkeypatch.setattr(loop.Trainer, "terms", terms)
    saved = load_run(tmp_path / "run")
    assert len(saved.history.records) == 1
    rest = bqn.training.resume(tmp_path / "run", train=tiny.images(), validation=tiny.images())
    whole, _ = train_tiny(config, validation=tiny.images())
    assert same_weights(rest.net, whole)


def test_looking_seldom_changes_nothing(monkeypatch):
    careful, _ = train_tiny(tiny.config(shift=1))
    monkeypatch.setitem(loop.LOOK_EVERY, "cpu", 3)
    assert same_weights(careful, train_tiny(tiny.config(shift=1))[0])


def test_divergence_of_the_gradient_names_the_parameter(monkeypatch):
    config = tiny.config()
    net = build_model(config, (1, 6, 6), 3)
    net.body[1].weight.logits.register_hook(lambda gradient: gradient / 0)
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(DivergedError, match=r"gradient of the log-likelihood .* parameter body.1.weight.logits"):
        fit(net, tiny.images(), None, config)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in net.state_dict().items())


def test_validation_that_is_not_finite_stops(monkeypatch):
    monkeypatch.setattr(loop, "validate_once", lambda *arguments: loop.Scores(math.nan, 0.5, None))
    with pytest.raises(DivergedError, match="epoch 1, step 4: the validation NLL is not finite"):
        train_tiny(tiny.config(), validation=tiny.images())


@pytest.mark.parametrize(
    ("values", "split", "error", "message"),
    [
        (
            {},
            Split(tiny.images().x, tiny.images().y + 1),
            DataError,
            "train: y must hold labels from 0 to 2, got values",
        ),
        (
            {},
            Split(tiny.images().x, torch.zeros(60, 1)),
            DataError,
            "train: y must be an integer tensor of class labels",
        ),
        ({}, Split(tiny.images().x[:0], tiny.images().y[:0]), DataError, "train has no examples"),
        ({}, Split(tiny.images().x[..., :4], tiny.images().y), ValueError, "36 features"),
        ({"shift": 6}, tiny.images(), ConfigError, "shift must be below the size of the images"),
        ({"patience": 2}, tiny.images(), ConfigError, "patience needs validation data, got none"),
        ({"compile": True}, tiny.images(), ConfigError, "compile needs a CUDA device, got cpu"),
        ({"device": "cuda:99"}, tiny.images(), ConfigError, "device: cuda:99 is not there"),
    ],
)
def test_misfits(values, split, error, message):
    config = tiny.config(**values)
    net = build_model(config, (1, 6, 6), 3)
    with pytest.raises(error, match=message):
        fit(net, split, None, config)


def test_mixed_precision_needs_a_device_that_has_it(monkeypatch):
    monkeypatch.setattr(devices, "CPU_HAS_BFLOAT16", False)
    config = tiny.config(mixed_precision=True)
    with pytest.raises(ConfigError, match="mixed_precision needs a CUDA device or a CPU with AVX512-BF16 or AMX, got"):
        fit(build_model(config, (1, 6, 6), 3), tiny.images(), None, config)


@pytest.mark.parametrize("has", sorted({False, devices.CPU_HAS_BFLOAT16}))
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_mixed_precision_on_a_cpu(model, has, monkeypatch):
    """In products of its own, where this one has them, and in their place: rounded, so near to the run in float32."""
    monkeypatch.setattr(devices, "CPU_HAS_BFLOAT16", has)
    monkeypatch.setattr("bqn.training.surroundings.takes_mixed_precision", lambda device: True)
    sizes = {"channels": (16, 16)} if model == "cnn" else {}

    def trained(low):
        config = tiny.config(model=model, mixed_precision=low, learning_rate=1e-3, **sizes)
        return fit(build_model(config, (1, 6, 6), 3), tiny.images(), None, config).records

    full, low = trained(False), trained(True)
    assert [row.elbo for row in low] == pytest.approx([row.elbo for row in full], rel=0.02)
    assert [row.elbo for row in low] != [row.elbo for row in full]
    assert [row.elbo for row in low] == [row.elbo for row in trained(True)]


def test_bad_tables():
    config = tiny.regression_config()
    table = tiny.table()
    net = build_model(config, (4,), 1)
    broken = Split(table.x.clone(), table.y)
    broken.x[3, 2] = torch.inf
    with pytest.raises(ValueError, match="finite"):
        fit(net, broken, None, config)
    with pytest.raises(DataError, match=r"train: y must have shape \(60, 1\), got \(60, 2\)"):
        fit(net, Split(table.x, table.y.repeat(1, 2)), None, config)
    with pytest.raises(
        ConfigError, match=r"shift, turn: only for images .*, got torch.float32 examples of shape \(4,\)"
    ):
        fit(net, table, None, tiny.regression_config(shift=1, turn=5.0))


def test_weights_that_the_step_before_broke_are_not_saved(tmp_path):
    """A rate beyond all reason: the weights overflow before the loss shows it. The good checkpoint stays."""
    config = tiny.config(learning_rate=1e38, epochs=1)
    with pytest.raises(DivergedError, match="the last good checkpoint is in"):
        train_tiny(config, validation=tiny.images(seed=1), out=tmp_path / "run")
    load_run(tmp_path / "run")


def test_an_interrupt_between_steps_loses_no_step(tmp_path):
    config = tiny.config(epochs=2)

    def stop(done, total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_tiny(config, out=tmp_path / "run", tick=stop)
    facts = RunFolder(tmp_path / "run").read_checkpoint().facts
    steps = -(-60 // config.batch_size)
    assert (facts["epoch"], facts["position"]) == divmod(5, steps)
