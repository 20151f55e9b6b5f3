"""mc-dropout: masks with the right moments, drawn when they should be, and doubt from them."""

import math

import pytest
import torch

from bqn.baselines._layers import MaskedUnits
from bqn.training.models import build_model
from tests.training import tiny


def network(**options):
    return build_model(tiny.config(method="mc-dropout", **options), (1, 6, 6), 3)


def test_masks_keep_the_mean():
    layer = MaskedUnits(0.3).train()
    torch.manual_seed(0)
    out = layer(torch.ones(100_000))
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert out.mean().item() == pytest.approx(1, abs=5 * math.sqrt(0.3 / 0.7 / 1e5))
    assert torch.equal(layer.eval()(out), out)
    with pytest.raises(ValueError, match="rate must be at least 0 and below 1, got 1"):
        MaskedUnits(1.0)


def test_mc_draws_and_map_does_not():
    net = network(dropout=0.5).eval()
    x = torch.randn(8, 1, 6, 6)
    first, again, other = (net.predict(x, "mc", 4, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(net.predict(x, "map"), torch.softmax(net(x), -1))
    member = next(net.members("mc", 1, torch.Generator().manual_seed(0)))
    assert not torch.equal(member(x), member(x))  # a new mask at every forward


def test_inputs_are_left_whole():
    masks = [name for name, layer in network(hidden=(8, 8)).named_modules() if isinstance(layer, MaskedUnits)]
    assert len(masks) == 2
    net = build_model(tiny.regression_config(method="mc-dropout", dropout=0.05), (4,), 1)
    assert len([layer for layer in net.modules() if isinstance(layer, MaskedUnits)]) == 1


def test_without_dropout_mc_is_map():
    net = network(dropout=0.0).eval()
    x = torch.randn(8, 1, 6, 6)
    torch.testing.assert_close(net.predict(x, "mc", 3), net.predict(x, "map"))
