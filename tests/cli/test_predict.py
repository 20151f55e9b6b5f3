"""`bqn predict`: what comes out for every kind of file, in every format."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bqn.cli import _rows
from bqn.cli._inputs import read_inputs
from bqn.data import DataError, load
from bqn.training import load_run
from bqn.training.preprocessing import Preprocessing
from tests.cli.files import images


@pytest.fixture
def pictures(tmp_path):
    """Six pictures as files, and as an array."""
    x, _ = images(6, seed=9)
    for position, pixels in enumerate(x):
        Image.fromarray(pixels).save(tmp_path / f"{position}.png")
    return [tmp_path / f"{position}.png" for position in range(6)], x


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_pictures_as_csv(bqn, home, pictures):
    files, x = pictures
    done = bqn("predict", home.classifier, *files)
    assert (done.code, done.err) == (0, "")
    rows = rows_of(done.out)
    probs = load_run(home.classifier).predict(torch.from_numpy(x).unsqueeze(1))
    assert [row["file"] for row in rows] == [str(file) for file in files]
    for row, expected in zip(rows, probs, strict=True):
        given = [float(row[f"p_{name}"]) for name in "abc"]
        assert given == pytest.approx(expected.tolist(), abs=1e-6)
        assert row["prediction"] == "abc"[int(expected.argmax())]
        assert float(row["confidence"]) == pytest.approx(float(expected.max()), abs=1e-6)
        assert float(row["entropy"]) == pytest.approx(float(row["aleatoric"]) + float(row["epistemic"]))


def test_arrays_and_pictures_give_the_same(bqn, home, pictures, tmp_path):
    files, x = pictures
    np.savez(tmp_path / "x.npz", x=x)
    from_array = rows_of(bqn("predict", home.classifier, tmp_path / "x.npz").out)
    from_files = rows_of(bqn("predict", home.classifier, *files).out)
    assert [row["row"] for row in from_array] == ["1", "2", "3", "4", "5", "6"]
    assert [row["p_a"] for row in from_array] == [row["p_a"] for row in from_files]


def test_json(bqn, home, pictures):
    files, _ = pictures
    done = bqn("predict", home.classifier, *files, "--mode", "mc", "--samples", 3, "--format", "json")
    result = json.loads(done.out)
    assert (result["mode"], result["samples"]) == ("mc", 3)
    for row in result["predictions"]:
        assert sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["epistemic"] >= 0


def test_one_network_has_no_epistemic_part(bqn, home, pictures):
    files, _ = pictures
    assert {row["epistemic"] for row in rows_of(bqn("predict", home.classifier, *files, "--mode", "map").out)} == {""}


def test_regression(bqn, home, tmp_path):
    rows = rows_of(bqn("predict", home.regression, home.table).out)  # the file of training: its target is left out
    whole = rows_of(home.table.read_text())
    x = torch.tensor([[float(row[name]) for name in ("rooms", "area", "age")] for row in whole])
    expected = load_run(home.regression).predict(x)
    assert [float(row["mean"]) for row in rows] == pytest.approx(expected.mean[:, 0].tolist(), rel=1e-5)
    assert [float(row["std"]) for row in rows] == pytest.approx(expected.var[:, 0].sqrt().tolist(), rel=1e-4)
    for row in rows:
        parts = float(row["aleatoric"]) ** 2 + float(row["epistemic"]) ** 2
        assert float(row["std"]) ** 2 == pytest.approx(parts)
    np.savetxt(tmp_path / "bare.csv", x.numpy(), delimiter=",")  # without target and names
    bare = rows_of(bqn("predict", home.regression, tmp_path / "bare.csv").out)
    assert [float(row["mean"]) for row in bare] == pytest.approx(expected.mean[:, 0].tolist(), rel=1e-5)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_out(bqn, home, pictures, form):
    files, _ = pictures
    out = Path(f"predictions.{form}")
    assert bqn("predict", home.classifier, *files, "--out", out) == (0, "", "")
    assert out.read_text() == bqn("predict", home.classifier, *files, "--format", form).out


def test_table(bqn, home, pictures):
    files, _ = pictures
    shown = bqn("predict", home.classifier, files[0], "--format", "table")
    assert "confidence" in shown.out
    assert "p_a" not in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_wrong_usage(bqn, home, pictures):
    files, _ = pictures
    assert "--mode must be one of" in bqn("predict", home.classifier, *files, "--mode", "map2").fails(code=2)
    assert "--format must be one of" in bqn("predict", home.classifier, *files, "--format", "xml").fails(code=2)


def test_one_bad_file_spoils_all_and_nothing_is_written(bqn, home, pictures, tmp_path):
    files, _ = pictures
    (tmp_path / "broken.png").write_bytes(files[0].read_bytes()[:40])
    Path("out.csv").write_text("good")
    told = bqn("predict", home.classifier, *files, tmp_path / "broken.png", "--out", "out.csv").fails()
    assert told.startswith(f"{tmp_path / 'broken.png'}: cannot be read as a picture")
    assert Path("out.csv").read_text() == "good"


def test_full_disk(bqn, home, pictures, monkeypatch):
    files, _ = pictures
    Path("out.csv").write_text("good")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _no_space)
        told = bqn("predict", home.classifier, *files, "--out", "out.csv").fails()
    assert told == "cannot write out.csv: No space left on device; what was saved before is unharmed"
    assert Path("out.csv").read_text() == "good"


def _no_space(*arguments):
    raise OSError(28, "No space left on device")


def save_picture(path, size=(6, 6), mode="L"):
    Image.new(mode, size).save(path)
    return path


def save_text(path, text):
    path.write_text(text)
    return path


def save_arrays(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere.png", "nowhere.png: no such file"),
        (lambda folder: save_text(folder / "a.png", "no picture"), "cannot be read as a picture"),
        (lambda folder: folder / "nowhere.npz", "cannot be read: No such file or directory"),
        (lambda folder: folder / "nowhere.csv", "cannot be read: No such file or directory"),
        (lambda folder: save_text(folder / "words.txt", "x"), "expected a file that ends in .npz, .csv, .png"),
        (
            lambda folder: save_picture(folder / "a.png", size=(7, 5)),
            "has images of 1 × 5 × 7, expected images of 1 × 6",
        ),
        (
            lambda folder: save_picture(folder / "a.png", mode="RGB"),
            "has images of 3 × 6 × 6, expected images of 1 × 6",
        ),
        (lambda folder: save_text(folder / "a.csv", "1,2,3\n"), "holds features, expected images of 1 × 6 × 6"),
        (lambda folder: save_text(folder / "a.npz", "no zip"), "not a readable .npz file"),
        (lambda folder: save_arrays(folder / "a.npz", u=np.zeros(2), v=np.zeros(2)), "holds u, v; expected an array x"),
        (
            lambda folder: save_arrays(folder / "a.npz", x=np.zeros((2, 36))),
            "has 36 features, expected images of 1 × 6",
        ),
    ],
)
def test_files_that_a_classifier_of_pictures_does_not_take(bqn, home, tmp_path, make, message):
    assert message in bqn("predict", home.classifier, make(tmp_path)).fails()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n4,x,6\n", "line 2, column 2: expected a number, got 'x'"),
        ("1,2x,3\n4,5,6\n", "line 1, column 2: expected a number, got '2x'"),  # not a row of names
        ("1,2\n", "has 2 columns, expected 3 features, or 4 with the target"),
        ("rooms,area\n1,2\n", "its columns are not those of training: missing 'age'"),
        ("rooms,area,age,colour\n1,2,3,4\n", "its columns are not those of training: unknown 'colour'"),
        ("rooms,area,old\n1,2,3\n", "its columns are not those of training: missing 'age'; unknown 'old'"),
        ("rooms,area,age,age\n1,2,3,4\n", "its columns are not those of training: more than once 'age'"),
        ("rooms;area;age\n1,5;2;3\n", "expected a number, got '1,5'; write decimals with a point, as 1.5"),
        ("1,2,3,4\n", "has 4 columns, but none of them is called 'price', the target"),
        ("", "the file is empty"),
        ("rooms,area,age\n", "holds no examples"),
    ],
)
def test_tables_that_a_regression_does_not_take(bqn, home, tmp_path, text, message):
    assert message in bqn("predict", home.regression, save_text(tmp_path / "a.csv", text)).fails()


def test_gray_pictures_are_colours_too(tmp_path):
    files = [save_picture(tmp_path / "gray.png"), save_picture(tmp_path / "colour.png", mode="RGB")]
    assert read_inputs(files, Preprocessing((3, 6, 6), 2)).x.shape == (2, 3, 6, 6)


def test_target_by_name_or_last(tmp_path):
    file = save_text(tmp_path / "a.csv", "u,t,v\n1,9,3\n4,9,6\n")
    assert read_inputs([file], Preprocessing((2,), 2), target="t").x.tolist() == [[1, 3], [4, 6]]
    assert read_inputs([file], Preprocessing((2,), 2)).x.tolist() == [[1, 9], [4, 9]]
    labelled = save_text(tmp_path / "b.csv", "1,9,yes\n4,9,no\n")
    assert read_inputs([labelled], Preprocessing((2,), 2)).x.tolist() == [[1, 9], [4, 9]]


def test_columns_are_found_by_name(tmp_path):
    form = Preprocessing((2,), 2, feature_names=("x", "2y"), target_name="c")

    def read(text):
        return read_inputs([save_text(tmp_path / "a.csv", text)], form).x.tolist()

    expected = [[1, 2], [3, 4]]
    assert read("x,2y\n1,2\n3,4\n") == expected
    assert read("2y, x\n2,1\n4,3\n") == expected
    assert read("c,2y,x\na,2,1\nb,4,3\n") == expected
    assert read("1,2\n3,4\n") == expected  # no names: by position
    assert read("1,2,a\n3,4,b\n") == expected


def test_order_of_columns_does_not_matter(bqn, home, tmp_path):
    plain = save_text(tmp_path / "a.csv", "rooms,area,age\n7,100,6.9\n8,20,7.1\n")
    mixed = save_text(tmp_path / "b.csv", "age,price,rooms,area\n6.9,0,7,100\n7.1,0,8,20\n")
    predictions = [
        [
            {key: value for key, value in row.items() if key != "file"}
            for row in json.loads(bqn("predict", home.regression, file, "--format", "json").out)["predictions"]
        ]
        for file in (plain, mixed)
    ]
    assert predictions[0] == predictions[1]


def test_a_run_without_names_is_read_by_position(bqn, home, tmp_path):
    shutil.copytree(home.regression, tmp_path / "old")
    file = tmp_path / "old" / "preprocessing.json"
    document = json.loads(file.read_text())
    assert document.pop("feature_names") == ["rooms", "area", "age"]
    assert document.pop("target_name") == "price"
    file.write_text(json.dumps(document))
    table = save_text(tmp_path / "a.csv", "a,b,c\n7,100,6.9\n")
    assert bqn("predict", tmp_path / "old", table).code == 0
    assert bqn("evaluate", tmp_path / "old", "--json").code == 0


def test_nobody_is_quite_sure():
    assert _rows._cell("confidence", 0.99998) == ">0.9999"
    assert _rows._cell("confidence", 0.9991) == "0.9991"
    assert _rows._cell("mean", 1.0) == "1"


def test_pictures_are_read_as_in_training(tmp_path):
    """The same file gives the same example, whether it is trained on or predicted."""
    x, _ = images(20, seed=2)
    for position, pixels in enumerate(x):
        folder = tmp_path / "set" / "ab"[position % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{position}.png")
    data = load(str(tmp_path / "set"))
    read = read_inputs(sorted((tmp_path / "set").glob("*/*.png")), Preprocessing(data.input_shape, 2)).x
    both = torch.cat([data.train.x, data.test.x])
    assert sorted(read.flatten(1).tolist()) == sorted(both.flatten(1).tolist())


def test_features_are_not_pictures(tmp_path):
    with pytest.raises(DataError, match="has images of 1 × 6 × 6, expected 36 features"):
        read_inputs([save_picture(tmp_path / "a.png")], Preprocessing((36,), 2))
