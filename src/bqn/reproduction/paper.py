"""The paper's own figures, to stand beside ours: `paper.json`, read once."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from bqn.training.files import parse_object

SETS = ("mnist", "fashion-mnist", "kmnist")
# The networks of tables 1 to 3, in the order of their rows.
NETWORKS = (*(("mlp", data) for data in SETS), *(("cnn", data) for data in SETS), ("vgg", "cifar10"))


class Figure(NamedTuple):
    """A printed figure; `std` over the paper's seeds, None where it gives none."""

    mean: float
    std: float | None


class Point(NamedTuple):
    """A point of a sweep; `low` and `high` bound the paper's shaded band."""

    lam: float
    value: float
    low: float
    high: float


@cache
def document() -> dict[str, Any]:
    """The whole file: NLL in 1e-3 nats, errors in percent."""
    text = resources.files("bqn.reproduction").joinpath("paper.json").read_text(encoding="utf-8")
    return parse_object(text, "paper.json")


def printed(table: str, architecture: str, data: str, method: str, figure: str) -> Figure | None:
    """What `table` ("table1" to "table3") says, NLL in 1e-3 nats and errors in percent; None where it is silent."""
    entry = document()[table].get(architecture, {}).get(data, {}).get(method)
    return None if entry is None else Figure(*entry[figure])


def boston() -> dict[str, Figure]:
    """Root mean squared errors of table 4 by method."""
    return {method: Figure(*entry) for method, entry in document()["table4"].items()}


def sweep(target: str, architecture: str, data: str, series: str, figure: str) -> list[Point]:
    """A curve of `target` ("figure-power" or "figure-gap"), λ ascending; empty where the paper has none."""
    points = document()[target].get(architecture, {}).get(data, {}).get(series, {}).get(figure, ())
    return [Point(*point) for point in points]


def swept(target: str) -> dict[tuple[str, str], list[float]]:
    """The values of λ of a figure, by architecture and data."""
    return {
        (architecture, data): [point[0] for point in next(iter(series.values()))["nll"]]
        for architecture, sets in document()[target].items()
        for data, series in sets.items()
    }


def gaussian(architecture: str, data: str, figure: str) -> float | None:
    """The paper's Gaussian BNN at its best λ, from the curves; each figure at its own λ, as its tables do."""
    points = sweep("figure-power", architecture, data, "gaussian-bnn", figure)
    return min((point.value for point in points), default=None)
