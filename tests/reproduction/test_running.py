"""Runs are made once, side by side, and continue after a stop."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bqn.reproduction import Cell, RecordError, measuring, plan, recipes, records, run, running
from bqn.reproduction.running import charged, groups, shares
from bqn.training import ConfigError, DivergedError, EpochRecord, History, Run, TrainConfig, train

pytestmark = pytest.mark.usefixtures("tiny_recipes")


def cells(seeds: int = 2, recipe: str = "best") -> list[Cell]:
    return plan("table1", recipe, seeds, data=["digits"])


def folders(tmp_path: Path) -> dict[str, Any]:
    return {"out": tmp_path / "results", "work": tmp_path / "work", "device": "cpu"}


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    first = run(cells(1), **folders(tmp_path))
    before = cells(1)[0].path(tmp_path / "results").stat().st_mtime_ns
    told: list[Cell] = []
    again = run(cells(2), **folders(tmp_path), done=lambda cell, _: told.append(cell))
    assert told == cells(2)[1:]
    assert cells(1)[0].path(tmp_path / "results").stat().st_mtime_ns == before
    assert again[cells(1)[0]] == json.loads(json.dumps(first[cells(1)[0]]))


def test_a_stop_loses_nothing(tmp_path: Path) -> None:
    straight = run(cells(2), **folders(tmp_path / "straight"))
    for stop, kept in ((8, 0), (40, 0), (82, 1)):  # in an epoch, in a distillation, and between the two records
        calls = 0

        def tick(stop: int = stop) -> None:
            nonlocal calls
            calls += 1
            if calls == stop:
                raise KeyboardInterrupt

        place = folders(tmp_path / str(stop))
        with pytest.raises(KeyboardInterrupt):
            run(cells(2), **place, tick=tick)
        assert len(records.read_all(cells(2), place["out"])) == kept
        run(cells(2), **place)
        assert len(records.read_all(cells(2), place["out"])) == 2
        for cell, document in records.read_all(cells(2), place["out"]).items():
            assert document["test"] == straight[cell]["test"]
            assert document["curve"] == straight[cell]["curve"]


def test_a_run_that_goes_on_with_other_code_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = {"code": "1" * 40, "code_changed": True}, {"code": "2" * 40}

    def stop(_: Cell, record: EpochRecord) -> None:
        if record.epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(running, "code", lambda: first)
    with pytest.raises(KeyboardInterrupt):
        run(cells(1), **folders(tmp_path), report=stop)
    for module in (running, measuring):
        monkeypatch.setattr(module, "code", lambda: second)
    (document,) = run(cells(1), **folders(tmp_path)).values()
    assert (document["code"], document["code_changed"], document["ended_by"]) == (*first.values(), second)
    (other,) = run([Cell("mlp", "digits", "best", seed=7)], **folders(tmp_path)).values()
    assert other["code"] == second["code"]
    assert "ended_by" not in other
    assert "code_changed" not in other


def test_a_lost_record_is_made_again_from_the_weights(tmp_path: Path) -> None:
    (first,) = run(cells(1), **folders(tmp_path)).values()
    cells(1)[0].path(tmp_path / "results").unlink()
    epochs: list[int] = []
    (again,) = run(cells(1), **folders(tmp_path), report=lambda _, record: epochs.append(record.epoch)).values()
    assert again["test"] == first["test"]
    assert again["seconds"] == pytest.approx(first["seconds"])
    assert epochs == []
    assert not list((tmp_path / "work").rglob("checkpoint.safetensors"))


def test_each_run_is_what_it_would_be_alone(tmp_path: Path) -> None:
    made = run(cells(2), out=tmp_path, work=None, device="cpu")
    alone = train(cells(2)[1].config("cpu"))
    assert made[cells(2)[1]]["validation"]["analytic"]["nll"] == pytest.approx(
        min(record.validation_nll or 9 for record in alone.history.records), rel=1e-5
    )


def test_recipe_of_the_paper(tmp_path: Path) -> None:
    """Its MLP has no batch norm, so there is nothing to recalibrate."""
    (document,) = run(cells(1, "paper"), **folders(tmp_path)).values()
    assert document["config"]["bound"] == "jensen"
    for mode in ("mc", "map"):
        assert document["test"][f"{mode}_recalibrated"] == document["test"][mode]


def test_ideas_do_not_see_the_test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idea = recipes.Idea("fewer", {"batch_size": 500})
    monkeypatch.setattr(recipes, "IDEAS", {"fewer": idea})
    made = run([Cell("mlp", "digits", "best", "fewer")], **folders(tmp_path))
    (document,) = made.values()
    assert "test" not in document
    assert set(document["validation"]) == set(records.MODES)
    assert (tmp_path / "results/mlp-digits/best-fewer/seed-0.json").exists()


def test_another_recipe_is_an_error_unless_it_is_to_be_redone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(cells(1), **folders(tmp_path))
    edited = {**recipes.RECIPES, "best": {"mlp": {**recipes.RECIPES["best"]["mlp"], "lam": 0.5}}}
    monkeypatch.setattr(recipes, "RECIPES", edited)
    with pytest.raises(RecordError, match=r"was made with lam .* not 0.5; give --redo"):
        run(cells(1), **folders(tmp_path))
    (document,) = run(cells(1), **folders(tmp_path), redo=True).values()
    assert document["config"]["lam"] == 0.5


def test_a_failure_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = DivergedError(3, 1, "KL", "in layer 0")
    monkeypatch.setattr("bqn.reproduction.running.train_together", lambda configs, *_, **__: [error] * len(configs))
    (document,) = run(cells(1), **folders(tmp_path)).values()
    assert document["failed"] == str(error)
    assert "test" not in document
    assert records.read(cells(1)[0], tmp_path / "results") == document


def test_groups() -> None:
    wanted = [*plan("table1", seeds=12, models=["mlp"], data=["mnist"]), *plan("table1", seeds=7, models=["vgg"])]
    assert [len(group) for group in groups(wanted)] == [10, 2, 5, 2]
    assert [len(group) for group in groups(wanted, 4)] == [4, 4, 4, 4, 3]
    mixed = [Cell("mlp", "mnist"), Cell("cnn", "mnist"), Cell("mlp", "mnist", seed=1)]
    assert list(groups(mixed)) == [[mixed[0], mixed[2]], [mixed[1]]]


def test_what_differs_in_time_is_not_mixed() -> None:
    """Those who share a GPU are charged equal parts of the time, so each number of levels is measured by itself."""
    levels = plan("levels", "best", 3, data=["digits"])
    found = [[(cell.variant, cell.seed) for cell in group] for group in groups(levels)]
    assert found == [
        [(variant, seed) for seed in range(3)] for variant in ("levels-2", "levels-3", "levels-4", "levels-8")
    ]
    sweep = [Cell("mlp", "mnist", variant=variant) for variant in ("", "lam-0.1", "short", "jensen", "lam-0.2")]
    assert [[cell.variant for cell in group] for group in groups(sweep)] == [
        ["", "lam-0.1", "lam-0.2"],
        ["short", "jensen"],
    ]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_seconds_of_levels_are_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_gpu: bool) -> None:
    """On a GPU the time of a group is divided by its members, all of one D."""
    trained, shared = [], []

    def record(cell: Cell, run: object, dataset: object, seconds: float, together: int, *_: object) -> dict[str, Any]:
        shared.append((cell.variant, together))
        return {"seconds": 1.0}

    def train_together(configs: list[TrainConfig], *_: object, **__: object) -> list[DivergedError]:
        trained.append({len(config.levels or ()) for config in configs})
        return [DivergedError(1, 1, "KL", "") for _ in configs]

    monkeypatch.setattr("bqn.reproduction.running.train_together", train_together)
    monkeypatch.setattr("bqn.reproduction.running.describe", record)
    monkeypatch.setattr("bqn.reproduction.running.find_device", lambda _: torch.device("cuda" if on_gpu else "cpu"))
    run(plan("levels", "best", 2, data=["digits"]), out=tmp_path, work=None, device="cpu")
    assert all(len(counts) == 1 for counts in trained)
    assert {together for _, together in shared} == {2 if on_gpu else 1}


def test_runs_that_share_a_device_are_charged_equal_parts_of_all_its_time() -> None:
    """Their epochs begin together; the second ends 0.25 s later, the third has two epochs alone in the end."""
    first, second, third = trained(2, 1.0), trained(2, 1.25), trained(4, 1.5)
    assert charged([first, second, third], shared=True) == [1.5, 1.5, 3.0]
    assert charged([first, second, third], shared=False) == [2.0, 2.5, 6.0]
    assert charged([third, third, DivergedError(4, 1, "KL", "")], shared=True) == [2.0, 2.0, 2.0], "it took part"
    assert charged([trained(2, 1.0), trained(1, 1.5)], shared=True) == [2.5 * 2 / 3, 2.5 / 3], "the slower one stopped"


def test_a_stop_while_judging_does_not_change_the_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bqn.reproduction.running.find_device", lambda _: torch.device("cuda"))  # they count as sharing
    told = 0

    def stop(*_: object) -> None:
        nonlocal told
        told += 1
        if told == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(cells(3), **folders(tmp_path), done=stop)
    made = run(cells(3), **folders(tmp_path))
    assert {document["together"] for document in made.values()} == {3}
    assert len({document["seconds"] for document in made.values()}) == 1


def trained(count: int, seconds: float) -> Run:
    rows = [EpochRecord(1, 0.0, 0.0, 0.0, 0.0, None, None, None, 0.0, 0.0, seconds, 0.0)] * count
    return Run(None, None, History(tuple(rows), None, False), None)  # type: ignore[arg-type]


def test_a_run_that_was_trained_before_is_charged_for_nothing_more(tmp_path: Path) -> None:
    """Its record is missing, and it is judged in a group of others, which share the time without it."""
    places = [tmp_path / name for name in ("a", "b", "c", "d")]
    for place in places:
        place.mkdir()
    old, new = trained(3, 10.0), trained(3, 2.0)
    assert shares([old], [0], places[:1], on_gpu=True) == [(30.0, 1)]
    found = shares([old, new, new, old], [1, 2], places, on_gpu=True)
    assert found == [(30.0, 1), (3.0, 2), (3.0, 2), (30.0, 1)]  # of the last nothing is known but its own time
    assert shares([new, new], [0, 1], places[1:3], on_gpu=False) == [(6.0, 1), (6.0, 1)]
    assert shares([new], [0], None, on_gpu=True) == [(6.0, 1)]


def test_a_run_that_failed_and_goes_on_is_charged_anew(tmp_path: Path) -> None:
    failed = DivergedError(1, 1, "KL", "")
    assert shares([failed, trained(1, 2.0)], [0, 1], [tmp_path, tmp_path / "b"], on_gpu=True) == [(1.0, 2), (1.0, 2)]
    assert shares([trained(3, 2.0)], [0], [tmp_path], on_gpu=True) == [(6.0, 1)]
    assert shares([trained(3, 2.0)], [], [tmp_path], on_gpu=True) == [(6.0, 1)]


def test_a_folder_that_cannot_be_is_known_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        run(cells(1), out=tmp_path / "file", work=None, device="cpu", report=lambda *_: pytest.fail("it trained"))


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="together must be at least 1"):
        run(cells(1), **folders(tmp_path), together=0)
    assert run([], **folders(tmp_path)) == {}
