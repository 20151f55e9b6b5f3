"""Bytes of networks that can be counted by hand."""

import torch

import bqn
from bqn.baselines.pbp import PBPNetwork
from bqn.comparison.size import stored_bytes


def bits_to_bytes(bits: int) -> int:
    return -(-bits // 8)


def test_beliefs_take_four_bytes_a_number() -> None:
    net = bqn.models.regressor(6, hidden=(5,), levels=bqn.TERNARY)
    numbers = sum(t.numel() for t in net.state_dict().values() if t.is_floating_point())
    assert 0.5 * 4 * numbers < stored_bytes(net, "analytic", 5) <= 4 * numbers


def test_the_most_probable_network_takes_few_bits_a_weight() -> None:
    torch.manual_seed(0)
    net = bqn.models.regressor(40, hidden=(50,), levels=bqn.BINARY)
    plain = net.mode()
    weights = plain.state_dict()["body.0.weight"].numel()
    real = 50 + 1  # the head's weights and its noise
    got = stored_bytes(net, "map", 5)
    assert bits_to_bytes(weights + 32 * real) < got < bits_to_bytes(weights + 32 * real) + 200
    drawn = stored_bytes(net, "mc", 5)
    assert 3 * got < drawn + 4 * 4 * real < 6 * got


def test_what_serves_training_alone_does_not_count() -> None:
    torch.manual_seed(0)
    net = PBPNetwork([(3, 4), (4, 1)])
    weights = 4 * 4 + 5
    got = stored_bytes(net, "analytic", 5)
    assert got < 4 * (2 * weights + 2) + 8  # means, variances, noise
    assert got > 4 * weights
