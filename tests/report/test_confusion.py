from __future__ import annotations

import pytest

from bqn.report.confusion import NUMBERED, confusion
from tests.report.pages import Reader


def texts(page: str) -> list[str]:
    return Reader(page).text


def test_counts_stand_in_the_cells() -> None:
    page = Reader(confusion([[5, 2, 0], [0, 7, 0], [1, 0, 9]], ["ant", "bee", "cat"]))
    counts = [text for text in page.text if text.isdigit()]
    assert sorted(counts) == ["1", "2", "5", "7", "9"]
    assert "ant taken for bee: 2" in page.text
    cells = [attributes["class"] for attributes in page.all("rect")]
    assert cells.count("cell right") == 3
    assert cells.count("cell wrong") == 2
    assert cells.count("cell none") == 4
    assert page.all("svg")[0]["aria-label"] == "Confusion matrix of 3 classes: 21 of 24 on the diagonal"


def test_the_most_frequent_confusions_come_first() -> None:
    page = Reader(confusion([[5, 2, 0], [0, 7, 3], [1, 0, 9]], ["ant", "bee", "cat"]))
    listed = " ".join(page.text[page.text.index(" taken for ") - 1 :])
    pairs = (("bee", "cat"), ("ant", "bee"), ("cat", "ant"))
    order = [listed.index(f"{true}  taken for  {said}") for true, said in pairs]
    assert order == sorted(order)


def test_a_perfect_network_has_no_mistakes() -> None:
    assert "No mistakes." in texts(confusion([[3, 0], [0, 4]], ["a", "b"]))


def test_a_class_without_examples_is_no_problem() -> None:
    page = Reader(confusion([[0, 0], [1, 4]], ["a", "b"]))
    assert "b taken for a: 1" in page.text


@pytest.mark.parametrize("classes", [NUMBERED, NUMBERED + 1, 300])
def test_many_classes_stay_small(classes: int) -> None:
    counts = [[10 if row == column else (row + column) % 2 for column in range(classes)] for row in range(classes)]
    page = confusion(counts, [f"class number {index}" for index in range(classes)])
    assert len(page) < 150_000
    images = Reader(page).all("image")
    assert len(images) == (classes > NUMBERED)
    assert all((attributes["href"] or "").startswith("data:image/png") for attributes in images)
