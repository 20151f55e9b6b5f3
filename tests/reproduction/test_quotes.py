"""Figures in the words of pages are those of the records."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bqn.reproduction import Cell, RecordError
from bqn.reproduction.page import pages
from bqn.reproduction.quotes import quoted

MLP = Cell("mlp", "fashion-mnist", "best")


@pytest.fixture
def out(put: Any, tmp_path: Path) -> Path:
    put(MLP, 0.1, 0.02)
    put(replace(MLP, seed=3), 0.3, 0.04)
    put(replace(MLP, variant="lam-1e-08"), 0.5, 0.1)
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("mlp-fashion-mnist/best test analytic 0", "100.0 / 2.00"),
        ("mlp-fashion-mnist/best validation mc_recalibrated 3", "330.0 / 4.40"),
        ("mlp-fashion-mnist/best test analytic mean", "200.0 ± 141.4 / 3.00 ± 1.41"),
        ("mlp-fashion-mnist/best test analytic brief", "200.0 / 3.00"),
        ("mlp-fashion-mnist/best test analytic nll", "100.0 to 300.0"),
        ("mlp-fashion-mnist/best test map error", "3.00 to 6.00"),
        ("mlp-fashion-mnist/best-lam-1e-08 test analytic mean", "500.0 / 10.00"),
        ("mlp-fashion-mnist/best test analytic 7", "not measured / not measured"),
        ("mlp-mnist/best test analytic nll", "not measured"),
        ("mlp-fashion-mnist/best test map_distilled nll", "not measured"),
    ],
)
def test_forms(out: Path, reference: str, expected: str) -> None:
    assert quoted(f"It has [[{reference}]], as [[mlp-3 kmnist l0.1 map]].", out) == (
        f"It has {expected}, as [[mlp-3 kmnist l0.1 map]]."
    )


@pytest.mark.parametrize("reference", ["training analytic 0", "test median 0", "test analytic first"])
def test_what_cannot_be_quoted(out: Path, reference: str) -> None:
    with pytest.raises(RecordError, match=f"best {reference}, which cannot be"):
        quoted(f"[[mlp-fashion-mnist/best {reference}]]", out)


def test_pages_quote(put: Any, tmp_path: Path) -> None:
    put(Cell("cnn", "fashion-mnist", "paper"), 0.1)
    put(Cell("vgg", "cifar10", "paper", "lam-1e-08"), 0.2)
    page = pages(tmp_path)["results.md"]
    assert "recalibrated too: MC-5 has 110.0 / 2.20, on MNIST not measured" in page
    assert "MC-5, recalibrated, 220.0 / 2.20 and not measured" in page
    assert "[[" not in page
