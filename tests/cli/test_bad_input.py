"""Whatever is wrong outside: one clear line, a non-zero exit code, and nothing that was good is lost."""

import gzip
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bqn.training import load_run
from bqn.training.folder import RunFolder
from tests.cli.files import QUICK, images, write_images, write_table
from tests.data.files import write_idx_set


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# --- data -----------------------------------------------------------------------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip(path):
    stored = bytearray(path.read_bytes())
    stored[len(stored) // 2] ^= 255
    path.write_bytes(bytes(stored))


def claim_more(path):
    stored = bytearray(gzip.decompress(path.read_bytes()))
    stored[4:8] = b"\x7f\xff\xff\xff"
    path.write_bytes(gzip.compress(bytes(stored)))


@pytest.mark.parametrize("harm", [cut, flip, claim_more])
def test_damaged_files_of_a_named_set(bqn, tmp_path, harm):
    write_idx_set(tmp_path / "mnist")
    file = tmp_path / "mnist/train-images-idx3-ubyte.gz"
    harm(file)
    told = bqn("train", "--data", "mnist", "--data-dir", tmp_path, "--out", "run", *QUICK).fails()
    assert told.startswith(f"{file}: ")
    assert not Path("run").exists()


@pytest.mark.parametrize("harm", [cut, flip])
def test_damaged_arrays(bqn, tmp_path, harm):
    file = write_images(tmp_path / "mine.npz")
    harm(file)
    assert bqn("train", "--data", file, "--out", "run", *QUICK).fails().startswith(f"{file}: not a readable .npz file")
    assert not Path("run").exists()


def test_missing_data_name_the_files_and_places(bqn, tmp_path, monkeypatch):
    monkeypatch.setattr("bqn.data._fetch.download", _no_network)
    told = bqn("train", "--data", "mnist", "--data-dir", tmp_path, "--out", "run", *QUICK).fails()
    assert "train-images-idx3-ubyte.gz" in told
    assert str(tmp_path / "mnist") in told


def test_text_where_numbers_belong(bqn, tmp_path):
    table = write_table(tmp_path / "table.csv")
    lines = table.read_text().splitlines()
    lines[4] = lines[4].rpartition(",")[0] + ",unknown"
    table.write_text("\n".join(lines))
    told = bqn("train", "--data", table, "--target", "price", "--out", "run", *QUICK).fails()
    assert told == f"{table}: line 5, column 4 (age): expected a number, got 'unknown'"


def test_one_unreadable_picture(bqn, tmp_path):
    for name in "ab":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for position, pixels in enumerate(images(5)[0]):
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{position}.png")
    bad = tmp_path / "pictures/b/3.png"
    bad.write_bytes(bad.read_bytes()[:50])
    told = bqn("train", "--data", tmp_path / "pictures", "--out", "run", *QUICK).fails()
    assert told.startswith(f"{bad}: cannot be read as a picture")


# --- configs --------------------------------------------------------------------------------------------------------


def test_a_misspelt_key(bqn, home):
    Path("my.toml").write_text(f'data = "{home.images}"\nepoch = 3\n')
    told = bqn("train", "--config", "my.toml", "--out", "run").fails(code=2)
    assert told == "my.toml: 'epoch' is not a setting; the nearest is 'epochs'"
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [("epochs = ", "my.toml is not valid TOML"), ('epochs = "two"', "epochs must be an integer, got 'two'")],
)
def test_other_bad_configs(bqn, text, message):
    Path("my.toml").write_text(text)
    assert message in bqn("train", "--config", "my.toml", "--out", "run").fails(code=2)


def test_a_misspelt_key_in_the_config_of_a_run(bqn, run):
    config = json.loads((run / "config.json").read_text())
    config["sede"] = config.pop("seed")
    (run / "config.json").write_text(json.dumps(config))
    for command in ("evaluate", "resume"):
        assert bqn(command, run).fails() == f"{run / 'config.json'}: 'sede' is not a setting; the nearest is 'seed'"


# --- runs -----------------------------------------------------------------------------------------------------------

READERS = (
    ["evaluate", "RUN"],
    ["resume", "RUN"],
    ["compare", "RUN", "RUN"],
    ["report", "RUN"],
    ["predict", "RUN", "IMAGES"],
)


@pytest.mark.parametrize("command", READERS, ids=[command[0] for command in READERS])
@pytest.mark.parametrize(
    ("file", "harm", "message"),
    [
        ("config.json", Path.unlink, "holds no run: config.json is missing"),
        ("config.json", cut, "config.json"),
        ("preprocessing.json", Path.unlink, "preprocessing.json does not exist"),
        ("preprocessing.json", cut, "preprocessing.json"),
        ("checkpoint.safetensors", cut, "checkpoint.safetensors is damaged"),
        ("checkpoint.safetensors", flip, "checkpoint.safetensors is damaged"),
    ],
)
def test_a_run_half_written(bqn, run, home, command, file, harm, message):
    harm(run / file)
    before = contents(run)
    arguments = [{"RUN": run, "IMAGES": home.images}.get(each, each) for each in command]
    assert message in bqn(*arguments).fails()
    assert contents(run) == before


def test_training_goes_where_a_run_never_got_under_way(bqn, run, home):
    (run / "config.json").unlink()
    assert bqn("train", "--data", home.images, "--out", run, *QUICK).code == 0
    assert len(load_run(run).history.records) == 2


@pytest.mark.parametrize("command", READERS, ids=[command[0] for command in READERS])
def test_a_checkpoint_of_another_architecture(bqn, run, home, command):
    bqn("train", "--data", home.images, "--out", "wide", *QUICK, "--hidden", 9)
    shutil.copy("wide/checkpoint.safetensors", run)
    arguments = [{"RUN": run, "IMAGES": home.images}.get(each, each) for each in command]
    told = bqn(*arguments).fails()
    assert "is of another architecture than this network" in told
    assert "body.1." in told


def test_data_that_have_changed_since(bqn, run, home, tmp_path):
    shutil.copy(home.images, tmp_path / "images.npz")
    bqn("train", "--data", tmp_path / "images.npz", "--out", "run", *QUICK)
    x, y = images(90, seed=7)
    np.savez(tmp_path / "images.npz", x=x, y=np.array(list("abc"))[y])
    for command in ("evaluate", "resume"):
        assert "was trained on other data than" in bqn(command, "run").fails()
    assert "evaluate a copy of it with --data" in bqn("evaluate", "run", "--data", tmp_path / "images.npz").fails()
    shutil.copy(tmp_path / "images.npz", tmp_path / "copy.npz")
    assert bqn("evaluate", "run", "--data", tmp_path / "copy.npz").code == 0


# --- other classes, other shapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda folder: write_images(folder / "o.npz", "abx"),
            "has classes that RUN does not know: x; it knows a, b, c",
        ),
        (
            lambda folder: write_images(folder / "o.npz", size=8),
            "has images of 1 × 8 × 8, but RUN takes images of 1 × 6",
        ),
        (lambda folder: write_table(folder / "o.csv"), "is for regression, but RUN is a run for classification"),
        (lambda folder: write_table(folder / "o.csv", labels=True), "line 2, column 2"),
    ],
)
def test_data_that_the_run_does_not_know(bqn, home, tmp_path, make, message):
    told = bqn("evaluate", home.classifier, "--data", make(tmp_path)).fails()
    assert message in told.replace(str(home.classifier), "RUN")


@pytest.mark.parametrize("flags", [["--ood", "digits"], ["--ood", "iris"]])
def test_ood_data_of_another_shape(bqn, home, flags):
    assert "takes images of 1 × 6 × 6" in bqn("evaluate", home.classifier, *flags).fails()


@pytest.mark.parametrize("flags", [["--ood", "iris"], ["--corruptions"]])
def test_ood_and_corruptions_are_for_classification(bqn, home, flags):
    assert "are for classification" in bqn("evaluate", home.regression, *flags).fails(code=2)


def test_corruptions_are_for_images(bqn, tmp_path):
    table = write_table(tmp_path / "labels.csv", labels=True)
    bqn("train", "--data", table, "--target", "kind", "--out", "run", *QUICK)
    assert bqn("evaluate", "run", "--corruptions").fails(code=2) == (
        "--corruptions is for images, but run takes 3 features"
    )


def test_many_unknown_classes_are_counted(bqn, home, tmp_path):
    x, _ = images(60, classes=3)
    np.savez(tmp_path / "many.npz", x=x, y=np.arange(60) % 10)
    told = bqn("evaluate", home.classifier, "--data", tmp_path / "many.npz", "--part", "all").fails()
    assert "does not know: 0, 1, 2, 3, 4 and 5 more; it knows a, b, c" in told


# --- numbers that are not finite, full disks ------------------------------------------------------------------------


def test_a_loss_that_is_not_finite(bqn, home):
    told = bqn("train", "--data", home.images, "--out", "run", *QUICK, "--hidden", 99, "--lam", 1e38).fails()
    assert told.startswith("training stopped at epoch 1, step 1: the ")
    assert told.endswith("is saved in run")
    assert load_run("run").history.records == ()


def test_a_disk_that_fills_up(bqn, home, monkeypatch):
    """The second checkpoint of the training does not fit; the first is still there."""
    written, count = RunFolder.write_checkpoint, 0

    def write(self, moment):
        nonlocal count
        count += 1
        if count == 2:
            patch.setattr(os, "fsync", _no_space)
        written(self, moment)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_checkpoint", write)
        told = bqn("train", "--data", home.images, "--out", "run", *QUICK, "--epochs", 4).fails()
    assert told.startswith("cannot write run/checkpoint.safetensors: No space left on device")
    assert "unharmed" in told
    assert len(load_run("run").history.records) == 1
    resumed = bqn("resume", "run", "-q", "--json")  # there is space again
    assert json.loads(resumed.out)["epochs"] == 4


def test_a_disk_that_is_full_from_the_start(bqn, home, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _no_space)
        told = bqn("train", "--data", home.images, "--out", "run", *QUICK).fails()
    assert "No space left on device" in told
    assert not list(Path("run").glob("*.tmp"))


def test_a_disk_that_is_full_keeps_the_run_that_was_to_be_replaced(bqn, run, home, monkeypatch):
    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _no_space)
        assert bqn("train", "--data", home.images, "--out", run, "--force", *QUICK).code == 1
    assert contents(run) == before


def test_a_folder_that_cannot_be_made(bqn, home):
    Path("file").write_text("not a folder")
    told = bqn("train", "--data", home.images, "--out", "file/run", *QUICK).fails()
    assert told.startswith("cannot write file/run: Not a directory")


def _no_space(*arguments):
    raise OSError(28, os.strerror(28))


def _no_network(*arguments):
    raise OSError("no network")
