"""The registry: every name builds, the seed decides the start, and nothing outside is touched."""

import pytest
import torch

from bqn.training import ARCHITECTURES, ConfigError, TrainConfig, build_model

SMALL = {
    "mlp": ({"hidden": (6, 5), "batch_norm": False}, (1, 4, 4)),
    "cnn": ({"channels": (3, 4), "hidden": (6,), "pool_first": False}, (1, 8, 8)),
    "vgg": ({"channels": (3, 4), "hidden": (6,), "levels": "ternary"}, (3, 8, 8)),
    "resnet": ({"channels": (3, 4), "blocks": 1}, (3, 8, 8)),
    "regressor": ({"hidden": (6,), "bias_levels": (-2, 0, 2)}, (5,)),
}


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_a_saved_config_builds_the_same_network(name):
    options, shape = SMALL[name]
    config = TrainConfig(model=name, seed=3, **options)
    net = build_model(config, shape, 2)
    again = build_model(TrainConfig.from_json(config.to_json()), shape, 2)
    assert net(torch.zeros(4, *shape)).shape[0] == 4
    assert str(net) == str(again)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    other = build_model(TrainConfig(model=name, seed=4, **options), shape, 2)
    assert not all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_options_reach_the_network():
    net = build_model(TrainConfig(hidden=(6, 5), levels="quaternary", activations="ternary"), (7,), 3)
    assert [posterior.shape for _, posterior in net.posteriors() if len(posterior.shape) == 2] == [
        (6, 7),
        (5, 6),
        (3, 5),
    ]
    assert all(posterior.level_values == (-3.0, -1.0, 1.0, 3.0) for _, posterior in net.posteriors())
    assert [layer.levels for layer in net.body if hasattr(layer, "thresholds")] == [(-1.0, 0.0, 1.0)] * 2


def test_global_generator_is_left_alone():
    before = torch.get_rng_state()
    build_model(TrainConfig(hidden=(3,)), (4,), 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("values", "shape", "message"),
    [
        ({"model": "cnn"}, (64,), "cnn needs images of shape"),
        ({"model": "vgg", "hidden": (3, 4)}, (1, 8, 8), "vgg has one hidden layer"),
        ({"model": "regressor"}, (1, 8, 8), "regressor needs inputs of shape"),
    ],
)
def test_misfits(values, shape, message):
    with pytest.raises(ConfigError, match=message):
        build_model(TrainConfig(**values), shape, 2)
