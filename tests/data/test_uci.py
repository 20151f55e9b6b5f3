"""The UCI layout with its split files, and the Boston table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bqn.data import DataError, load
from bqn.data._uci import BOSTON_HEADER
from tests.data.files import write_uci_set


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "uci" / "kin8nm"


def test_columns_and_rows_are_those_of_the_index_files(tmp_path: Path, folder: Path) -> None:
    table = write_uci_set(folder, rows=10, test=3, split=4)
    (folder / "index_test_4.txt").write_text("9\n7\n8\n")
    data = load("kin8nm", root=tmp_path, download=False, split=4)
    assert (data.name, data.task, data.classes, data.input_shape) == ("kin8nm", "regression", (), (2,))
    np.testing.assert_array_equal(data.train.x.numpy(), table[:7][:, [0, 2]].astype(np.float32))
    np.testing.assert_array_equal(data.test.x.numpy(), table[[9, 7, 8]][:, [0, 2]].astype(np.float32))
    np.testing.assert_array_equal(data.test.y.numpy(), table[[9, 7, 8]][:, [1]].astype(np.float32))


@pytest.mark.parametrize("separator", [" ", "\t", "   "])
def test_any_white_space_separates(tmp_path: Path, folder: Path, separator: str) -> None:
    table = write_uci_set(folder)
    (folder / "data.txt").write_text("\n".join(separator + separator.join(map(str, row)) for row in table) + "\n\n")
    data = load("kin8nm", root=tmp_path, download=False)
    np.testing.assert_array_equal(data.train.y.numpy(), table[:7, [1]].astype(np.float32))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("data.txt", "", "the file is empty"),
        ("data.txt", "1 2 3\n4 x 6\n", "line 2, column 2: expected a number, got 'x'"),
        ("data.txt", "1 2 3\n4 5\n", "line 2 has 2 columns, expected 3"),
        ("data.txt", "1 2 3\n4 5 6\n", "index 2, expected whole numbers from 0 to 1"),
        ("index_features.txt", "0\n3\n", "index 3, expected whole numbers from 0 to 2"),
        ("index_target.txt", "-1\n", "index -1, expected"),
        ("index_train_0.txt", "0\n0.5\n", "index 0.5, expected"),
        ("index_train_0.txt", "0 1\n2 3\n", "line 1 has 2 columns, expected 1"),
        ("index_train_0.txt", "0\n0\n", "the same index twice"),
        ("index_train_0.txt", "0\n1\n2\n", "3 and 3 rows must be different ones and together all 10"),
        ("index_train_0.txt", "\n".join(map(str, range(10))), "10 and 3 rows must be different ones"),
        ("index_test_0.txt", "0\n1\n2\n", "7 and 3 rows must be different ones and together all 10"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, folder: Path, name: str, text: str, message: str) -> None:
    write_uci_set(folder)
    (folder / name).write_text(text)
    with pytest.raises(DataError, match=message):
        load("kin8nm", root=tmp_path, download=False)


def write_boston(root: Path, text: str) -> Path:
    path = root / "boston" / "boston.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_boston_is_split_by_number(tmp_path: Path) -> None:
    row = ",".join(f"{{0}}.{column}" for column in range(14))
    write_boston(tmp_path, BOSTON_HEADER + "\n" + "".join(row.format(i) + "\n" for i in range(40)))
    first, other = (load("boston", root=tmp_path, download=False, split=split) for split in (0, 1))
    assert (first.task, first.input_shape, len(first.train), len(first.test)) == ("regression", (13,), 36, 4)
    assert first.test.y.tolist() != other.test.y.tolist()
    together = sorted(first.train.y[:, 0].int().tolist() + first.test.y[:, 0].int().tolist())
    assert together == list(range(40))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 must be CRIM,ZN"),
        ("CRIM,ZN\n", "line 1 must be CRIM,ZN"),
        (BOSTON_HEADER + "\n1,2\n" * 10, "line 2 has 2 columns, expected 14"),
        (BOSTON_HEADER + ("\n" + "1," * 13 + "x") * 10, r"line 2, column 14 \(MEDV\): expected a number, got 'x'"),
        (BOSTON_HEADER + "\n", "0 rows are too few to split"),
    ],
)
def test_broken_boston(tmp_path: Path, text: str, message: str) -> None:
    path = write_boston(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        load("boston", root=tmp_path, download=False)
    assert str(path) in str(caught.value)
