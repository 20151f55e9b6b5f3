"""From a run to a packed network: the same networks that an evaluation judges."""

import numpy as np
import pytest
import torch

from bqn import metrics
from bqn.data import load, split_validation
from bqn.deploy.model import PackedModel
from bqn.deploy.runs import pack_run
from bqn.predictions import Predictor
from bqn.training import TrainConfig, train


@pytest.fixture(scope="module")
def run():
    return train(TrainConfig(data="digits", hidden=(24,), epochs=3, device="cpu", threads=1))


@pytest.fixture(scope="module")
def parts(run):
    dataset = load("digits")
    training, validation = split_validation(dataset.train, 0.1, 0, True)
    return training, validation, dataset.test


@pytest.mark.parametrize("recalibrated", [False, True])
def test_sampled_networks_are_those_of_the_predictor(run, parts, recalibrated):
    training, _, test = parts
    reference = training.x if recalibrated else None
    packed = pack_run(run, "mc", samples=3, seed=8, recalibrate_on=reference)
    options = {"samples": 3, "seed": 8, "prepare": run.preprocessing.input, "recalibrate_on": reference}
    expected = Predictor(run.net, **options).classify("mc_recalibrated" if recalibrated else "mc", test.x).probs
    np.testing.assert_allclose(PackedModel(packed)(test.x.numpy()), expected.numpy(), atol=1e-6)
    assert (packed.about["samples"], packed.about["seed"], packed.about["recalibrated"]) == (3, 8, recalibrated)
    assert packed.about["temperature"] is None


@pytest.mark.parametrize("mode", ["map", "mc"])
def test_a_temperature_is_the_best_on_held_out_examples(run, parts, mode):
    _, validation, _ = parts
    plain, tempered = (pack_run(run, mode, samples=3, temper_on=held) for held in (None, validation))
    temperature = tempered.about["temperature"]

    def nll(factor: float) -> float:
        logits = [step * torch.from_numpy(part) for step, part in zip(
            PackedModel(plain)._scales, PackedModel(plain).logits(validation.x.numpy()), strict=True)]  # fmt: skip
        return metrics.nll(torch.stack([(part / factor).softmax(-1) for part in logits]).mean(0), validation.y)

    assert nll(temperature) <= min(nll(temperature * 1.02), nll(temperature / 1.02), nll(1.0))
    given = torch.from_numpy(PackedModel(tempered)(validation.x.numpy()))
    assert metrics.nll(given, validation.y) == pytest.approx(nll(temperature), rel=1e-4)


def test_the_run_is_left_as_it_was(run, parts):
    before = run.net.head.log_scale.clone()
    pack_run(run, temper_on=parts[1])
    assert torch.equal(run.net.head.log_scale, before)


def test_bad_input(run):
    with pytest.raises(ValueError, match="mode must be one of map, mc, got 'analytic'"):
        pack_run(run, "analytic")
    config = TrainConfig(data="diabetes", model="regressor", hidden=(4,), epochs=1, device="cpu", threads=1)
    prices = train(config)
    with pytest.raises(ValueError, match="temper_on is for classification"):
        pack_run(prices, temper_on=load("diabetes").test)
