"""Checkpoint files: exact, and every kind of damage is noticed."""

import pytest
import torch
from safetensors.torch import save_file

from bqn.training import CheckpointError
from bqn.training.checkpoint import Moment, read_checkpoint, write_checkpoint


def moment():
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "model/weight": torch.randn(3, 5, generator=generator),
        "model/count": torch.tensor(7),
        "model/half": torch.randn(4, generator=generator).bfloat16(),
        "model/none": torch.zeros(0, 3),
        "generator/order": generator.get_state(),
        "sums": torch.randn(3, dtype=torch.float64, generator=generator),
    }
    return Moment(tensors, {"epoch": 3, "text": "größer", "records": [1.5, None]})


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "checkpoint.safetensors"
    write_checkpoint(file, moment())
    return file


def test_round_trip(path):
    expected, read = moment(), read_checkpoint(path)
    assert read.facts == expected.facts
    assert set(read.tensors) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert read.tensors[name].dtype == tensor.dtype
        assert torch.equal(read.tensors[name], tensor)


def test_views_and_transposes_are_written_as_they_look(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    write_checkpoint(tmp_path / "file", Moment({"a": base.mT, "b": base[:, 1], "tied": base, "twin": base}, {}))
    read = read_checkpoint(tmp_path / "file").tensors
    assert torch.equal(read["a"], base.mT)
    assert torch.equal(read["tied"], base)
    assert torch.equal(read["twin"], base)
    assert torch.equal(read["b"], base[:, 1])


def test_every_flipped_byte_is_noticed(path):
    content = path.read_bytes()
    step = max(1, len(content) // 400)
    for position in range(0, len(content), step):
        changed = bytearray(content)
        changed[position] ^= 1 << (position % 8)
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"damaged|is not a|not valid JSON"):
            read_checkpoint(path)


def test_every_truncation_is_noticed(path):
    content = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="damaged or no checkpoint"):
            read_checkpoint(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path)


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        read_checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match="damaged or no checkpoint"):
        read_checkpoint(tmp_path)
    save_file({"weight": torch.zeros(2)}, tmp_path / "other", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="is not a bqn-checkpoint-1 file"):
        read_checkpoint(tmp_path / "other")
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.")
    with pytest.raises(CheckpointError, match="damaged or no checkpoint"):
        read_checkpoint(tmp_path / "pickle")
