"""Small networks, their evaluation, and pages about them, made in a moment: nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from typing import Any

import torch

from bqn.data import Dataset, Split
from bqn.evaluation import Details, evaluate
from bqn.report import ReportData, collect
from bqn.training import EpochRecord, History, Preprocessing, Run, TrainConfig, build_model

CLASSES = ("ant", "bee", "cat")
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a&b;\u202ebackwards\x00\ud800")


@dataclass(frozen=True)
class Material:
    """Everything that a page is made from."""

    run: Run
    dataset: Dataset
    result: dict[str, Any]
    details: Details
    ood: Dataset | None = None

    def page(self, title: str = "run-1") -> ReportData:
        return collect(self.run, self.dataset, self.result, self.details, title=title, ood=self.ood)


def records(count: int, regression: bool = False, validation: bool = True) -> tuple[EpochRecord, ...]:
    made = []
    for epoch in range(1, count + 1):
        nll = 2.0 / epoch
        error, rmse = (None, 3 * nll) if regression else (nll / 4, None)
        made.append(
            EpochRecord(
                epoch=epoch,
                elbo=-nll,
                log_likelihood=-nll,
                kl=100.0 + epoch,
                train_nll=nll,
                validation_nll=1.2 * nll if validation else None,
                validation_error=error if validation else None,
                validation_rmse=rmse if validation else None,
                learning_rate=0.03,
                lam=1e-4,
                seconds=1.5,
                eta=0.0,
            )
        )
    return tuple(made)


def images(count: int, classes: int, seed: int, shape: tuple[int, int, int] = (1, 6, 6)) -> Split:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=generator)
    x = torch.randint(0, 256, (count, *shape), generator=generator)
    return Split(x.to(torch.uint8), y)


def table(count: int, outputs: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return Split(x, 100 + 10 * torch.randn(count, outputs, generator=generator))


def classification(
    classes: Sequence[str] = CLASSES,
    *,
    outside: bool = True,
    corruptions: bool = True,
    epochs: int = 3,
    shape: tuple[int, int, int] = (1, 6, 6),
    name: str = "tiny",
) -> Material:
    config = TrainConfig(data="digits", hidden=(8,), epochs=max(epochs, 1))
    train, test = images(40, len(classes), 0, shape), images(50, len(classes), 1, shape)
    dataset = Dataset(name, "classification", train, test, tuple(classes))
    preprocessing = Preprocessing.of(train, classes=classes)
    net = build_model(config, preprocessing.input_shape, preprocessing.outputs).eval()
    made = records(epochs)
    run = Run(net, config, History(made, epochs or None), preprocessing)
    elsewhere = images(30, len(classes), 2, shape)
    ood = Dataset("elsewhere", "classification", elsewhere, elsewhere, tuple(classes)) if outside else None
    result, details = evaluate(
        net,
        test,
        samples=2,
        recalibrate_on=train,
        ood=None if ood is None else ood.test,
        corruptions=corruptions,
        prepare=preprocessing.input,
        details=True,
    )
    return Material(run, dataset, result, details, ood)


def features() -> Material:
    """A classifier of tables, without batch norm and without validation."""
    config = TrainConfig(data="wine", hidden=(8,), batch_norm=False, epochs=2, validation_fraction=0.0)
    splits = [Split(table(30, 1, seed).x, images(30, 3, seed).y) for seed in range(2)]
    dataset = Dataset("plants", "classification", splits[0], splits[1], CLASSES)
    preprocessing = Preprocessing.of(splits[0], classes=CLASSES)
    net = build_model(config, preprocessing.input_shape, preprocessing.outputs).eval()
    run = Run(net, config, History(records(2, validation=False)), preprocessing)
    result, details = evaluate(net, splits[1], samples=2, prepare=preprocessing.input, details=True)
    return Material(run, dataset, result, details)


def regression(outputs: int = 1) -> Material:
    config = TrainConfig(data="diabetes", model="regressor", hidden=(6,), epochs=3)
    train, test = table(40, outputs, 0), table(30, outputs, 1)
    dataset = Dataset("tiny", "regression", train, test, ())
    preprocessing = Preprocessing.of(train)
    net = build_model(config, preprocessing.input_shape, preprocessing.outputs).eval()
    run = Run(net, config, History(records(3, regression=True), 3), preprocessing)
    result, details = evaluate(
        net, test, samples=2, prepare=preprocessing.input, target_scale=preprocessing.target_scale, details=True
    )
    return Material(run, dataset, result, details)


@cache
def full() -> Material:
    """A classifier with everything that a page can show."""
    return classification()


class Reader(HTMLParser):
    """Reads a page: its elements, their attributes, its text; an element left open or closed twice is an error."""

    void = frozenset({"meta", "link", "img", "input", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.void:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> without a beginning"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def names(self) -> set[str]:
        return {name for name, _ in self.elements}

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == name]
