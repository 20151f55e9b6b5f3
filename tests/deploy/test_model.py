"""What a packed model predicts, what it takes, and that it needs no torch."""

import copy
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import bqn
from bqn import nn
from bqn.data import to_input
from bqn.deploy import Packed, PackedError, PackedModel, from_bytes, load_packed, pack, supported_kernels, to_bytes
from bqn.deploy.inspection import describe
from bqn.deploy.network import PackedNetwork
from tests.deploy.networks import assert_exact, disturb, packed_model, pixels, sampled

KERNELS = ("numpy", *supported_kernels())


@pytest.fixture(scope="module")
def classifier():
    net = disturb(bqn.models.mlp(30, 4, (21, 70)), (30,))
    return sampled(net, 3)


@pytest.fixture(scope="module")
def regression():
    net = bqn.models.regressor(6, (20,), out_features=2, bias_levels=(-0.25, 0.0, 0.25)).eval()
    with torch.no_grad():
        net.head.log_noise.copy_(torch.tensor([-1.0, 0.5]))
    return sampled(net, 4)


@pytest.mark.parametrize("kernels", KERNELS)
def test_probabilities(classifier, kernels):
    x = pixels(40, (30,))
    model = packed_model(classifier, kernels)
    members = np.stack([network.predict(to_input(x)).numpy() for network in classifier])
    np.testing.assert_allclose(model.member_probabilities(x.numpy()), members, atol=1e-6)
    probs = model(x.numpy())
    assert probs.shape == (40, 4)
    assert probs.dtype == np.float64
    np.testing.assert_allclose(probs.sum(-1), 1)
    np.testing.assert_allclose(probs, members.mean(0), atol=1e-6)
    for network, integers in zip(classifier, model.logits(x.numpy()), strict=True):
        np.testing.assert_array_equal(integers * model.step, network(to_input(x)).numpy())


def test_uncertainty(classifier):
    x = pixels(40, (30,))
    model = packed_model(classifier)
    members = torch.stack([network.predict(to_input(x)).double() for network in classifier])
    given = model.uncertainty(x.numpy())
    np.testing.assert_allclose(given.total, bqn.metrics.entropy(members.mean(0)), atol=1e-6)
    np.testing.assert_allclose(given.epistemic, bqn.metrics.mutual_information(members), atol=1e-6)
    np.testing.assert_allclose(given.aleatoric + given.epistemic, given.total)
    alone = packed_model(classifier[:1]).uncertainty(x.numpy())
    np.testing.assert_array_equal(alone.epistemic, 0)


def test_regression(regression):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=generator) * 3 + 5
    inputs = bqn.data.Standardizer.fit(x)
    targets = (torch.tensor([100.0, -7.0]), torch.tensor([20.0, 0.5]))
    model = packed_model(
        regression, inputs="features", input_scale=(inputs.mean, inputs.std), target_scale=targets, input_shape=(6,)
    )
    z = inputs.transform(x)
    expected = regression[0].head.mix([network.predict(z) for network in regression])
    given = model(x.numpy())
    for network, integers in zip(regression, model.logits(x.numpy()), strict=True):
        np.testing.assert_array_equal(integers * model.step, network(z).numpy())
    np.testing.assert_allclose(given.mean, expected.mean * targets[1] + targets[0], rtol=1e-5)
    np.testing.assert_allclose(given.var, expected.var * targets[1].square(), rtol=1e-5)
    np.testing.assert_allclose(given.skewness, expected.skewness, atol=1e-4)
    np.testing.assert_allclose(given.kurtosis, expected.kurtosis, rtol=1e-4)
    given = model.uncertainty(x.numpy())
    np.testing.assert_allclose(given.total, model(x.numpy()).var)
    assert model.task == "regression"
    assert model.outputs((6,)) == 2


def test_regression_without_scales(regression):
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
    model = packed_model(regression[:1])
    expected = regression[0].predict(x)
    given = model(x.numpy())
    np.testing.assert_allclose(given.mean, expected.mean, atol=1e-5)
    np.testing.assert_allclose(given.var, expected.var, rtol=1e-6)
    np.testing.assert_allclose(given.kurtosis, 3)


def test_features_of_a_classifier():
    net = disturb(bqn.models.mlp(5, 3, (30, 40)), (5,))
    networks = sampled(net)
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(2))
    model = packed_model(networks, inputs="features")
    for network, integers in zip(networks, model.logits(x.numpy()), strict=True):
        np.testing.assert_array_equal(integers * model.step, network(x).detach().numpy())


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
def test_pixels_in_every_type(classifier, dtype):
    x = pixels(9, (30,)).numpy()
    model = packed_model(classifier)
    other = (2 * x.astype(dtype) - 255) / 256 if np.dtype(dtype).kind == "f" else x.astype(dtype)
    np.testing.assert_array_equal(model.logits(other), model.logits(x))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(30, np.uint8), "must have a batch dimension"),
        (np.zeros((2, 30)) + 0.3, "must be uint8 pixels"),
        (np.full((2, 30), np.nan), "must be uint8 pixels"),
        (np.full((2, 30), 256), "must be uint8 pixels"),
        (np.full((2, 30), -1), "must be uint8 pixels"),
        (np.full((2, 30), "a"), "must hold pixels, got <U1"),
        (np.zeros((2, 31), np.uint8), "expected 30 features"),
        (np.zeros((2, 1, 1, 1, 30), np.uint8), r"an example must have shape"),
    ],
)
def test_wrong_pixels(classifier, x, message):
    with pytest.raises(ValueError, match=message):
        packed_model(classifier)(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.full((2, 6), np.inf), "must be finite"),
        (np.full((2, 6), 1e5), "beyond ±4096"),
        (np.zeros((2, 6), bool), "must hold numbers"),
        (np.zeros((2, 7)), "expected 6 features"),
    ],
)
def test_wrong_features(regression, x, message):
    with pytest.raises(ValueError, match=message):
        packed_model(regression)(x)


def test_the_shape_in_the_file_counts():
    model = packed_model(bqn.models.mlp(30, 4, (5,)).mode(), input_shape=(1, 5, 6))
    x = pixels(3, (30,)).numpy()
    np.testing.assert_array_equal(model.logits(x), model.logits(x.reshape(3, 1, 5, 6)))
    with pytest.raises(ValueError, match=r"x must have shape \(N, 1, 5, 6\), got \(3, 6, 5\)"):
        model.logits(x.reshape(3, 6, 5))


def test_asking_for_the_wrong_thing(classifier, regression):
    with pytest.raises(ValueError, match="has no moments"):
        packed_model(classifier).member_moments(np.zeros((1, 30), np.uint8))
    with pytest.raises(ValueError, match="has no class probabilities"):
        packed_model(regression).member_probabilities(np.zeros((1, 6)))
    with pytest.raises(ValueError, match="kernels must be one of numpy"):
        PackedModel(packed_model(classifier).packed, "quantum")


def test_many_shapes_do_not_fill_the_memory():
    net = disturb(bqn.models.cnn((1, 12, 12), 3, channels=(3, 4), hidden=5), (1, 12, 12))
    model = packed_model(net.mode())
    for size in range(12, 16):
        for width in range(12, 16):
            model.logits(pixels(1, (1, size, width)).numpy())
    assert len(model._plans) <= 8
    with pytest.raises(PackedError, match=r"expected 36 features|would read"):
        model.logits(pixels(1, (1, 16, 12)).numpy())


def test_pack_writes_what_load_packed_reads(tmp_path, classifier):
    path = tmp_path / "three.bqn"
    packed = bqn.pack(classifier, path, classes="abcd", about={"model": "mlp"})
    model = bqn.load_packed(path)
    assert pack is bqn.pack
    assert load_packed is bqn.load_packed
    assert (model.members, model.classes, model.task) == (3, tuple("abcd"), "classification")
    assert model.packed.program == packed.program
    assert [entry.name for entry in tmp_path.iterdir()] == ["three.bqn"]


def test_it_runs_without_torch(tmp_path, classifier):
    """In a process where torch cannot be imported at all."""
    pack(classifier, tmp_path / "a.bqn")
    x = pixels(5, (30,)).numpy()
    np.save(tmp_path / "x.npy", x)
    script = f"""
import sys
sys.modules["torch"] = None
import numpy as np
import bqn
from bqn.deploy import load_packed
model = load_packed({str(tmp_path / "a.bqn")!r})
x = np.load({str(tmp_path / "x.npy")!r})
np.save({str(tmp_path / "probs.npy")!r}, model(x))
model.uncertainty(x)
assert bqn.load_packed is load_packed
assert "bqn.nn" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    expected = np.mean([network.predict(to_input(torch.from_numpy(x))).numpy() for network in classifier], 0)
    np.testing.assert_allclose(np.load(tmp_path / "probs.npy"), expected, atol=1e-6)


def test_members_that_share_everything_are_one_plan():
    net = bqn.models.mlp(20, 3, (9,)).mode()
    x = np.random.default_rng(0).integers(0, 256, (5, 20), np.uint8)
    one, many = (packed_model([net] * members) for members in (1, 4))
    assert len({id(plan) for plan in many._plans_for((20,))}) == 1
    assert len(many.logits(x)) == 4
    np.testing.assert_array_equal(many.logits(x), one.logits(x) * 4)
    np.testing.assert_array_equal(many(x), one(x))


class Parts(torch.nn.Module):
    """A body of two parts by name, the last of which differs from member to member."""

    def __init__(self, first, last, *layers):
        super().__init__()
        self.names = (first, last)
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Sign())
        for part in (trunk[1].weight, trunk[1].bias):
            part.logits.data.mul_(1e4)  # a trunk that is sure
        setattr(self, first, trunk)
        setattr(self, last, layers[0] if len(layers) == 1 else nn.Sequential(*layers))

    def forward(self, x):
        first, last = self.names
        return getattr(self, last)(getattr(self, first)(x))


def by_old_names(packed):
    """As files were written when a layer called head had its arrays stored under that name."""
    new = {op.name: op.name.replace("head#2", "head") for op in packed.program.ops}
    ops = tuple(replace(op, name=new[op.name], **_source(op, new)) for op in packed.program.ops)
    program = replace(packed.program, ops=ops, output=new[packed.program.output])
    return Packed(program, packed.members, {name.replace("head#2", "head"): a for name, a in packed.arrays.items()})


def _source(op, new):
    return {"source": new[op.source]} if hasattr(op, "source") else {}


@pytest.mark.parametrize(("first", "last"), [("features", "head"), ("head", "target"), ("input", "head")])
def test_layers_that_are_called_as_other_parts_of_the_file(first, last):
    x = pixels(100, (1, 8, 8))
    for layers in ([nn.Linear(32, 16), nn.Sign(), nn.Linear(16, 3)], [nn.Linear(32, 3)]):
        torch.manual_seed(0)
        networks = sampled(bqn.Network(Parts(first, last, *layers), bqn.SoftmaxHead(16)).eval(), 5)
        model = assert_exact(networks, x, input_shape=(1, 8, 8))
        members = np.stack([network.predict(to_input(x)).numpy() for network in networks])
        np.testing.assert_allclose(model.member_probabilities(x.numpy()), members, atol=1e-6)
        assert describe(model.packed)["bytes"]["head"] == 4
        as_network = PackedNetwork(model).members("packed")
        for network, expected in zip(as_network, networks, strict=True):
            torch.testing.assert_close(network.predict(to_input(x)), expected.predict(to_input(x)))
        old = PackedModel(from_bytes(to_bytes(by_old_names(model.packed))))
        np.testing.assert_array_equal(old.logits(x.numpy()), model.logits(x.numpy()))
        assert describe(old.packed)["bytes"]["head"] == 4
        assert PackedNetwork(old).head.log_scale == PackedNetwork(model).head.log_scale


def test_a_layer_called_head_before_a_gaussian_head():
    class Body(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.sign = nn.Linear(5, 20), nn.Sign()

        def forward(self, x):
            return self.sign(self.head(x))

    networks = sampled(bqn.Network(Body(), bqn.GaussianHead(20, 2)).eval(), 3)
    x = torch.randint(-8, 9, (50, 5), generator=torch.Generator().manual_seed(3)).float()
    model = packed_model(networks)
    for network, moments in zip(networks, model.member_moments(x.numpy()), strict=True):
        np.testing.assert_allclose(moments.mean, network.predict(x).mean, atol=1e-5)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_used_model_can_be_pickled_and_copied(classifier, kernels):
    model, x = packed_model(classifier, kernels), pixels(9, (30,)).numpy()
    expected = model(x)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), copy.copy(model)):
        assert other.kernels == kernels
        np.testing.assert_array_equal(other(x), expected)
    np.testing.assert_array_equal(model(x), expected)


def test_the_kernels_are_those_that_run(classifier, regression):
    for kernels in KERNELS:
        assert packed_model(classifier, kernels).kernels == kernels
        real = packed_model(regression, kernels)  # there are no compiled kernels for real-valued features
        assert real.kernels == "numpy"
        assert "kernels numpy" in repr(real)
    constant = nn.Sequential(nn.Linear(6, 5), nn.Quantize((0.1, 0.1 + 1e-10)), nn.Linear(5, 4))  # one level in float32
    model = packed_model(bqn.Network(constant, bqn.SoftmaxHead(5)).eval().mode(), KERNELS[-1])
    model.logits(pixels(2, (6,)).numpy())
    assert model.kernels == "numpy"


@pytest.mark.parametrize(
    ("layers", "right", "wrong"),
    [
        ((nn.Conv1d(2, 3, 3, padding=1), nn.Sign(), nn.Flatten(), nn.Linear(24, 3)), (2, 8), (2, 2, 4)),
        ((nn.Conv2d(2, 3, (1, 3), padding=(0, 1)), nn.Sign(), nn.Flatten(), nn.Linear(24, 3)), (2, 2, 4), (2, 8)),
        ((nn.AvgPool1d(2), nn.Flatten(), nn.Linear(8, 3)), (2, 8), (2, 2, 4)),
        ((nn.MaxPool2d((1, 2)), nn.Flatten(), nn.Linear(8, 3)), (2, 2, 4), (2, 8)),
        ((nn.Linear(16, 3),), (16,), (16, 1, 1)),
    ],
)
def test_examples_have_as_many_dimensions_as_the_layers_take(layers, right, wrong):
    """Also where the file does not say which shape they have; the float network raises too."""
    network = bqn.Network(nn.Sequential(*layers), bqn.SoftmaxHead(24)).eval().mode()
    model = assert_exact([network], pixels(5, right))
    form = ("N, F", "N, C, L", "N, C, H, W")[len(right) - 1]
    with pytest.raises(ValueError, match=rf"x must have shape \({form}\), as the layers need it, got"):
        model.logits(pixels(5, wrong).numpy())
    with pytest.raises(ValueError, match=r"dimensions|features"):
        network(to_input(pixels(5, wrong)))


def test_scales_as_arrays():
    network, x = bqn.models.regressor(6).eval().mode(), np.arange(24.0).reshape(4, 6)
    mean, std = np.arange(6.0), np.full(6, 2.0)
    by_array = packed_model(network, input_scale=(mean, std), target_scale=(np.array([3.0]), np.array([2.0])))
    by_tensor = packed_model(network, input_scale=(torch.tensor(mean), torch.tensor(std)))
    assert by_array.input_shape == (6,)
    np.testing.assert_allclose(by_array(x).mean, by_tensor(x).mean * 2 + 3)
    np.testing.assert_allclose(
        by_tensor(x).mean, network.predict(torch.tensor((x - mean) / std).float()).mean, atol=1e-5
    )
