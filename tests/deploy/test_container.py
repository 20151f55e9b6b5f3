"""The packed file: what is written is read again, and nothing else is."""

import json
import os
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import bqn
from bqn.deploy import PackedError, PackedModel, _native, from_bytes, load, load_packed, pack_in_memory, to_bytes
from bqn.deploy.container import FORMAT, assemble
from bqn.deploy.program import Add, Conv2d, Encode, Flatten, Input, Lattice, Linear, Packed, Program, SumPool, Threshold
from tests.deploy import fuzz
from tests.deploy.networks import disturb, sampled

CASES = int(os.environ.get("BQN_FUZZ", "1000"))
seeds = st.integers(0, 2**32)


def small():
    net = disturb(bqn.models.mlp(20, 3, (9,)), (20,))
    return pack_in_memory(sampled(net, 2), input_shape=(20,), classes="abc", about={"model": "mlp", "seed": 3})


def opened(content):
    """Header, and where the arrays begin."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), 8 + size


def with_header(header, data):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def forge(change, arrays_too=None):
    """A file with a changed program, or changed arrays, and a checksum that fits."""
    packed = small()
    header, _ = opened(to_bytes(packed))
    program = json.loads(header["__metadata__"]["program"])
    arrays = dict(packed.arrays)
    change(program)
    if arrays_too is not None:
        arrays_too(arrays)
    text = json.dumps(program)
    return assemble(text, arrays)


def test_round_trip():
    packed = small()
    again = from_bytes(to_bytes(packed))
    assert again.program == packed.program
    assert (again.members, again.about) == (2, {"model": "mlp", "seed": 3})
    assert set(again.arrays) == set(packed.arrays)
    for name, array in packed.arrays.items():
        assert again.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(again.arrays[name], array)
    assert to_bytes(again) == to_bytes(packed)


def test_any_safetensors_reader_can_open_it(tmp_path):
    packed = small()
    (tmp_path / "a.bqn").write_bytes(to_bytes(packed))
    with safe_open(tmp_path / "a.bqn", framework="np") as file:
        assert file.metadata()["format"] == FORMAT
        assert set(file.keys()) == set(packed.arrays)


@settings(deadline=None, max_examples=CASES)
@given(seeds)
def test_damage_is_always_noticed(seed):
    with pytest.raises(PackedError):
        from_bytes(fuzz.damaged(random.Random(seed)))


@settings(deadline=None, max_examples=CASES)
@given(seeds)
def test_forged_files_are_refused_or_run(seed):
    rng = random.Random(seed)
    fuzz.outcome(fuzz.forged(rng), rng)


def test_made_up_programs_run_or_are_refused():
    found = Counter(fuzz.case(seed).split(":")[1].split(" on ")[0].strip() for seed in range(400))
    assert found["ran compiled" if _native.available() else "ran"] > 90
    assert found["refused"] > 150


def test_every_single_flipped_bit_is_noticed():
    content = to_bytes(small())
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(PackedError):
            from_bytes(bytes(flipped))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, -1])
def test_truncated(length):
    with pytest.raises(PackedError):
        from_bytes(to_bytes(small())[:length])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello\n", "^not a packed network"),
        (to_bytes(small())[:60], "^damaged or cut off"),
        (to_bytes(small())[:-1], "^damaged or cut off"),
    ],
)
def test_messages_begin_with_what_is_wrong(content, message):
    with pytest.raises(PackedError, match=message):
        from_bytes(content)


def test_the_path_is_in_the_message(tmp_path):
    (tmp_path / "broken.bqn").write_bytes(b"nothing of the kind, but long enough")
    with pytest.raises(PackedError, match=r"broken\.bqn: not a packed network"):
        load(tmp_path / "broken.bqn")
    with pytest.raises(FileNotFoundError):
        load_packed(tmp_path / "missing.bqn")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([], "not a packed network: no header"),
        ({}, "the format must be"),
        ({"__metadata__": {"format": "pt"}}, "the format must be"),
        ({"__metadata__": {"format": FORMAT}}, "must hold the texts"),
        ({"__metadata__": {"format": FORMAT, "program": "{}", "sha256": 3}}, "must hold the texts"),
    ],
)
def test_headers_of_other_files(header, message):
    with pytest.raises(PackedError, match=message):
        from_bytes(with_header(header, b""))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}, "has the type 'F64'"),
        ({"dtype": ["U8"], "shape": [1], "data_offsets": [0, 1]}, "has the type"),
        ({"dtype": "U8", "shape": [1]}, "must have dtype, shape and data_offsets"),
        ({"dtype": "U8", "shape": [2**52], "data_offsets": [0, 2**52]}, "damaged or cut off"),
        ({"dtype": "U8", "shape": [3], "data_offsets": [0, 2]}, "does not fill"),
        ({"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}, "must not be negative"),
        ({"dtype": "U8", "shape": [8], "data_offsets": [2, 10]}, "one behind the other"),
        ({"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}, "1 bytes behind"),
        ({"dtype": "U8", "shape": [1.5], "data_offsets": [0, 1]}, "must be an integer"),
        ({"dtype": "U8", "shape": [0] * 9, "data_offsets": [0, 0]}, "at most eight dimensions"),
        ({"dtype": "U8", "shape": [0, 2**53, 2**53], "data_offsets": [0, 0]}, "which no array has"),
    ],
)
def test_arrays_that_do_not_fit_the_file(entry, message):
    metadata = {"format": FORMAT, "program": "{}", "sha256": ""}
    with pytest.raises(PackedError, match=message):
        from_bytes(with_header({"__metadata__": metadata, "x": entry}, bytes(10)))


@pytest.mark.parametrize("where", ["program", "name"])
def test_halves_of_characters(where):
    metadata = {"format": FORMAT, "program": "\ud800" if where == "program" else "{}", "sha256": ""}
    arrays = {"\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}} if where == "name" else {}
    with pytest.raises(PackedError, match="halves of characters"):
        from_bytes(with_header({"__metadata__": metadata, **arrays}, b""))


def test_doubled_keys_and_deep_nesting():
    for text in ('{"a":1,"a":2}', "[" * 100_000, '{"a":' * 100_000, '{"step":NaN}'):
        content = len(text).to_bytes(8, "little") + text.encode()
        with pytest.raises(PackedError):
            from_bytes(content)


def op(program, kind):
    return next(entry for entry in program["ops"] if entry["op"] == kind)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("head"), "must have the keys"),
        (lambda p: p.update(members=0), "members must be from 1"),
        (lambda p: p.update(members=True), "must be an integer"),
        (lambda p: p.update(step=float(0)), "step must be from"),
        (lambda p: p.update(step="1"), "step must be a number"),
        (lambda p: p.update(step=10**400), "step is too large"),
        (lambda p: p.update(head="sigmoid"), "the head is 'sigmoid'"),
        (lambda p: p.update(output="nowhere"), "which no operation makes"),
        (lambda p: p.update(output="input"), "20 outputs|is of size"),
        (lambda p: p.update(classes=["a", "b"]), "2 classes for 3 outputs"),
        (lambda p: p.update(about=[]), "about must hold"),
        (lambda p: p.update(about={"x": [1]}), "about must hold texts and numbers"),
        (lambda p: p.update(about={"x": 10**30}), "about must hold texts and numbers"),
        (lambda p: p.update(about={"x": "\x1b[2J"}), "about must hold printable texts"),
        (lambda p: p.update(about={"\ud800": 1}), "about must hold printable texts"),
        (lambda p: p.update(ops=[]), "from 1 to 4096 operations"),
        (lambda p: p["ops"].append(dict(p["ops"][0])), "two operations are called 'input'"),
        (lambda p: p["ops"].append({"op": "Input", "name": "again", "kind": "pixels"}), "a second Input"),
        (lambda p: p["ops"].reverse(), "the first of them an Input"),
        (lambda p: op(p, "Linear").update(op="Exec"), "unknown operation 'Exec'"),
        (lambda p: op(p, "Linear").update(extra=1), "a Linear must have"),
        (lambda p: op(p, "Linear").pop("bias"), "a Linear must have"),
        (lambda p: op(p, "Linear").update(bias=1), "must be true or false"),
        (lambda p: op(p, "Linear").update(source=3), "must be a text"),
        (lambda p: op(p, "Linear").update(source="3"), "which no operation before it makes"),
        (lambda p: op(p, "Linear").update(in_features=2**40), "inputs must be from 1 to"),
        (lambda p: op(p, "Linear").update(out_features=2**23), "has shape"),
        (lambda p: op(p, "Linear").update(weight=[-1, 2]), "must be \\[low, stride, levels\\]"),
        (lambda p: op(p, "Linear").update(weight=[-1, 2, 10**9]), "levels must be from 1"),
        (lambda p: op(p, "Linear").update(weight=[-(2**30), 2**31 - 1, 2]), "more than"),
        (lambda p: op(p, "Threshold").update(channels=8), "would read 9 channels"),
        (lambda p: op(p, "Threshold").update(cases=2), "2 cases and no selector"),
        (lambda p: op(p, "Threshold").update(selector="1", cases=2), "must be codes of 2 levels"),
        (lambda p: op(p, "Input").update(kind="sound"), "of kind 'sound'"),
        (lambda p: op(p, "Input").update(shape=[21]), "expected 20|would read"),
        (lambda p: op(p, "Input").update(rank=1), "rank of the input must be from 1 to 3, without a shape, got 1"),
        (
            lambda p: (op(p, "Input").pop("shape"), op(p, "Input").update(rank=4)),
            "rank of the input must be from 1 to 3",
        ),
        (lambda p: op(p, "Input").update(rank="1"), "must be an integer"),
        (lambda p: op(p, "Input").update(shape=[0]), "an example must have shape"),
        (lambda p: op(p, "Input").update(shape=[]), "an example must have shape"),
        (lambda p: op(p, "Input").update(shape=[20, 1, 1, 1]), "an example must have shape"),
    ],
)
def test_forged_programs(change, message):
    with pytest.raises(PackedError, match=message):
        from_bytes(forge(change))


def replaced(name, value):
    return lambda arrays: arrays.update({name: value(arrays[name])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("1.weight"), "1.weight is missing"),
        (lambda arrays: arrays.update(spare=np.zeros(1, np.uint8)), "nothing reads: spare"),
        (replaced("1.weight", lambda a: a.astype(np.int8)), "is int8, expected uint8"),
        (replaced("1.weight", lambda a: a[..., :-1]), "has shape"),
        (replaced("1.weight", lambda a: a | np.uint8(0xF0)), "bits behind its last weight"),
        (replaced("1.weight", lambda a: np.concatenate([a, a])), "1 or 2 members first"),
        (replaced("3.thresholds", lambda a: a.astype(np.float32)), "is float32, expected int8"),
        (replaced("3.thresholds", lambda a: a.astype(np.int64)), "is int64, expected int8"),
        (replaced("head.log_scale", lambda a: a * np.float32(np.nan)), "NaN or infinite"),
        (replaced("head.log_scale", lambda a: a + np.float32(1e30)), "must lie within"),
    ],
)
def test_forged_arrays(change, message):
    if message.startswith("bits behind"):
        # 20 x 9 weights are 180 bits: four of the last byte are spare.
        assert small().arrays["1.weight"].shape[-1] == 23
    with pytest.raises(PackedError, match=message):
        from_bytes(forge(lambda program: None, change))


def test_codes_beyond_the_levels_are_refused():
    """Three levels need two bits, which could say four."""
    packed = pack_in_memory(bqn.models.mlp(20, 3, (9,), levels=bqn.TERNARY).mode())
    for value in (0, 1, 2, 3):
        arrays = dict(packed.arrays)
        planes = np.zeros_like(arrays["1.weight"])
        planes[:, 0, 5], planes[:, 1, 5] = 16 * (value & 1), 16 * (value >> 1)
        arrays["1.weight"] = planes
        header, _ = opened(to_bytes(packed))
        text = header["__metadata__"]["program"]
        content = assemble(text, arrays)
        if value < 3:
            from_bytes(content)
        else:
            with pytest.raises(PackedError, match="a code beyond its 3 levels"):
                from_bytes(content)


def test_thresholds_that_descend_are_refused():
    packed = pack_in_memory(disturb(bqn.models.mlp(20, 3, (9,), activations=bqn.TERNARY), (20,)).mode())
    arrays = dict(packed.arrays)
    arrays["3.thresholds"] = arrays["3.thresholds"][:, :, ::-1].copy()
    header, _ = opened(to_bytes(packed))
    text = header["__metadata__"]["program"]
    with pytest.raises(PackedError, match="thresholds descend"):
        from_bytes(assemble(text, arrays))


def written(packed):
    return from_bytes(to_bytes(packed))


def by_hand(ops, members=1, **arrays):
    arrays = {name.replace("_", "."): array for name, array in arrays.items()}
    return Packed(Program(ops, ops[-1].name, 1.0, "softmax"), members, {**arrays, "head.log_scale": np.zeros(1, "f4")})


def test_absurd_work_is_refused_when_the_shape_is_known():
    """A kernel of 100 kB on padding alone: 10^13 products, and windows of terabytes."""
    weight, pad = np.zeros((1, 1, 900 * 900 // 8), np.uint8), (2000, 2000)
    conv = Conv2d("c", "x", 1, 1, (900, 900), (1, 1), pad, (1, 1), 1, Lattice(-1, 2, 2), False)
    last = SumPool("p", "c", (1, 1), (4096, 4096), (0, 0))
    with pytest.raises(PackedError, match="an example would take"):
        written(by_hand((Input("x", "pixels", (1, 64, 64)), conv, last), c_weight=weight))


def test_many_large_values_are_refused():
    ops = [Input("0", "pixels", (1, 4096, 4096))]
    ops += [SumPool(str(number), "0", (1, 1), (1, 1), (0, 0)) for number in range(1, 20)]
    ops += [SumPool("last", "0", (1, 1), (4096, 4096), (0, 0))]
    with pytest.raises(PackedError, match="an example would take"):
        written(by_hand(tuple(ops)))


def test_members_that_share_too_much_are_refused():
    weight = np.zeros((1, 1, 2**20 // 8), np.uint8)
    ops = (Input("x", "pixels", (1024,)), Linear("l", "x", 1024, 1024, Lattice(-1, 2, 2), False))
    written(by_hand(ops, 2000, l_weight=weight))
    with pytest.raises(PackedError, match="4000 members would read"):
        written(by_hand(ops, 4000, l_weight=weight))


def test_weights_that_take_no_bytes_are_few():
    one = Lattice(1, 1, 1)
    for kind in ("pixels", "features"):
        for inputs, fits in ((4096, True), (4097, False)):
            ops = (Input("x", kind, (inputs,)), Linear("l", "x", inputs, 4096, one, False))
            packed = by_hand(ops, l_weight=np.zeros((1, 0, inputs * 4096 // 8), np.uint8))
            if fits:
                written(packed)
            else:
                with pytest.raises(PackedError, match="16781312 weights of a single level would be read, at most 1677"):
                    written(packed)


def test_a_long_chain_of_flattens_is_no_deep_recursion():
    flattens = [Flatten(f"f{k}", f"f{k - 1}" if k else "x") for k in range(4000)]
    ops = (Input("x", "features", (2,)), *flattens, Linear("l", "f3999", 2, 2, Lattice(-1, 2, 2), False))
    model = PackedModel(written(by_hand(ops, l_weight=np.full((1, 1, 1), 0b0110, np.uint8))))
    np.testing.assert_array_equal(model.logits([[3.0, 5.0]])[0] * 2.0**-24, [[2.0, -2.0]])
    with pytest.raises(PackedError, match="the output is the input"):
        written(by_hand(ops[:-1]))


def test_levels_too_far_apart_for_32_bits_are_refused():
    far = 2**30 - 1
    ops = (
        Input("x", "pixels", (1,)),
        Threshold("t", "x", 1, Lattice(-1, 2, 2)),
        Add("a", ("t", "t"), (far, far)),
        Encode("e", "a", Lattice(-2 * far, 2 * far, 3)),
    )
    with pytest.raises(PackedError, match="e: distance of its levels must be from 0"):
        written(by_hand(ops, t_thresholds=np.zeros((1, 1, 1, 1), np.int8), t_flips=np.zeros((1, 1), np.uint8)))


def test_mlp_file_is_small():
    """The paper's network for MNIST: 535,040 bits."""
    net = disturb(bqn.models.mlp(784, 10), (1, 28, 28))
    content = to_bytes(pack_in_memory(net.mode(), input_shape=(1, 28, 28), classes=list("0123456789")))
    assert 535_040 / 8 < len(content) < 72_000


def test_vgg_file_is_its_bits_and_thresholds():
    packed = pack_in_memory(bqn.models.vgg((3, 32, 32), 10).mode(), input_shape=(3, 32, 32))
    bits = sum(np.prod(op.weight_shape) * op.weight.planes for op in packed.program.products())
    thresholds = sum(array.nbytes for name, array in packed.arrays.items() if name.endswith(("thresholds", "flips")))
    assert len(to_bytes(packed)) < 1.03 * bits / 8 + thresholds


def test_members_share_what_is_equal():
    net = disturb(bqn.models.mlp(64, 3, (64,)), (64,), trained=False)
    one, two, same = (
        to_bytes(pack_in_memory(networks)) for networks in (sampled(net, 1), sampled(net, 2), [net.mode()] * 5)
    )
    bits = 64 * 64 + 64 * 3
    # Without a shift of their own, sampled networks differ in their weights and the last bias alone.
    assert len(two) - len(one) < bits / 8 + 50
    assert len(same) - len(one) < 20


def test_a_scale_of_other_features_than_the_network_reads_is_refused():
    packed = pack_in_memory(bqn.models.regressor(6).mode(), input_scale=(np.zeros(6), np.ones(6)))
    program = replace(packed.program, ops=(replace(packed.program.input, shape=None), *packed.program.ops[1:]))
    scale = {f"input.{name}": np.ones((1, 5), np.float32) for name in ("mean", "std")}
    written(Packed(program, 1, packed.arrays))
    with pytest.raises(PackedError, match="expected 6 features"):
        written(Packed(program, 1, {**packed.arrays, **scale}))
