"""Runs on disk: started, stopped anywhere, continued bit by bit, read back; half-written and foreign folders."""

import json
import os

import pytest
import torch

from bqn import Moments, models
from bqn.data import Dataset
from bqn.training import CheckpointError, ConfigError, Preprocessing, fit, load_run, loop, resume, run, train
from tests.training import tiny


class StoppedError(Exception):
    """Raised in the middle of a run in place of a kill."""


def stop_at(step):
    def tick(done, total):
        if done == step:
            raise StoppedError

    return tick


def same_weights(a, b):
    return all(torch.equal(tensor, b.state_dict()[name]) for name, tensor in a.state_dict().items())


def timeless(history):
    return [{**record.to_dict(), "seconds": 0, "eta": 0} for record in history.records]


@pytest.fixture(autouse=True)
def _tiny_data(monkeypatch):
    """The data that a config names, without files."""
    made = {"tiny": tiny.dataset, "table": tiny.regression_dataset}
    monkeypatch.setattr(run, "load", lambda name, *arguments, **options: made[name]())


CONFIGS = [
    tiny.config(data="tiny", epochs=3, shift=1, flip=True, checkpoint_every=2),
    tiny.config(data="tiny", epochs=3, checkpoint_every=5, validation_fraction=0.0),
    tiny.config(data="tiny", epochs=3, drawn_epochs=2, mode_share=0.5, shift=1, checkpoint_every=2),
    tiny.config(data="tiny", epochs=3, drawn_epochs=2, drawn_alone=2, shift=1, checkpoint_every=2),
    tiny.regression_config(data="table", epochs=3, checkpoint_every=1),
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("stops", [(1,), (2,), (5,), (3, 6, 7), (8,)])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, config, stops):
    whole = train(config, out=tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(config, out=tmp_path / "run", tick=stop_at(stops[0]))
    for stop in stops[1:]:
        with pytest.raises(StoppedError):
            resume(tmp_path / "run", tick=stop_at(stop))
    parts = resume(tmp_path / "run")
    assert same_weights(parts.net, whole.net)
    assert timeless(parts.history) == timeless(whole.history)
    # not only the best weights: everything that would continue the run
    a, b = (run.RunFolder(tmp_path / name).read_checkpoint().tensors for name in ("whole", "run"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_folder_layout(tmp_path):
    done = train(CONFIGS[0], out=tmp_path / "run")
    names = ["best.safetensors", "checkpoint.safetensors", "config.json", "history.jsonl", "preprocessing.json"]
    assert sorted(os.listdir(tmp_path / "run")) == names
    assert json.loads((tmp_path / "run/config.json").read_text())["epochs"] == 3
    assert len((tmp_path / "run/history.jsonl").read_text().splitlines()) == 3
    fresh = models.mlp(36, 3, hidden=(8,)).load(tmp_path / "run/best.safetensors")
    assert same_weights(fresh, done.net)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("checkpoint", [True, False])
def test_load_run(tmp_path, config, checkpoint):
    done = train(config, out=tmp_path / "run")
    if not checkpoint:
        (tmp_path / "run/checkpoint.safetensors").unlink()
    read = load_run(tmp_path / "run")
    assert read.config == config
    assert read.history == done.history
    assert same_weights(read.net, done.net)
    x = tiny.images(5).x if config.data == "tiny" else tiny.table(5).x
    a, b = read.predict(x), done.predict(x)
    assert torch.equal(a.mean, b.mean) if isinstance(a, Moments) else torch.equal(a, b)


def test_run_predicts_in_units_of_the_data():
    done = train(tiny.regression_config(data="table", epochs=40, batch_size=6, hidden=(30,), learning_rate=3e-2))
    test = tiny.table(50, seed=5)
    for mode in ("analytic", "mc", "map"):
        prediction = done.predict(test.x, mode, generator=torch.Generator().manual_seed(0))
        error, spread = (prediction.mean - test.y).square().mean().sqrt(), test.y.std()
        assert float(error) < 0.8 * float(spread)
        assert 0.1 * float(spread) < float(prediction.var.sqrt().mean()) < 1.2 * float(spread)


def test_an_unfinished_run_can_be_read(tmp_path):
    with pytest.raises(StoppedError):
        train(CONFIGS[0], out=tmp_path / "run", tick=stop_at(1))
    assert load_run(tmp_path / "run").history.records == ()
    with pytest.raises(StoppedError):
        resume(tmp_path / "run", tick=stop_at(5))
    assert len(load_run(tmp_path / "run").history.records) == 1


def test_a_finished_run_is_returned_as_it_is(tmp_path):
    done = train(CONFIGS[0], out=tmp_path / "run")
    before = (tmp_path / "run/checkpoint.safetensors").read_bytes()
    again = resume(tmp_path / "run", report=pytest.fail)
    assert again.history == done.history
    assert same_weights(again.net, done.net)
    assert (tmp_path / "run/checkpoint.safetensors").read_bytes() == before


def test_patience_survives_a_stop(tmp_path, monkeypatch):
    scores = iter([0.3, 0.5, 0.4])
    monkeypatch.setattr(loop, "validate_once", lambda *arguments: loop.Scores(next(scores), 0.5, None))
    config = tiny.config(data="tiny", epochs=6, patience=2)
    with pytest.raises(StoppedError):
        train(config, out=tmp_path / "run", tick=stop_at(7))
    done = resume(tmp_path / "run")
    assert done.history.stopped_early
    assert len(done.history.records) == 3
    assert load_run(tmp_path / "run").history == done.history


def test_results_are_brought_up_to_date_after_a_kill_between_files(tmp_path):
    done = train(CONFIGS[0], out=tmp_path / "run")
    (tmp_path / "run/best.safetensors").write_bytes(b"stale")
    (tmp_path / "run/history.jsonl").unlink()
    (tmp_path / "run/checkpoint.safetensors.1-ab.tmp").touch()
    resume(tmp_path / "run")
    assert same_weights(models.mlp(36, 3, hidden=(8,)).load(tmp_path / "run/best.safetensors"), done.net)
    assert len((tmp_path / "run/history.jsonl").read_text().splitlines()) == 3
    assert not list((tmp_path / "run").glob("*.tmp"))


def test_a_run_is_never_overwritten(tmp_path):
    train(CONFIGS[0], out=tmp_path / "run")
    before = (tmp_path / "run/checkpoint.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="already holds a run; resume it"):
        train(CONFIGS[0], out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="already holds a run; resume it"):
        fit(models.mlp(36, 3), tiny.images(), None, CONFIGS[0], out=tmp_path / "run")
    assert (tmp_path / "run/checkpoint.safetensors").read_bytes() == before


def test_a_start_that_never_got_under_way_can_be_repeated(tmp_path):
    train(CONFIGS[0], out=tmp_path / "run")
    (tmp_path / "run/config.json").unlink()
    for read in (load_run, resume):
        with pytest.raises(CheckpointError, match=r"holds no run: config.json is missing"):
            read(tmp_path / "run")
    train(CONFIGS[0], out=tmp_path / "run")
    assert len(load_run(tmp_path / "run").history.records) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", '{"epoch": 3}', r"config.json: 'epoch' is not a setting; the nearest is 'epochs'"),
        ("config.json", "{", r"config.json is not valid JSON"),
        ("preprocessing.json", "{}", r"preprocessing.json is not a bqn-preprocessing-1"),
        ("preprocessing.json", None, r"preprocessing.json does not exist"),
        ("checkpoint.safetensors", "cut", r"checkpoint.safetensors is damaged"),
    ],
)
@pytest.mark.parametrize("read", [load_run, resume])
def test_damaged_folders(tmp_path, name, content, message, read):
    train(CONFIGS[0], out=tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    if content is not None:
        (tmp_path / "run" / name).write_text(content)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        read(tmp_path / "run")


def test_folders_without_any_weights(tmp_path):
    train(CONFIGS[0], out=tmp_path / "run")
    (tmp_path / "run/checkpoint.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint.safetensors does not exist"):
        resume(tmp_path / "run")
    (tmp_path / "run/best.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint and no usable weights"):
        load_run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="is not a folder"):
        load_run(tmp_path / "none")


@pytest.mark.parametrize("read", [load_run, resume])
def test_checkpoint_of_another_architecture(tmp_path, read):
    train(CONFIGS[0], out=tmp_path / "run")
    train(tiny.config(data="tiny", hidden=(9,), epochs=1), out=tmp_path / "other")
    os.replace(tmp_path / "other/checkpoint.safetensors", tmp_path / "run/checkpoint.safetensors")
    with pytest.raises(CheckpointError, match=r"another architecture than this network|other data"):
        read(tmp_path / "run")


def test_other_data(tmp_path, monkeypatch):
    with pytest.raises(StoppedError):
        train(CONFIGS[0], out=tmp_path / "run", tick=stop_at(5))
    monkeypatch.setattr(run, "load", lambda *arguments, **options: tiny.dataset(seed=4))
    with pytest.raises(CheckpointError, match="trained on other data"):
        resume(tmp_path / "run")


def test_model_and_data_of_different_tasks():
    with pytest.raises(ConfigError, match="mlp is for classification, but tiny asks for regression: regressor"):
        train(tiny.config(data="table"))


def test_a_network_of_your_own(tmp_path):
    def network():
        return models.mlp(36, 3, hidden=(5, 5), levels=(-1, 0, 1))

    torch.manual_seed(1)
    data, config = tiny.images(), tiny.config(epochs=3)
    whole = network()
    start = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    fit(whole, data, data, config)
    net = network()
    net.load_state_dict(start)
    with pytest.raises(StoppedError):
        fit(net, data, data, config, out=tmp_path / "run", tick=stop_at(6))
    with pytest.raises(CheckpointError, match="another architecture"):
        resume(tmp_path / "run", train=data, validation=data)
    assert same_weights(resume(tmp_path / "run", net=network(), train=data, validation=data).net, whole)
    assert same_weights(load_run(tmp_path / "run", net=network()).net, whole)


def test_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    saved = []
    written = run.RunFolder.write_checkpoint

    def full(self, moment):
        if len(saved) == 3:
            monkeypatch.setattr(os, "fsync", _no_space)
        saved.append(self.checkpoint.read_bytes())
        written(self, moment)

    monkeypatch.setattr(run.RunFolder, "write_checkpoint", full)
    with monkeypatch.context(), pytest.raises(CheckpointError, match="No space left on device"):
        train(CONFIGS[0], out=tmp_path / "run")
    assert (tmp_path / "run/checkpoint.safetensors").read_bytes() == saved[3]
    monkeypatch.undo()
    assert load_run(tmp_path / "run").config == CONFIGS[0]


def test_classes_are_kept(tmp_path):
    train(CONFIGS[0], out=tmp_path / "run")
    assert load_run(tmp_path / "run").preprocessing.classes == ("a", "b", "c")
    data = Dataset("two", "classification", tiny.images(), tiny.images(), ("x", "y", "z", "never seen"))
    assert Preprocessing.of(data.train, classes=data.classes).outputs == 4


def _no_space(*arguments):
    raise OSError(28, os.strerror(28))


def test_a_run_that_was_compiled_goes_on_without_a_gpu(tmp_path):
    """Compilation concerns time alone: it is refused where a run begins, not where one is continued or read."""
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        train(CONFIGS[0], out=folder, tick=stop_at(5))
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "compile": True}))
    assert load_run(folder).config.compile
    done = resume(folder)
    assert done.config.compile
    assert len(done.history.records) == 3
