"""The ONNX model gives the integers of the packed network in onnxruntime, and its probabilities or moments."""

import os
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import bqn
from bqn import nn
from bqn.deploy import Lattice, PackedError, PackedModel, pack_in_memory
from bqn.deploy.onnx import to_onnx
from bqn.deploy.program import Conv2d, SumPool
from bqn.deploy.validation import validate
from tests.deploy.networks import disturb, image_networks, packed_model, pixels, sampled
from tests.deploy.programs import random_program

# More cases than CI has time for: BQN_FUZZ=2000 pytest tests/deploy/test_onnx.py
CASES = int(os.environ.get("BQN_FUZZ", "20"))
THOROUGH = settings(deadline=None, max_examples=CASES, suppress_health_check=list(HealthCheck))


def run(content, x):
    """All outputs by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: x}), strict=True))


def assert_same(model, x):
    found = run(to_onnx(model.packed), x)
    np.testing.assert_array_equal(found["logits"], model.logits(x))
    np.testing.assert_allclose(found["probabilities"], model(x), rtol=0, atol=1e-6)
    assert found["probabilities"].dtype == np.float32


PAPER = {
    "mlp": (bqn.models.mlp, (70,), {"hidden": (40, 33)}),
    "cnn": (bqn.models.cnn, (1, 14, 14), {"channels": (6, 70), "hidden": 33}),
    "cnn, pooling last": (bqn.models.cnn, (3, 13, 11), {"channels": (6, 70), "hidden": 33, "pool_first": False}),
    "vgg": (bqn.models.vgg, (3, 16, 16), {"channels": (8, 66, 12), "hidden": 40, "activations": bqn.TERNARY}),
    "resnet": (bqn.models.resnet, (1, 8, 8), {"channels": (8, 24), "blocks": 2, "levels": bqn.QUATERNARY}),
}


@pytest.mark.parametrize("name", PAPER)
def test_architectures(name):
    make, shape, options = PAPER[name]
    net = disturb(make(shape[0] if len(shape) == 1 else shape, 5, **options), shape)
    assert_same(packed_model(sampled(net, 3), input_shape=shape), pixels(20, shape).numpy())


@THOROUGH
@given(image_networks(), st.integers(0, 2**16), st.booleans())
def test_image_networks(made, seed, trained):
    net, shape = made
    disturb(net, shape, seed, trained)
    assert_same(packed_model(sampled(net, 2, seed), input_shape=shape), pixels(5, shape, seed).numpy())


@THOROUGH
@given(st.integers(0, 2**32))
def test_programs(seed):
    packed = random_program(seed)
    x = np.random.default_rng(seed).integers(0, 256, (3, *packed.program.input.shape), np.uint8)
    ranges = validate(packed)
    assume(max(ranges[op.name].most for op in packed.program.ops if isinstance(op, (Conv2d, SumPool))) < 2**24)
    assert_same(PackedModel(packed, "numpy"), x)


def test_signals():
    body = nn.Sequential(nn.Conv1d(2, 9, 5, stride=2), nn.BatchNorm1d(9), nn.Sign(), nn.Flatten(), nn.Linear(135, 3))
    net = disturb(bqn.Network(body, bqn.SoftmaxHead(135)), (2, 33))
    assert_same(packed_model(sampled(net), input_shape=(2, 33)), pixels(10, (2, 33)).numpy())


def test_sums_that_need_float64():
    """256 levels of pixels on 256 levels of weights: beyond 24 bits."""
    model = packed_model(bqn.models.mlp(400, 3, ()).mode(), input_shape=(400,))
    (op,) = model.program.products()
    wide = replace(op, weight=Lattice(-255, 2, 256))
    weights = np.full((1, 8, 150), 255, np.uint8)
    weights[:, :2] = np.random.default_rng(0).integers(0, 256, (1, 2, 150))
    ops = tuple(wide if each is op else each for each in model.program.ops)
    arrays = model.packed.arrays | {f"{op.name}.weight": weights}
    packed = replace(model.packed, program=replace(model.program, ops=ops), arrays=arrays)
    x = pixels(9, (400,)).numpy()
    assert np.abs(PackedModel(packed).logits(x)).max() > 2**24
    assert_same(PackedModel(packed), x)


def test_regression():
    net = bqn.models.regressor(6, (20,), out_features=2, bias_levels=(-0.25, 0.0, 0.25)).eval()
    with torch.no_grad():
        net.head.log_noise.copy_(torch.tensor([-1.0, 0.5]))
    model = packed_model(
        sampled(net, 4), input_shape=(6,), input_scale=(torch.arange(6.0), torch.arange(6.0) / 7 + 0.3),
        target_scale=(torch.tensor([90.0, -7.0]), torch.tensor([20.0, 0.5])),
    )  # fmt: skip
    x = np.random.default_rng(0).normal(3, 4, (50, 6)).astype(np.float32)
    found, expected = run(to_onnx(model.packed), x), model(x)
    np.testing.assert_array_equal(found["logits"], model.logits(x))
    for name, values in expected._asdict().items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-6, err_msg=name)


def test_features_of_a_classifier():
    net = bqn.models.mlp(5, 3, (7,), bqn.TERNARY, batch_norm=False)
    model = packed_model(sampled(net, 3), inputs="features", input_shape=(5,))
    x = np.random.default_rng(0).normal(0, 1, (40, 5)).astype(np.float32)
    x[0] = np.array([0.5, 1.5, -0.5, -1.5, 2.5]) * 2.0**-24
    assert_same(model, x)


def test_what_members_share_is_stored_once():
    net = disturb(bqn.models.mlp(64, 3, (300,)), (64,))
    one = net.mode()
    alone, twice = (to_onnx(pack_in_memory(networks, input_shape=(64,))) for networks in ([one], [one, one]))
    assert len(twice) < 1.1 * len(alone)


def test_the_model_says_what_it_is():
    packed = pack_in_memory(bqn.models.mlp(5, 2, (4,)).mode(), input_shape=(5,), classes=("cat", "dog"))
    content = to_onnx(packed)
    model = onnx.load_from_string(content)
    assert "compatibility" in model.doc_string
    assert {entry.key: entry.value for entry in model.metadata_props} == {"classes": "cat\ndog", "members": "1"}
    assert content == to_onnx(packed)


def test_refused(monkeypatch):
    with pytest.raises(PackedError, match="does not say what shape its examples have"):
        to_onnx(pack_in_memory(bqn.models.mlp(5, 2).mode()))
    packed = pack_in_memory(bqn.models.cnn((8, 9, 9), 3, channels=(4,), hidden=5).mode(), input_shape=(8, 9, 9))
    ops = tuple(
        replace(op, weight=Lattice(-501, 1002, 2)) if isinstance(op, Conv2d) else op for op in packed.program.ops
    )
    with pytest.raises(PackedError, match="more than a float32 convolution holds exactly"):
        to_onnx(replace(packed, program=replace(packed.program, ops=ops)))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r'pip install "bqn\[onnx\]"'):
        to_onnx(packed)
