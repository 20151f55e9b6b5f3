"""CSV files: headers, delimiters, targets, tasks, and errors that name line and column."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bqn.data import DataError, Dataset, load


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


def whole(data: Dataset) -> dict[float, list[float]]:
    """First feature → target of all examples, which the split has put in some order."""
    x, y = torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y])
    return {row[0]: target for row, target in zip(x.tolist(), y.tolist(), strict=True)}


def rows(count: int, target: str) -> str:
    return "".join(f"{i}.5,{i * 2},{target.format(i=i, odd=i % 2)}\n" for i in range(count))


def test_regression_with_a_header(csv: Path) -> None:
    csv.write_text("a,b,price\n" + rows(10, "{i}.25"))
    data = load(str(csv))
    assert data.task == "regression"
    assert data.classes == ()
    assert data.input_shape == (2,)
    assert (len(data.train), len(data.test)) == (8, 2)
    assert whole(data) == {i + 0.5: [i + 0.25] for i in range(10)}


def test_text_targets_are_classes_with_or_without_a_header(csv: Path) -> None:
    csv.write_text(rows(10, "kind{odd}"))
    bare = load(csv)
    csv.write_text("a,b,kind\n" + rows(10, "kind{odd}"))
    named = load(csv)
    for data in (bare, named):
        assert data.task == "classification"
        assert data.classes == ("kind0", "kind1")
        assert whole(data) == {i + 0.5: i % 2 for i in range(10)}


def test_few_integers_are_classes_unless_told_otherwise(csv: Path) -> None:
    csv.write_text(rows(30, "1{odd}"))
    assert load(csv).classes == ("10", "11")
    assert load(csv, task="regression").task == "regression"
    csv.write_text(rows(30, "{i}") * 2)
    assert load(csv).task == "regression"
    assert load(csv, task="classification").classes == tuple(str(i) for i in range(30))


def test_integer_classes_are_in_numeric_order(csv: Path) -> None:
    csv.write_text("".join(f"{i},{[10, 9, 2][i % 3]}.0\n" for i in range(30)))
    assert load(csv).classes == ("2", "9", "10")


def test_a_numeric_header_over_numbers_is_found_by_its_last_name(csv: Path) -> None:
    csv.write_text("1,2,label\n" + rows(10, "{odd}"))
    assert len(whole(load(csv))) == 10


def test_the_target_can_be_any_named_column(csv: Path) -> None:
    csv.write_text("a,kind,b\n" + "".join(f"{i},{'xy'[i % 2]},{i}\n" for i in range(10)))
    assert load(csv, target="kind").classes == ("x", "y")
    with pytest.raises(DataError, match=r"target 'none' must name one column of the header, which is \['a'"):
        load(csv, target="none")


def test_text_labels_in_the_middle_need_the_column_named(csv: Path) -> None:
    csv.write_text("a,kind,b\n1,x,1\n2,y,2\n")
    with pytest.raises(DataError, match=r"line 2, column 2 \(kind\): expected a number, got 'x'"):
        load(csv)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_delimiters_endings_marks_and_quotes(csv: Path, delimiter: str, ending: str) -> None:
    text = "\ufeff" + '"a","b, or c"\n' + "".join(f'"{i}",{i}.5\n' for i in range(10)) + "\n"
    csv.write_bytes(text.replace('",', f'"{delimiter}').replace("\n", ending).encode())
    assert whole(load(csv)) == {i: [i + 0.5] for i in range(10)}


def test_the_split_is_fixed_chosen_by_number_and_stratified(csv: Path) -> None:
    csv.write_text("".join(f"{i},{'ab'[i % 5 == 0]}\n" for i in range(50)))
    first, again, other = load(csv), load(csv), load(csv, split=1)
    assert first.test.x.tolist() == again.test.x.tolist() != other.test.x.tolist()
    assert first.test.y.tolist().count(1) == 2
    assert not set(first.test.x[:, 0].tolist()) & set(first.train.x[:, 0].tolist())


@pytest.mark.parametrize("cell", ["many", "", " ", "nan", "inf", "1_000", "1,5", "0x1", "٣", "1e999", "1e39", "--1"])
def test_what_is_no_number_is_named_by_line_and_column(csv: Path, cell: str) -> None:
    csv.write_text("a;b;c\n" + "1;2;3.5\n" * 5 + f"1;{cell};3.5\n" + "1;2;3.5\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"table\.csv: line 7, column 2 \(b\): expected a number, got "):
        load(csv)


def test_text_in_a_regression_target_is_named(csv: Path) -> None:
    csv.write_text("1,2.5\n2,oops\n3,1\n")
    with pytest.raises(DataError, match="line 2, column 2: expected a number, got 'oops'"):
        load(csv, task="regression")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("a,b\n", "a header but no data"),
        ("a\n1\n2\n", "one column only"),
        ("a,b\n1,2\n1,2,3\n", "line 3 has 3 columns, expected 2"),
        ("a,b\n1,2\n1\n", "line 3 has 1 columns, expected 2"),
        ('a,b\n1,"2\n1,2\n', "not a CSV file"),
        ("1,x\n2,\n3,y\n", "line 2, column 2: expected a class, got an empty cell"),
        ("1,x\n2,y\n", "2 examples cannot be split"),
    ],
)
def test_errors_say_what_is_wrong(csv: Path, text: str, message: str) -> None:
    csv.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load(csv)
    assert str(caught.value).startswith(str(csv))
    assert "\n" not in str(caught.value)


def test_refuses_other_encodings_and_tasks(csv: Path) -> None:
    csv.write_bytes(b"a,b\n1,\xff\n")
    with pytest.raises(DataError, match="not UTF-8 text, byte 6 is 0xff"):
        load(csv)
    with pytest.raises(ValueError, match="task must be one of classification, regression, got 'ranking'"):
        load(csv, task="ranking")  # type: ignore[arg-type]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.binary(max_size=60) | st.text("ab1.,;\t\n\"'-e _", max_size=60).map(str.encode))
def test_any_bytes_are_a_set_or_a_data_error(csv: Path, data: bytes) -> None:
    csv.write_bytes(data)
    outcome: Dataset | DataError
    try:
        outcome = load(csv)
    except DataError as error:
        outcome = error
    if isinstance(outcome, DataError):
        assert "\n" not in str(outcome)
    else:
        assert torch.isfinite(outcome.train.x).all()


def test_names_of_columns(csv: Path) -> None:
    csv.write_text("a,t,b\n" + "".join(f"{n},{n % 2},{2 * n}\n" for n in range(20)))
    named = load(csv, target="t")
    assert (named.feature_names, named.target_name) == (("a", "b"), "t")
    csv.write_text("a,a,t\n" + "".join(f"{n},{2 * n},{n % 2}\n" for n in range(20)))
    assert (load(csv).feature_names, load(csv).target_name) == ((), None)  # names that tell nothing apart
    csv.write_text("".join(f"{n},{2 * n},{n % 2}\n" for n in range(20)))
    assert (load(csv).feature_names, load(csv).target_name) == ((), None)


@pytest.mark.parametrize("text", ["a;b;t\n1,5;2;x\n2,5;3;y\n", "1,5;2,5;x\n2,5;3,5;y\n"])
def test_decimal_commas(csv: Path, text: str) -> None:
    csv.write_text(text)
    with pytest.raises(DataError, match=r"write decimals with a point, as 1\.5"):
        load(csv)
