"""The whole measurement: the figures of an evaluation, for few and for many networks."""

import json

import pytest
import torch

import bqn
from bqn import evaluation
from bqn.data import Split
from bqn.faithfulness import measure
from bqn.heads import GaussianHead


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    made = bqn.models.cnn((1, 8, 8), 3, channels=(4,), hidden=8)
    made.train()
    for _ in range(5):
        made(bqn.data.to_input(pictures(30).x))
    return made.eval()


def pictures(count: int, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return Split(x, torch.randint(3, (count,), generator=generator))


def test_the_figures_are_those_of_an_evaluation(net):
    test, training = pictures(40), pictures(120, seed=1)
    result = measure(net, test, counts=(2, 4), seed=3, recalibrate_on=training, layer_examples=5)
    expected = evaluation.evaluate(net, test, samples=4, seed=3, recalibrate_on=training)
    for mode in ("mc", "mc_recalibrated"):
        two, four = result[mode]["predictions"]
        assert (two["samples"], two["groups"], four["samples"], four["groups"]) == (2, 2, 4, 1)
        for name in ("nll", "error", "ece"):
            assert four[name] == pytest.approx(expected[mode][name], rel=1e-5), (mode, name)
    for name in ("nll", "error", "ece"):
        assert result["analytic"][name] == pytest.approx(expected["analytic"][name], rel=1e-5)
    assert result["mc"]["predictions"] != result["mc_recalibrated"]["predictions"]
    kinds = [row["kind"] for row in result["mc"]["layers"]]
    assert kinds == ["Conv2d", "AvgPool2d", "BatchNorm2d", "Sign", "Linear", "BatchNorm1d", "Sign", "Linear"]
    assert result["settings"]["layer_examples"] == 5
    json.dumps(result, allow_nan=False)


def test_the_same_seed_the_same_figures(net):
    test = pictures(10)
    first, second = (measure(net, test, counts=(3,), seed=5) for _ in range(2))
    assert first == second
    assert "mc_recalibrated" not in first
    assert measure(net, test, counts=(3,), seed=6) != first


def test_many_networks_come_near_the_exact_prediction():
    torch.manual_seed(2)
    net = bqn.models.mlp(4, 3, (2,), batch_norm=False).eval()
    x = torch.randint(256, (3, 1, 2, 2), dtype=torch.uint8)
    y = torch.randint(3, (3,))
    result = measure(net, Split(x, y), counts=(1, 600))
    exact = bqn.exact.predictive(net, bqn.data.to_input(x))
    many = result["mc"]["predictions"][1]
    assert many["nll"] == pytest.approx(bqn.metrics.nll(exact, y), abs=0.03)
    assert result["mc"]["predictions"][0]["nll"] > many["nll"]  # Jensen


def test_progress(net):
    told = []
    measure(net, pictures(4), counts=(3,), tick=lambda *given: told.append(given))
    assert told == [("mc", 1, 3), ("mc", 2, 3), ("mc", 3, 3)]


def test_bad_input(net):
    test = pictures(4)
    with pytest.raises(ValueError, match=r"counts must be positive, the largest at least 3, got \[1, 2\]"):
        measure(net, test, counts=(1, 2))
    with pytest.raises(ValueError, match="counts must be positive"):
        measure(net, test, counts=(0, 5))
    with pytest.raises(ValueError, match="layer_examples must be at least 1"):
        measure(net, test, layer_examples=0)
    with pytest.raises(ValueError, match="test must hold at least one example"):
        measure(net, Split(test.x[:0], test.y[:0]))
    with pytest.raises(ValueError, match="net must be a classifier"):
        measure(bqn.Network(bqn.nn.Linear(2, 2), GaussianHead(2)), test)
    other = bqn.Network(net.body, net.head)
    other.modes = ("analytic",)
    with pytest.raises(ValueError, match="it knows analytic"):
        measure(other, test)
