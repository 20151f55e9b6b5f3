"""A small table of our own, and a comparison on it that takes a second."""

from pathlib import Path

import numpy as np

from bqn.comparison import Plan, make_plan

SETTINGS = {"": {"epochs": 2, "hidden": (4,), "device": "cpu"}}


def write_table(folder: Path, rows: int = 60, seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 2))
    y = 2 * x[:, 0] - x[:, 1] + 0.1 * generator.normal(size=rows)
    path = folder / "table.csv"
    lines = [f"{a:.6f},{b:.6f},{c:.6f}" for a, b, c in zip(*x.T, y, strict=True)]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")
    return path


def tiny_plan(folder: Path, methods: tuple[str, ...] = ("pbp", "npn"), splits: int = 2, **settings) -> Plan:
    path = folder / "table.csv"
    if not path.exists():
        write_table(folder)
    return make_plan(str(path), methods, splits, {**SETTINGS, **settings})
