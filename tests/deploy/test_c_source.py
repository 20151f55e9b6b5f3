"""The C header gives the integers of the packed network, in fixed memory, without warnings or undefined behaviour."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bqn
from bqn import nn
from bqn.deploy import Lattice, Packed, PackedError, PackedModel, Program, pack_in_memory
from bqn.deploy.c_memory import Layout
from bqn.deploy.c_source import as_identifier, to_c
from bqn.deploy.program import Conv2d, Flatten, Input, Linear, SumPool, Threshold
from bqn.deploy.validation import validate
from tests.deploy.compiled import FLAGS, SANITIZED, answers, build
from tests.deploy.networks import disturb, image_networks, packed_model, pixels, sampled
from tests.deploy.programs import random_program

# More cases than CI has time for: BQN_FUZZ=2000 pytest tests/deploy/test_c_source.py
CASES = int(os.environ.get("BQN_FUZZ", "5"))


def assert_same(model, x, folder, *options):
    """All that the header computes is what the packed model computes; classes are settled by averages."""
    found = answers(model.packed, x, folder, *options)
    np.testing.assert_array_equal(found.logits, model.logits(x))
    probs, members = model(x), np.stack(model.logits(x))
    np.testing.assert_allclose(found.probabilities, probs, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(probs[range(len(x)), found.labels] >= probs.max(-1) - 1e-8, True)
    votes = np.stack([(members.argmax(-1) == label).sum(0) for label in range(probs.shape[1])], -1)
    np.testing.assert_array_equal(found.votes, votes)
    return found


PAPER = {
    "mlp": (bqn.models.mlp, (70,), {"hidden": (40, 33)}),
    "mlp without batch norm": (bqn.models.mlp, (70,), {"hidden": (40, 33), "batch_norm": False}),
    "mlp of levels": (bqn.models.mlp, (70,), {"hidden": (40,), "levels": bqn.TERNARY, "activations": bqn.QUATERNARY}),
    "cnn": (bqn.models.cnn, (1, 14, 14), {"channels": (6, 70), "hidden": 33}),
    "cnn, pooling last": (bqn.models.cnn, (3, 13, 11), {"channels": (20, 70), "hidden": 33, "pool_first": False}),
    "vgg": (bqn.models.vgg, (3, 16, 16), {"channels": (8, 66, 12), "hidden": 40}),
    "resnet": (bqn.models.resnet, (1, 8, 8), {"channels": (8, 24), "blocks": 2}),
}


@pytest.mark.parametrize("name", PAPER)
def test_architectures(name, tmp_path):
    make, shape, options = PAPER[name]
    net = disturb(make(shape[0] if len(shape) == 1 else shape, 5, **options), shape)
    model = packed_model(sampled(net, 3), input_shape=shape)
    found = assert_same(model, pixels(20, shape).numpy(), tmp_path)
    assert np.ptp(found.logits[0], axis=0).any()


@settings(deadline=None, max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(image_networks(), st.integers(0, 2**16), st.booleans())
def test_image_networks_with_sanitizers(tmp_path_factory, made, seed, trained):
    net, shape = made
    disturb(net, shape, seed, trained)
    model = packed_model(sampled(net, 2, seed), input_shape=shape)
    assert_same(model, pixels(5, shape, seed).numpy(), tmp_path_factory.mktemp("c"), *SANITIZED)


@settings(deadline=None, max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_programs_with_sanitizers(tmp_path_factory, seed):
    packed = random_program(seed)
    x = np.random.default_rng(seed).integers(0, 256, (3, *packed.program.input.shape), np.uint8)
    assert_same(PackedModel(packed, "numpy"), x, tmp_path_factory.mktemp("c"), *SANITIZED)


def test_signals(tmp_path):
    body = nn.Sequential(
        nn.Conv1d(2, 9, 5, stride=2, padding=3), nn.AvgPool1d(2), nn.BatchNorm1d(9), nn.Sign(),
        nn.Conv1d(9, 8, 3, dilation=2), nn.MaxPool1d(3, padding=1), nn.BatchNorm1d(8), nn.Quantize(bqn.TERNARY),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip
    net = disturb(bqn.Network(body, bqn.SoftmaxHead(16)), (2, 33))
    assert_same(packed_model(sampled(net), input_shape=(2, 33)), pixels(10, (2, 33)).numpy(), tmp_path)


def test_a_vector_of_pixels_that_is_thresholded_first(tmp_path):
    body = nn.Sequential(nn.Flatten(), nn.Sign(), nn.Linear(36, 3))
    model = packed_model(bqn.Network(body, bqn.SoftmaxHead(36)).mode(), input_shape=(1, 6, 6))
    assert_same(model, pixels(10, (1, 6, 6)).numpy(), tmp_path, *SANITIZED)


def test_constants_and_values_that_nobody_reads(tmp_path):
    """A threshold of one level takes no memory, and a view that is not read makes no warning."""
    ops = (
        Input("input", "pixels", (2, 1, 3)),
        Threshold("constant", "input", 2, Lattice(3, 1, 1)),
        SumPool("sum", "constant", (1, 3), (1, 1), (0, 0)),
        Flatten("unread", "sum"),
        Flatten("out", "constant"),
    )
    arrays = {
        "constant.thresholds": np.zeros((1, 1, 0, 2), np.int8), "constant.flips": np.zeros((1, 1), np.uint8),
        "head.log_scale": np.zeros(1, np.float32),
    }  # fmt: skip
    packed = Packed(Program(ops, "out", 1.0, "softmax"), 1, arrays)
    validate(packed)
    found = assert_same(PackedModel(packed, "numpy"), pixels(3, (2, 1, 3)).numpy(), tmp_path, *SANITIZED)
    np.testing.assert_array_equal(found.logits[0], np.full((3, 6), 3))


# --- features and regression ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def regression():
    net = bqn.models.regressor(6, (20,), out_features=2, bias_levels=(-0.25, 0.0, 0.25)).eval()
    with torch.no_grad():
        net.head.log_noise.copy_(torch.tensor([-1.0, 0.5]))
    scale = {"input_scale": (torch.arange(6.0), torch.arange(6.0) / 7 + 0.3)}
    return packed_model(
        sampled(net, 4), input_shape=(6,), target_scale=(torch.tensor([90.0, -7.0]), torch.tensor([20.0, 0.5])), **scale
    )


def test_regression(regression, tmp_path):
    x = np.random.default_rng(0).normal(3, 4, (50, 6)).astype(np.float32)
    found = answers(regression.packed, x, tmp_path, *SANITIZED)
    np.testing.assert_array_equal(found.logits, regression.logits(x))
    expected = regression(x)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(found.variance, expected.var, rtol=1e-10)


@pytest.mark.parametrize("hidden", [(), (7,)])
def test_features_of_a_classifier(hidden, tmp_path):
    """Halves of the unit are rounded to even, in C as in numpy; without a hidden layer the logits have 64 bits."""
    model = packed_model(
        sampled(bqn.models.mlp(5, 3, hidden, bqn.TERNARY, batch_norm=False), 3), inputs="features", input_shape=(5,)
    )
    x = np.random.default_rng(0).normal(0, 1, (40, 5)).astype(np.float32)
    x[0] = np.array([0.5, 1.5, -0.5, -1.5, 2.5]) * 2.0**-24
    x[1] = 4095.75
    assert_same(model, x, tmp_path, *SANITIZED)


def test_features_that_cannot_be_used(regression, tmp_path):
    program = build(regression.packed, tmp_path)
    for bad in (np.nan, np.inf, -1e9):
        x = np.full((1, 6), bad, np.float32)
        assert subprocess.run([program], input=x.tobytes(), capture_output=True).returncode == 2


# --- probabilities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_scale", [-80.0, -20.0, -3.0, 0.0, 4.5, 20.0, 80.0])
def test_probabilities_of_any_scale(log_scale, tmp_path):
    model = packed_model(bqn.models.mlp(30, 4, (21,)).mode(), input_shape=(30,))
    arrays = model.packed.arrays | {"head.log_scale": np.array([log_scale], np.float32)}
    assert_same(PackedModel(replace(model.packed, arrays=arrays), "numpy"), pixels(30, (30,)).numpy(), tmp_path, "-O1")


# --- the text ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed():
    net = disturb(bqn.models.cnn((1, 14, 14), 3, channels=(6, 40), hidden=33), (1, 14, 14))
    return pack_in_memory(sampled(net, 2), input_shape=(1, 14, 14), classes=('a "quoted" one', "??/", "zwölf */"))


def test_header_in_two_files_and_in_cpp(packed, tmp_path):
    (tmp_path / "two.h").write_text(to_c(packed, "two"))
    (tmp_path / "net.c").write_text('#define TWO_IMPLEMENTATION\n#include "two.h"\n')
    loop = "for (int k = 0; k < 3; ++k) puts(two_classes[k]);"
    use = f'#include "two.h"\n#include <stdio.h>\nint main(void) {{\n    {loop}\n}}\n'
    (tmp_path / "use.c").write_text(use)
    (tmp_path / "use.cpp").write_text(use)
    subprocess.run(["gcc", *FLAGS, "net.c", "use.c", "-o", "use"], cwd=tmp_path, check=True)
    names = subprocess.run([tmp_path / "use"], capture_output=True, check=True).stdout.decode()
    assert names.splitlines() == list(packed.program.classes)
    subprocess.run(["g++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "use.cpp"], cwd=tmp_path, check=True)


def test_no_library_but_stdint(packed, tmp_path):
    text = to_c(packed, "net")
    assert re.findall(r"#include.*", text) == ["#include <stdint.h>"]
    assert not re.search(r"\b(malloc|float|double)\b", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    (tmp_path / "net.c").write_text("#define NET_IMPLEMENTATION\n" + text)
    flags = (*FLAGS, "-O2", "-ffreestanding", "-fno-tree-loop-distribute-patterns", "-c")
    subprocess.run(["gcc", *flags, "net.c"], cwd=tmp_path, check=True)
    undefined = subprocess.run(["nm", "-u", "net.o"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert set(undefined.split()) <= {"U", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_"}


def test_names(packed):
    text = to_c(packed, "Digits_2")
    assert "int Digits_2_predict(" in text
    assert "#define DIGITS_2_MEMBERS 2" in text
    assert not re.search(r"\b(net|NET)_", text)
    assert text == to_c(packed, "Digits_2")
    for name in ("", "2x", "a-b", "_x", "x" * 65, "é"):
        with pytest.raises(ValueError, match="name must be a C identifier"):
            to_c(packed, name)
    for text, expected in (("one", "one"), ("My net.v2", "my_net_v2"), ("5", "net_5"), ("é", "net"), ("", "net")):
        assert as_identifier(text) == expected


def test_names_of_layers_cannot_leave_their_comments(packed):
    first = packed.program.ops[1]
    evil = "*/ int evil; /*"
    program = replace(
        packed.program,
        ops=tuple(
            replace(op, name=evil) if op is first else replace(op, source=evil) if first.name in op.sources else op
            for op in packed.program.ops
        ),
    )
    arrays = {name.replace(first.name, evil): values for name, values in packed.arrays.items()}
    assert "int evil" not in to_c(replace(packed, program=program, arrays=arrays))


def test_refused(packed):
    with pytest.raises(PackedError, match="does not say what shape its examples have"):
        to_c(pack_in_memory(bqn.models.mlp(5, 2).mode()))
    ops = (
        Input("input", "pixels", (2**17, 8, 16)),
        Flatten("flat", "input"),
        Linear("out", "flat", 2**24, 1, Lattice(0, 1, 1), False),
    )
    arrays = {"out.weight": np.zeros((1, 0, 2**21), np.uint8), "head.log_scale": np.zeros(1, np.float32)}
    large = replace(
        packed, program=replace(packed.program, ops=ops, output="out", classes=()), arrays=arrays, members=1
    )
    with pytest.raises(PackedError, match="out: its inputs can sum to more than 32 bits hold"):
        to_c(large)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_values_that_live_together_do_not_overlap(seed):
    layout = Layout(random_program(seed))
    spans = layout._spans
    taken = [(layout.offsets[name], layout.places[name].words, spans[name]) for name in spans]
    for product, offset in layout.windows.items():
        op = layout.program.by_name[product]
        taken.append((offset, int(np.prod(op.weight_shape[1:])), spans[product][:1] * 2))
    for position, (a, size_a, (from_a, to_a)) in enumerate(taken):
        assert a + size_a <= layout.words
        for b, size_b, (from_b, to_b) in taken[position + 1 :]:
            if from_a <= to_b and from_b <= to_a:
                assert a + size_a <= b or b + size_b <= a or not size_a or not size_b


def test_images_are_never_integers_as_a_whole():
    """The sums of a convolution exist for a few channels at a time, and places are used again."""
    net = bqn.models.cnn((1, 28, 28), 10)
    layout = Layout(pack_in_memory(net.mode(), input_shape=(1, 28, 28)))
    convs = [op for op in layout.program.ops if isinstance(op, Conv2d)]
    assert [layout.places[op.name].channels for op in convs] == [4, 4]
    needed = sum(place.words for place in layout.places.values())
    assert layout.words < 4 * 28 * 28 + 4 * 14 * 14 + 14 * 14 * 2 + 100 < needed


def test_the_table_of_sizes_is_that_of_the_record():
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs/deploy.md").read_text()
    for row in json.loads((root / "results/benchmarks/microcontroller.json").read_text())["rows"]:
        assert row["agrees"] is True
        sizes = " | ".join(f"{row[key] / 1000:.1f} kB" for key in ("packed_file", "flash", "ram"))
        assert f"| {row['network']} | {sizes} | {row['stack']} B | {row['instructions'] / 1e6:.1f} M |" in page
