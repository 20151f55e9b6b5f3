"""Records: there and back, and nothing else accepted."""

import dataclasses

import pytest

from bqn.training import CheckpointError, EpochRecord, History
from bqn.training.records import best_epoch, parse_lines, parse_records


def record(epoch=1, nll=0.5):
    return EpochRecord(epoch, -1.0, -0.9, 100.0, 0.9, nll, None if nll is None else 0.1, None, 0.03, 1e-3, 2.0, 8.0)


def test_lines_round_trip():
    history = History((record(1, 0.25), record(2, 0.125)), best_epoch=2)
    assert parse_lines(history.to_lines(), "history") == history.records
    assert history.best == history.records[1]


def test_best_is_the_first_of_equals():
    assert best_epoch([record(1, 0.5), record(2, 0.25), record(3, 0.25)]) == 2
    assert best_epoch([record(1, None)]) is None
    assert best_epoch([]) is None


def test_best_by_error():
    scores = [(0.2, 0.3), (0.4, 0.1), (0.3, 0.1), (0.1, 0.2)]
    records = [dataclasses.replace(record(n, nll), validation_error=error) for n, (nll, error) in enumerate(scores, 1)]
    assert best_epoch(records) == 4
    assert best_epoch(records, "error") == 3  # of two equals the one with the lower NLL
    off = [dataclasses.replace(each, validation_error=None, validation_rmse=each.validation_error) for each in records]
    assert best_epoch(off, "error") == 3
    neither = [dataclasses.replace(each, validation_error=None) for each in records]
    assert best_epoch(neither, "error") == 4  # nothing but the NLL is left
    assert best_epoch([], "error") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": 2}, "count its epochs from 1"),
        ({"epoch": 0}, "epoch must be an integer of at least 1"),
        ({"epoch": 1.0}, "epoch must be an integer of at least 1"),
        ({"elbo": "high"}, "elbo must be a number"),
        ({"elbo": None}, "elbo must be a number"),
        ({"kl": True}, "kl must be a number"),
        ({"kl": float("inf")}, "kl must be a number"),
        ({"extra": 1}, "exactly the keys"),
    ],
)
def test_bad_record(change, message):
    with pytest.raises(CheckpointError, match=message):
        parse_records([{**record().to_dict(), **change}], "history")


def test_bad_histories():
    with pytest.raises(CheckpointError, match="must be a list"):
        parse_records({"a": 1}, "history")
    with pytest.raises(CheckpointError, match="in all epochs or in none"):
        parse_records([record(1).to_dict(), dataclasses.replace(record(2), validation_nll=None).to_dict()], "history")
    with pytest.raises(CheckpointError, match="history, line 2 is not valid JSON"):
        parse_lines(f"{History((record(),)).to_lines()}{{", "history")
