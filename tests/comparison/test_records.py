"""Records: what is kept, and that nothing else is taken for one."""

import json
from pathlib import Path

import pytest

from bqn.comparison import ComparisonError, MethodRecord, RecordFolder
from tests.comparison.tiny import tiny_plan

MEASURED = {
    "examples": {"train": 54, "test": 6},
    "train_seconds": 1.5,
    "epochs": 2,
    "modes": {"analytic": {"rmse": 3.0, "epistemic": None}, "map": {"rmse": 4.0, "epistemic": None}},
}


def with_rmse(rmse: float) -> dict:
    return {
        **MEASURED,
        "modes": {"analytic": {"rmse": rmse, "epistemic": None}, "map": {"rmse": 4.0, "epistemic": 0.1}},
    }


def test_splits_are_put_in_order_and_read_back(tmp_path: Path) -> None:
    plan, folder = tiny_plan(tmp_path, splits=3), RecordFolder(tmp_path / "out")
    for task in reversed([task for task in plan.tasks if task.method == "pbp"]):
        folder.add(plan, task, with_rmse(float(task.replicate)))
    document = json.loads(folder.file("pbp").read_text())
    assert document["rmse"] == [0.0, 1.0, 2.0]
    assert document["splits"] == [0, 1, 2]
    assert document["modes"]["map"]["rmse"] == [4.0, 4.0, 4.0]
    record = folder.read("pbp")
    assert record is not None
    assert record.modes["analytic"]["rmse"] == [0.0, 1.0, 2.0]
    assert MethodRecord.from_json(record.to_json(), "again") == record
    assert list(folder.path.iterdir()) == [folder.file("pbp")]


def test_records_of_other_settings_or_data_are_refused(tmp_path: Path) -> None:
    plan, folder = tiny_plan(tmp_path), RecordFolder(tmp_path / "out")
    folder.add(plan, plan.tasks[0], MEASURED)
    assert list(folder.read_all(plan)) == ["pbp"]
    with pytest.raises(ComparisonError, match=r"pbp\.json was made with epochs 2, not 9"):
        folder.read_all(tiny_plan(tmp_path, pbp={"epochs": 9}))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(ComparisonError, match=r"is about .*table\.csv, not .*elsewhere"):
        folder.read_all(tiny_plan(elsewhere))


def test_another_device_or_number_of_threads_is_no_other_setting(tmp_path: Path) -> None:
    plan, folder = tiny_plan(tmp_path), RecordFolder(tmp_path / "out")
    folder.add(plan, plan.tasks[0], MEASURED)
    assert "pbp" in folder.read_all(tiny_plan(tmp_path, pbp={"threads": 2, "device": "auto"}))


def test_a_record_from_before_a_setting_was_there_has_its_default(tmp_path: Path) -> None:
    plan, folder = tiny_plan(tmp_path), RecordFolder(tmp_path / "out")
    folder.add(plan, plan.tasks[0], MEASURED)
    document = json.loads(folder.file("pbp").read_text())
    del document["config"]["flip"]
    folder.file("pbp").write_text(json.dumps(document))
    assert "pbp" in folder.read_all(plan)
    document["config"]["flap"] = True
    folder.file("pbp").write_text(json.dumps(document))
    with pytest.raises(ComparisonError, match="made with flap True, not None"):
        folder.read_all(plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "no record of a comparison"),
        ({"splits": [1, 0]}, "ascending"),
        ({"splits": [0]}, "must be 1 numbers"),
        ({"splits": "01"}, "must be counts"),
        ({"splits": [0, True]}, "must be counts"),
        ({"examples": {"train": 3}}, "train and test"),
        ({"rmse": [1.0]}, "rmse must be 2 numbers"),
        ({"rmse": [1.0, "x"]}, "rmse must be 2 numbers"),
        ({"rmse": 3}, "rmse must be 2 numbers"),
        ({"modes": {"map": [1]}}, "must be objects"),
        ({"config": []}, "must be objects"),
        ({"method": 3}, "must be names"),
        ({"train_seconds": None}, "train_seconds must be"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    plan, folder = tiny_plan(tmp_path), RecordFolder(tmp_path / "out")
    for task in plan.tasks[::2]:
        folder.add(plan, task, MEASURED)
    document = json.loads(folder.file("pbp").read_text())
    folder.file("pbp").write_text(json.dumps({**document, **change}))
    with pytest.raises(ComparisonError, match=message):
        folder.read("pbp")


def test_a_record_without_a_part_or_under_another_name_is_refused(tmp_path: Path) -> None:
    plan, folder = tiny_plan(tmp_path), RecordFolder(tmp_path / "out")
    folder.add(plan, plan.tasks[0], MEASURED)
    text = folder.file("pbp").read_text()
    folder.file("npn").write_text(text)
    with pytest.raises(ComparisonError, match=r"npn\.json is the record of pbp"):
        folder.read("npn")
    folder.file("pbp").write_text(text[:100])
    with pytest.raises(ComparisonError, match="not valid JSON"):
        folder.read("pbp")
    document = json.loads(text)
    del document["config"]
    folder.file("pbp").write_text(json.dumps(document))
    with pytest.raises(ComparisonError, match="config is missing"):
        folder.read("pbp")
