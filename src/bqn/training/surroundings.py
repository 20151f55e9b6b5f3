"""Where a run takes place: device, threads, and torch's own generators, which are given back untouched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from bqn.propagate import devices
from bqn.training.config import TrainConfig
from bqn.training.distributed import own_device
from bqn.training.errors import ConfigError


@contextmanager
def surroundings(config: TrainConfig) -> Iterator[torch.device]:
    """The device; the number of threads, the precision of products and torch's own generators, restored afterwards.

    On a GPU products of float32 numbers are made in TF32, as convolutions are by torch's default. On a CPU numbers
    below the normal range count as zero: probabilities of levels that are all but excluded are such numbers, and
    arithmetic with them takes several times as long.
    """
    device = find_device(config)
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    flushed = flushes_denormals()
    try:
        torch.set_flush_denormal(True)
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield device
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def flushes_denormals() -> bool:
    """Whether numbers below the normal range count as zero on this thread."""
    smallest = torch.tensor(torch.finfo(torch.float32).tiny)
    return float(0.5 * smallest) == 0


def find_device(config: TrainConfig) -> torch.device:
    """The device that `config` names."""
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:  # torch counts to 127
        raise ConfigError(f"device: {config.device} is not a device that torch knows") from None
    if device.type == "cuda":
        count, own = torch.cuda.device_count(), own_device()
        if own is not None:
            return _own_of_several(device, own, count)
        if (device.index or 0) >= count:
            raise ConfigError(f"device: {config.device} is not there, torch sees {count} CUDA devices")
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if config.compile:
        raise ConfigError(f"compile needs a CUDA device, got {name}")
    if config.mixed_precision and not takes_mixed_precision(device):
        raise ConfigError(f"mixed_precision needs a CUDA device or a CPU with AVX512-BF16 or AMX, got {name} without")
    return device


def takes_mixed_precision(device: torch.device) -> bool:
    """Whether training in bfloat16 is faster there."""
    return device.type == "cuda" or (device.type == "cpu" and devices.CPU_HAS_BFLOAT16)


def as_here(config: TrainConfig, device: str | None = None) -> TrainConfig:
    """The config of a run that is continued, maybe on another device than it was begun on.

    Without a GPU nothing is compiled: that concerns time alone, and a run must not need the machine that began it.
    """
    device = device or config.device
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return replace(config, device=device, compile=config.compile and on_gpu)


def _own_of_several(asked: torch.device, own: int, count: int) -> torch.device:
    """The GPU of one of several processes, each of which has its own."""
    if asked.index is not None:
        raise ConfigError(f"device: {asked} is one GPU for several processes; say cuda, and each takes its own")
    if own >= count:
        raise ConfigError(f"device: process {own} of this machine finds no GPU of its own, torch sees {count}")
    return torch.device("cuda", own)
