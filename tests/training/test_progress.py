"""What a run shows: a table and a bar on a terminal, JSON lines elsewhere, events for TensorBoard."""

import io
import json
import re
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bqn.training import EpochRecord
from bqn.training.progress import both, header, progress, row, tensorboard

CLASSIFIER = EpochRecord(3, -1.25, -1.0, 4567.0, 1.0, 0.0812, 0.0231, None, 0.03, 1e-4, 12.5, 60.0)
REGRESSION = EpochRecord(3, -1.25, -1.0, 4567.0, 1.0, 2.5, None, 3.25, 0.03, 1e-4, 12.5, 60.0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_lines():
    stream = io.StringIO()
    with progress(5, stream=stream) as shown:
        shown.tick(1, 10)
        shown.report(CLASSIFIER)
        assert [json.loads(line) for line in stream.getvalue().splitlines()] == [CLASSIFIER.to_dict()]
        shown.report(REGRESSION)
    assert len(stream.getvalue().splitlines()) == 2


def test_standard_output_by_default(capsys):
    with progress(5) as shown:
        shown.report(CLASSIFIER)
    assert json.loads(capsys.readouterr().out)["epoch"] == 3


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet(stream):
    with progress(5, quiet=True, stream=stream) as shown:
        shown.tick(1, 10)
        shown.report(CLASSIFIER)
    assert stream.getvalue() == ""


def test_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    with progress(5, stream=stream) as shown:
        for done in range(1, 31):
            shown.tick(done, 50)
        shown.report(CLASSIFIER)
        shown.report(CLASSIFIER)
    text = stream.getvalue()
    assert text.count("val. NLL") == 1
    assert text.count(row(CLASSIFIER)) == 2
    assert "epoch 4/5" in text
    assert "60%" in text
    assert re.search(r"\d:\d\d:\d\d gone, (-:--:--|\d:\d\d:\d\d) left", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text))


def test_rows_fit_their_heads_and_a_terminal():
    assert header(CLASSIFIER).split() == ["epoch", "ELBO", "log-lik.", "KL", "val.", "NLL", "error", "rate", "seconds"]
    assert row(CLASSIFIER).split() == ["3", "-1.2500", "-1.0000", "4567", "0.0812", "2.31%", "0.03", "12.5"]
    assert "RMSE" in header(REGRESSION)
    assert "error" not in header(REGRESSION)
    for record in (CLASSIFIER, REGRESSION):
        assert len(header(record)) == len(row(record)) < 80


def test_tensorboard(tmp_path):
    seen = []
    with tensorboard(tmp_path) as report:
        both(report, seen.append)(CLASSIFIER)
    assert seen == [CLASSIFIER]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == {
        "train/elbo", "train/log_likelihood", "train/kl", "train/nll", "train/learning_rate", "train/lam",
        "train/seconds", "validation/nll", "validation/error",
    }  # fmt: skip
    (point,) = events.Scalars("validation/nll")
    assert point.step == 3
    assert point.value == pytest.approx(0.0812)


def test_missing_extras_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with (
        pytest.raises(ImportError, match=r'rich is not installed: pip install "bqn\[cli\]"'),
        progress(5, stream=Terminal()),
    ):
        pass
    with (
        pytest.raises(ImportError, match=r'tensorboard is not installed: pip install "bqn\[tensorboard\]"'),
        tensorboard(tmp_path),
    ):
        pass
