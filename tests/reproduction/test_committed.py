"""The records in this repository are what they say, and their recipes are those that stand in the code."""

from collections.abc import Iterator
from pathlib import Path

from bqn.reproduction import Cell, recipes, records

RESULTS = Path(__file__).resolve().parents[2] / "results"


def committed() -> Iterator[Cell]:
    for path in sorted(RESULTS.glob("*-*/*/seed-*.json")):
        architecture, _, data = path.parents[1].name.partition("-")
        recipe, _, variant = path.parent.name.partition("-")
        if recipe in recipes.RECIPES:
            yield Cell(architecture, data, recipe, variant, int(path.stem.removeprefix("seed-")))


def test_every_record_can_be_made_again() -> None:
    """A recipe that is edited needs new records. Ideas may be older than the recipe that they led to."""
    for cell in committed():
        document = records.read(cell, RESULTS)
        assert document is not None
        if cell.variant not in recipes.IDEAS:
            assert records.difference(document, cell.config("cpu")) is None, cell.name


def test_every_record_is_complete() -> None:
    for cell in committed():
        document = records.read(cell, RESULTS)
        assert document is not None
        if "failed" in document:
            continue
        assert ("test" in document) == cell.judged_on_test, cell.name
        for part in {"test", "validation"} & document.keys():
            assert set(document[part]) == set(records.MODES), cell.name
        assert document["code"], cell.name
        assert document["hardware"], cell.name
        assert len(document["curve"]["epoch"]) <= 25


def test_an_idea_differs_from_what_it_is_compared_with_in_itself_alone() -> None:
    for cell in committed():
        if cell.variant not in recipes.IDEAS:
            continue
        idea = recipes.IDEAS[cell.variant]
        reference = records.read(Cell(cell.architecture, cell.data, cell.recipe, idea.against, cell.seed), RESULTS)
        document = records.read(cell, RESULTS)
        if reference is None or document is None or not idea.against:
            continue
        changed = {name for name in document["config"] if document["config"][name] != reference["config"].get(name)}
        allowed = {*idea.settings, *recipes.IDEAS[idea.against].settings, *records.NOT_COMPARED}
        assert changed <= allowed, cell.name
