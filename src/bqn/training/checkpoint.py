"""One file that holds a moment of training: tensors, facts about them as JSON, and a checksum over both.

Everything that belongs together is in this one safetensors file, the JSON in its metadata, so that replacing the file
switches all of it at once. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bqn.training.errors import CheckpointError
from bqn.training.files import parse_object, to_json, write_atomic

_FORMAT = "bqn-checkpoint-1"


class Moment(NamedTuple):
    """A moment of training: named tensors, and facts that are ready for JSON."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write_checkpoint(path: Path, moment: Moment) -> None:
    """Write `moment` to `path`; whatever happens, `path` holds the old checkpoint or the new one, whole."""
    # Copies, because two names may stand for one tensor (tied weights), which safetensors does not write.
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in moment.tensors.items()}
    facts = to_json(moment.facts)
    metadata = {"format": _FORMAT, "facts": facts, "sha256": _digest(tensors, facts)}
    write_atomic(path, save(tensors, metadata))


def read_checkpoint(path: Path) -> Moment:
    """What `write_checkpoint` wrote, on the CPU. A file that was cut, or changed by one bit, is an error."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT or set(metadata) != {"format", "facts", "sha256"}:
                raise CheckpointError(f"{path} is not a {_FORMAT} file")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or no checkpoint: {error}") from None
    if _digest(tensors, metadata["facts"]) != metadata["sha256"]:
        raise CheckpointError(f"{path} is damaged: its checksum does not match its contents")
    return Moment(tensors, parse_object(metadata["facts"], f"{path}: facts"))


def digest(moment: Moment, also: str = "") -> str:
    """A checksum over a moment and some text."""
    return _digest(moment.tensors, to_json(moment.facts) + also)


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The memory of a tensor, for a checksum."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
