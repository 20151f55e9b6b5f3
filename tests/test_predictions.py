"""Predictions of many examples against the network's own, and their uncertainty against sampling and enumeration."""

import pytest
import torch
from torch import Tensor

import bqn
from bqn import metrics
from bqn.data import to_input
from bqn.entropy_integral import entropies
from bqn.predictions import RECALIBRATION_INPUTS, Predictor

CLASSES = 3


def _classifier() -> bqn.Network:
    net = bqn.models.mlp(16, CLASSES, hidden=(12,))
    net(torch.randn(64, 16))  # settles the batch norm statistics
    return net


def _images(examples: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (examples, 1, 4, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def _regressor() -> bqn.Network:
    return bqn.models.regressor(4, hidden=(20,), out_features=2)


class TestClassify:
    @pytest.mark.parametrize("batch_size", [1, 7, 100])
    @pytest.mark.parametrize("mode", ["analytic", "mc", "map"])
    def test_in_batches_as_at_once(self, mode: str, batch_size: int) -> None:
        net, x = _classifier(), _images(20)
        given = Predictor(net, samples=3, seed=4, batch_size=batch_size).classify(mode, x)
        expected = net.predict(to_input(x), mode, samples=3, generator=torch.Generator().manual_seed(4))
        assert torch.allclose(given.probs, expected, rtol=0, atol=1e-6)
        assert torch.allclose(given.entropy, metrics.entropy(expected), rtol=0, atol=1e-5)

    def test_analytic_bound_is_the_heads(self) -> None:
        net, x, y = _classifier(), _images(20), torch.arange(20) % CLASSES
        given = Predictor(net, batch_size=6).classify("analytic", x, y)
        net.eval()
        assert given.bound is not None
        assert torch.allclose(given.bound, -net.head.log_likelihood(net(to_input(x)), y), atol=1e-5)

    def test_bound_needs_labels_and_beliefs(self) -> None:
        predictor, x = Predictor(_classifier()), _images(5)
        assert predictor.classify("analytic", x).bound is None
        assert predictor.classify("map", x, torch.zeros(5, dtype=torch.int64)).bound is None

    def test_mc_epistemic_is_the_mutual_information_of_the_members(self) -> None:
        net, x = _classifier(), _images(20)
        predictor = Predictor(net, samples=4, seed=1)
        members = torch.stack([member.predict(to_input(x)) for member in predictor.members("mc")])
        given = predictor.classify("mc", x)
        assert given.epistemic is not None
        assert torch.allclose(given.epistemic, metrics.mutual_information(members), rtol=0, atol=1e-6)
        assert torch.allclose(given.aleatoric, metrics.entropy(members).mean(0), rtol=0, atol=1e-6)

    def test_analytic_epistemic_is_the_mutual_information_with_sampled_logits(self) -> None:
        net, x = _classifier(), _images(6)
        given = Predictor(net).classify("analytic", x)
        net.eval()
        belief = net(to_input(x))
        draws = torch.randn(200_000, *belief.shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            members = torch.softmax((belief.mean + draws * belief.var.sqrt()) / net.head.scale, -1)
        assert given.epistemic is not None
        assert torch.allclose(given.epistemic, metrics.mutual_information(members), rtol=0, atol=2e-3)
        assert (given.epistemic > 0.01).all()

    @pytest.mark.parametrize("mode", ["analytic", "mc"])
    def test_parts_add_up(self, mode: str) -> None:
        given = Predictor(_classifier()).classify(mode, _images(30))
        assert given.epistemic is not None
        assert torch.allclose(given.aleatoric + given.epistemic, given.entropy)
        assert (given.aleatoric >= 0).all()
        assert (given.epistemic >= 0).all()

    @pytest.mark.parametrize(("mode", "samples"), [("map", 5), ("mc", 1)])
    def test_a_single_network_has_no_epistemic_part(self, mode: str, samples: int) -> None:
        given = Predictor(_classifier(), samples=samples).classify(mode, _images(4))
        assert given.epistemic is None
        assert torch.equal(given.aleatoric, given.entropy)

    def test_a_network_without_doubt_has_no_epistemic_uncertainty(self) -> None:
        net = _classifier()
        with torch.no_grad():
            for _, posterior in net.posteriors():
                posterior.logits.mul_(1e4)
        given = Predictor(net).classify("analytic", _images(10))
        assert given.epistemic is not None
        assert given.epistemic.max() < 1e-4

    def test_split_can_be_left_out(self) -> None:
        given = Predictor(_classifier()).classify("analytic", _images(4), split=False)
        assert given.epistemic is None

    def test_the_networks_mode_and_gradients_are_left_alone(self) -> None:
        net = _classifier().train()
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        predictor = Predictor(net, recalibrate_on=_images(50))
        for mode in predictor.modes:
            assert not predictor.classify(mode, _images(4)).probs.requires_grad
        assert all(module.training for module in net.modules())
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())

    @pytest.mark.parametrize("mode", ["analytic", "mc", "map"])
    def test_a_broken_network_is_named(self, mode: str) -> None:
        net = _classifier()
        net.head.log_scale.data.fill_(torch.nan)
        with pytest.raises(ValueError, match=f"NaN or infinite predictions in mode '{mode}', for 4 of 4 examples"):
            Predictor(net).classify(mode, _images(4))

    def test_unknown_mode(self) -> None:
        with pytest.raises(ValueError, match="mode must be one of analytic, mc, map, got 'mean'"):
            Predictor(_classifier()).classify("mean", _images(4))
        with pytest.raises(ValueError, match="got 'mc_recalibrated'"):
            Predictor(_classifier()).classify("mc_recalibrated", _images(4))


class TestMembers:
    def test_the_same_every_time_and_as_sampled_by_hand(self) -> None:
        net = _classifier()
        predictor = Predictor(net, samples=3, seed=5)
        generator = torch.Generator().manual_seed(5)
        by_hand = [net.sample(generator).state_dict() for _ in range(3)]
        for _ in range(2):
            for member, expected in zip(predictor.members("mc"), by_hand, strict=True):
                assert all(torch.equal(tensor, expected[name]) for name, tensor in member.state_dict().items())

    def test_hidden_variables_do_not_change_the_weights_drawn(self) -> None:
        body = bqn.nn.Sequential(bqn.nn.Linear(8, 6), bqn.nn.Sign(), bqn.nn.Dropout(0.5), bqn.nn.Linear(6, 2))
        predictor = Predictor(bqn.Network(body, bqn.SoftmaxHead(6)), samples=3)
        unused = [member.body[3].weight for member in predictor.members("mc")]
        used = []
        for member in predictor.members("mc"):
            member(torch.randn(5, 8))
            used.append(member.body[3].weight)
        assert all(torch.equal(a, b) for a, b in zip(unused, used, strict=True))
        x = torch.randn(30, 8)
        for mode in ("mc", "map"):  # dropout draws at every forward, yet from the seed alone
            assert torch.equal(predictor.classify(mode, x).probs, predictor.classify(mode, x).probs)

    def test_recalibrated_members_have_the_statistics_of_the_training_inputs(self) -> None:
        net, training = _classifier(), _images(150)
        predictor = Predictor(net, samples=2, seed=3, recalibrate_on=training)
        generator = torch.Generator().manual_seed(3)
        for member in predictor.members("mc_recalibrated"):
            by_hand = bqn.recalibrate(net.sample(generator), to_input(training))
            norm, expected = member.body[2], by_hand.body[2]
            assert torch.allclose(norm.running_mean, expected.running_mean, atol=1e-5)
            assert torch.allclose(norm.running_var, expected.running_var, rtol=1e-4)

    def test_reference_is_a_seeded_choice_in_whole_batches(self) -> None:
        x = torch.arange(5000, dtype=torch.float32).unsqueeze(-1)
        reference = Predictor(_classifier(), batch_size=300, recalibrate_on=x).reference
        assert reference is not None
        assert len(reference) == RECALIBRATION_INPUTS - RECALIBRATION_INPUTS % 300
        assert len(reference.unique()) == len(reference)
        again = Predictor(_classifier(), batch_size=300, recalibrate_on=x).reference
        assert again is not None
        assert torch.equal(reference, again)
        small = Predictor(_classifier(), batch_size=1, recalibrate_on=x[:60]).reference
        assert small is not None
        assert len(small) == 60

    def test_too_few_training_inputs(self) -> None:
        with pytest.raises(ValueError, match="recalibrate_on must hold at least two examples, got 1"):
            Predictor(_classifier(), recalibrate_on=_images(1))


class TestRegress:
    @pytest.mark.parametrize("mode", ["analytic", "mc", "map"])
    def test_in_batches_and_units(self, mode: str) -> None:
        net, x = _regressor(), torch.randn(20, 4)
        shift, unit = torch.tensor([3.0, -1.0]), torch.tensor([2.0, 3.0])
        given = Predictor(net, samples=3, seed=4, batch_size=6).regress(mode, x, None, shift, unit)
        expected = net.predict(x, mode, samples=3, generator=torch.Generator().manual_seed(4))
        assert torch.allclose(given.mean, (expected.mean * unit + shift).double(), atol=1e-5)
        assert torch.allclose(given.variance, (expected.var * unit**2).double(), rtol=1e-4)
        assert torch.allclose(given.aleatoric, (net.head.noise.detach() * unit**2).double().expand(20, 2), rtol=1e-5)

    def test_members_mix(self) -> None:
        given = Predictor(_regressor(), samples=4).regress("mc", torch.randn(5, 4))
        assert given.means.shape == given.variances.shape == (4, 5, 2)
        assert given.epistemic is not None
        assert torch.allclose(given.epistemic, given.means.var(0, correction=0))
        assert Predictor(_regressor()).regress("map", torch.randn(5, 4)).epistemic is None

    @pytest.mark.parametrize("mode", ["analytic", "mc", "map"])
    def test_a_broken_network_is_named(self, mode: str) -> None:
        net = _regressor()
        net.head.weight.data.fill_(torch.nan)
        with pytest.raises(ValueError, match=f"NaN or infinite predictions in mode '{mode}', for 5 of 5 examples"):
            Predictor(net).regress(mode, torch.randn(5, 4))

    def test_bound_in_units_of_the_target(self) -> None:
        net, x, y = _regressor(), torch.randn(9, 4), torch.randn(9, 2) * 5 + 3
        shift, unit = torch.tensor([3.0, -1.0]), torch.tensor([2.0, 3.0])
        given = Predictor(net, batch_size=4).regress("analytic", x, y, shift, unit)
        standardized = net.head.log_likelihood(net(x), (y - shift) / unit)
        assert given.bound is not None
        assert torch.allclose(given.bound, (unit.log().sum() - standardized).double(), atol=1e-4)


def test_tensor_heads_need_no_variance() -> None:
    """A body without posteriors gives a plain tensor, which is known without doubt."""
    net = bqn.Network(bqn.nn.Sequential(bqn.nn.Flatten()), bqn.SoftmaxHead(1))
    x = torch.randn(6, 3)
    given = Predictor(net).classify("analytic", x)
    total, _ = entropies(x, torch.zeros_like(x))
    assert given.epistemic is not None
    assert given.epistemic.abs().max() < 1e-6
    assert torch.allclose(given.entropy, total, atol=1e-6)


@pytest.mark.parametrize("mode", ["analytic", "mc", "map", "mc_recalibrated"])
def test_no_examples_give_an_empty_result(mode: str) -> None:
    predictor = Predictor(_classifier(), recalibrate_on=_images(20))
    given = predictor.classify(mode, _images(0), torch.zeros(0, dtype=torch.int64))
    assert given.probs.shape == (0, CLASSES)
    assert given.entropy.shape == given.aleatoric.shape == (0,)
    assert predictor.log_probs(mode, _images(0)).shape == (0, CLASSES)
    if mode != "mc_recalibrated":
        assert Predictor(_regressor()).regress(mode, torch.zeros(0, 4), torch.zeros(0, 2)).means.shape[1:] == (0, 2)
