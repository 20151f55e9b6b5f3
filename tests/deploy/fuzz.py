"""Damaged, forged and made-up packed files. As a script: `python -m tests.deploy.fuzz COUNT [FIRST SEED]`.

Damage is done to the bytes of a file, as disks and networks do it: it must always be noticed. Forgery is done to the
program and the arrays, with a checksum that fits: the result must be refused, or be a network that runs. Random
programs (`made_up.py`) are forged too, or run as they are. What runs must give the same on numpy and on the compiled
kernels, whose instruction sets take turns. The script is meant for kernels with sanitizers:

    gcc -std=c99 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fPIC -shared -pthread \\
        src/bqn/deploy/kernels.c -o /tmp/kernels.so
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \\
        BQN_KERNELS_LIBRARY=/tmp/kernels.so python -m tests.deploy.fuzz 100000
"""

from __future__ import annotations

import copy
import json
import random
import resource
import sys
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save

import bqn
from bqn import nn
from bqn.deploy import PackedError, PackedModel, _native, from_bytes, pack_in_memory, to_bytes
from bqn.deploy.container import FORMAT, checksum
from tests.deploy.guarded import guarded_arena
from tests.deploy.made_up import made_up_program
from tests.deploy.networks import disturb, sampled

SHAPE = (2, 6, 7)
# A valid file can ask for one value of 2^24 numbers an example; a mutant that does so is refused for its time alone.
MOST_WORK = 2**22
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, 4096, 2**16, 2**31, 2**53, -(2**40), 10**30, 0.5, 1e308)
OTHERS = (None, True, "", "input", "0", "Linear", "x" * 300, [], [1, 2], {}, {"op": "Input"}, "\u202e", -0.0)


@cache
def valid_files() -> tuple[bytes, ...]:
    """One file of each kind: images with everything in them, features with a regression."""
    body = nn.Sequential(
        nn.Conv2d(2, 9, 3, padding=1, bias=False, method="clt"), nn.AvgPool2d(2, stride=1, padding=0, method="clt"),
        nn.BatchNorm2d(9), nn.Quantize(bqn.TERNARY), nn.Conv2d(9, 6, 2, groups=3, levels=bqn.QUATERNARY, method="clt"),
        nn.BatchNorm2d(6), nn.Sign(), nn.Shortcut(nn.Conv2d(6, 6, 1, method="clt"), nn.BatchNorm2d(6)), nn.Sign(),
        nn.MaxPool2d(2), nn.AvgPool2d((1, 2), method="clt"), nn.Flatten(), nn.Linear(12, 3, levels=bqn.TERNARY),
    )  # fmt: skip
    net = disturb(bqn.Network(body, bqn.SoftmaxHead(12)), SHAPE)
    images = pack_in_memory(sampled(net, 2), input_shape=SHAPE, classes="abc", about={"model": "fuzzed"})
    table = bqn.models.regressor(5, (7,), out_features=2).eval()
    features = pack_in_memory(sampled(table, 3), input_scale=_scale(5), target_scale=_scale(2), input_shape=(5,))
    return to_bytes(images), to_bytes(features)


def _scale(count: int) -> Any:
    import torch

    return torch.linspace(-1, 1, count), torch.linspace(0.5, 2, count)


def damaged(rng: random.Random) -> bytes:
    """A file with some bytes changed, lost, doubled or added; never the file itself."""
    original = rng.choice(valid_files())
    while True:
        content = bytearray(original)
        for _ in range(rng.choice((1, 1, 2, 5))):
            place = rng.randrange(len(content)) if rng.random() < 0.5 else rng.randrange(min(len(content), 3000))
            kind = rng.randrange(5)
            if kind <= 1:
                content[place] ^= 1 << rng.randrange(8)
            elif kind == 2:
                del content[place:]
            elif kind == 3:
                del content[place : place + rng.randrange(1, 20)]
            else:
                content[place:place] = rng.randbytes(rng.randrange(1, 20))
            if not content:
                break
        if content != original:
            return bytes(content)


def made_up(rng: random.Random) -> bytes:
    """A file with a random program."""
    return to_bytes(made_up_program(np.random.default_rng(rng.getrandbits(64))))


def forged(rng: random.Random, content: bytes | None = None) -> bytes:
    """A file whose program or arrays were changed by somebody who knows how to make the checksum fit."""
    text, given = _opened(rng.choice(valid_files()) if content is None else content)
    program, arrays = json.loads(text), dict(given)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.65:
            _change_json(rng, program)
        elif arrays:
            _change_array(rng, arrays)
    text = json.dumps(program)
    kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(kept, {"format": FORMAT, "program": text, "sha256": checksum(text, kept)})


def _opened(content: bytes) -> tuple[str, dict[str, np.ndarray]]:
    """The program and the arrays of a file."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header["__metadata__"]["program"], load_arrays(content)


def _change_json(rng: random.Random, program: Any) -> None:
    """Change, add, drop or swap something anywhere in the program."""
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            places.append((value, key))
            visit(value[key])

    visit(program)
    parent, key = rng.choice(places)
    old = parent[key]
    kind = rng.randrange(8)
    if kind <= 2:
        near = isinstance(old, int) and not isinstance(old, bool) and rng.random() < 0.6
        parent[key] = old + rng.choice((-2, -1, 1, 2)) if near else rng.choice(NUMBERS)
    elif kind == 3:
        parent[key] = copy.deepcopy(rng.choice(OTHERS))
    elif kind == 4:
        del parent[key]
    elif kind == 5 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(old))
    elif kind == 6 and isinstance(parent, list):
        rng.shuffle(parent)
    else:
        other, place = rng.choice(places)
        parent[key] = copy.deepcopy(other.get(place) if isinstance(other, dict) else next(iter(other[place:]), None))


def _change_array(rng: random.Random, arrays: dict[str, np.ndarray]) -> None:
    """Another type, another shape, other numbers, another name."""
    name = rng.choice(sorted(arrays))
    array, kind = arrays[name], rng.randrange(6)
    if kind == 0:
        types = (np.uint8, np.int8, np.int16, np.int32, np.int64, np.float32, np.float64, np.bool_)
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(rng.choice(types))
    elif kind == 1:
        arrays[name] = array.reshape(-1) if rng.random() < 0.5 else array[..., None]
    elif kind == 2:
        arrays[name] = np.concatenate([array, array])
    elif kind == 3 and array.size:
        flat = array.reshape(-1).copy()
        place = rng.randrange(flat.size)
        if flat.dtype.kind == "f":
            flat[place] = rng.choice((np.nan, np.inf, -np.inf, 1e38, -1e38, 0.0, -1.0))
        elif flat.dtype.kind == "b":
            flat[place] = not flat[place]
        else:
            flat[place] = rng.choice((np.iinfo(flat.dtype).min, np.iinfo(flat.dtype).max, 0, 1))
        arrays[name] = flat.reshape(array.shape)
    elif kind == 4:
        arrays[rng.choice(("0.weight", "x", "head.weight", f"{name}2"))] = arrays.pop(name)
    else:
        arrays[name] = array[..., :-1] if array.ndim > 1 else array[:0]


def outcome(content: bytes, rng: random.Random, kernels: str | None = None) -> str:
    """What becomes of a file: "refused", "ran", "ran compiled", or any other exception, which is a fault.

    What runs must give the same with the compiled kernels, where there are any.
    """
    try:
        packed = from_bytes(content)
    except PackedError:
        return "refused"
    model = PackedModel(packed, "numpy")
    shape = model.input_shape or SHAPE
    if int(np.prod(shape)) > MOST_WORK:
        return "too large to run"
    pixels = model.program.input.kind == "pixels"
    x = np.frombuffer(rng.randbytes(int(np.prod(shape)) * (count := rng.choice((1, 2, 3, 17)))), np.uint8)
    x = x.reshape(count, *shape) if pixels else x.reshape(count, *shape).astype(np.float32) / 256
    try:
        expected = model.logits(x)
    except ValueError as error:  # a shape that does not fit, or features that are too large once they are scaled
        return f"refused to run: {type(error).__name__}"
    compiled = PackedModel(packed, kernels)
    for by_numpy, got in zip(expected, compiled.logits(x), strict=True):
        np.testing.assert_array_equal(got, by_numpy)
    for by_numpy, got in zip(expected, compiled.logits(x[:0]), strict=True):
        assert got.shape == by_numpy[:0].shape
    result = compiled(x)
    parts = result if isinstance(result, tuple) else (result,)
    assert all(np.isfinite(part).all() for part in parts), "the answer is not finite"
    return "ran compiled" if any(isinstance(plan, _native.Plan) for plan in compiled._plans_for(shape)) else "ran"


KINDS = ("damaged", "forged", "made up", "made up and forged")


def case(seed: int) -> str:
    """One case: a file of the kind whose turn it is, on the instruction set whose turn it is."""
    rng, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    content = damaged(rng) if kind == "damaged" else forged(rng) if kind == "forged" else made_up(rng)
    if kind == "made up and forged":
        content = forged(rng, content)
    sets = _native.supported() or ("numpy",)
    kernels = sets[seed // len(KINDS) % len(sets)]
    result = outcome(content, rng, kernels)
    if kind == "damaged" and result != "refused":
        raise AssertionError("damage was not noticed")
    return f"{kind}: {result}{f' on {kernels}' if result == 'ran compiled' else ''}"


def main(count: int, first: int) -> None:
    found: Counter[str] = Counter()
    valid_files()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    usual = _native.Plan._arena
    for seed in range(first, first + count):
        # In turns: memory whose margins the sanitizer watches, and memory that ends at a forbidden page.
        _native.Plan._arena = guarded_arena if seed % 32 >= 16 else usual  # type: ignore[method-assign]
        _native.set_threads(1 + seed % 3)
        try:
            found[case(seed)] += 1
        except Exception:
            print(f"seed {seed}", flush=True)
            raise
        if found.total() in (count, *range(0, count, 10_000)):
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # in kB on Linux
            print(f"{found.total():,} files; memory grew by {grown / 1e3:.1f} MB at most")
            for what, times in sorted(found.items()):
                print(f"{times:9,}  {what}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
