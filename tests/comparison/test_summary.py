"""The table against scipy, and its words."""

import numpy as np
import pytest
from scipy import stats

from bqn.comparison import MethodRecord, make_plan, render_page, summarize
from bqn.comparison.words import describe_rows, heads, notes


def record(
    method: str, rmse: np.ndarray, likelihood: np.ndarray, modes: tuple[str, ...] = ("analytic",)
) -> MethodRecord:
    made = MethodRecord(method, "boston", {}, {"train": 455, "test": 51})
    for split in range(len(rmse)):
        scores = {
            "rmse": float(rmse[split]),
            "log_likelihood": float(likelihood[split]),
            "coverage_90": 0.9,
            "size": 6020,
            "predict_seconds": 2e-6,
        }
        made.add(split, {"train_seconds": 3.0, "epochs": 4, "modes": dict.fromkeys(modes, scores)})
    return made


@pytest.fixture(name="compared")
def compare_two():
    generator = np.random.default_rng(0)
    first = generator.normal(3.0, 0.5, 20)
    second = first + generator.normal(0.3, 0.3, 20)
    records = {
        "pbp": record("pbp", first, -0.8 * first),
        "bqn": record("bqn", second, -0.7 * second, ("analytic", "map")),
    }
    plan = make_plan("boston", ["bqn", "pbp"], 20)
    return plan, records, first, second


def test_means_errors_and_p_values_are_those_of_scipy(compared) -> None:
    plan, records, first, second = compared
    bqn, bqn_map, pbp = summarize(plan, records)["rows"]
    assert bqn["rmse"]["mean"] == pytest.approx(second.mean())
    assert bqn["rmse"]["standard_error"] == pytest.approx(stats.sem(second))
    difference = second - first
    t = difference.mean() / np.sqrt((1 / 20 + 51 / 455) * difference.var(ddof=1))
    assert bqn["rmse"]["p"] == pytest.approx(2 * stats.t.sf(abs(t), 19), rel=1e-9)
    assert pbp["rmse"]["best"]
    assert pbp["rmse"]["p"] is None
    assert bqn["log_likelihood"]["best"]  # more is better there
    assert bqn_map["mode"] == "map"


def test_only_splits_that_all_have_count(compared) -> None:
    plan, records, first, second = compared
    records["pbp"] = record("pbp", first[:7], first[:7])
    summary = summarize(plan, records)
    assert summary["splits"] == list(range(7))
    assert summary["rows"][0]["rmse"]["mean"] == pytest.approx(second[:7].mean())
    del records["pbp"]
    assert summarize(plan, records)["rows"] == []


def test_seeds_of_one_split_get_the_plain_test() -> None:
    plan = make_plan("mnist", ["bqn", "qnn"], 3)
    made = {}
    for method, error in (("bqn", [0.02, 0.03, 0.02]), ("qnn", [0.04, 0.04, 0.03])):
        made[method] = MethodRecord(method, "mnist", {}, {"train": 60000, "test": 10000})
        for split, value in enumerate(error):
            scores = {"error": value, "nll": value, "ece": 0.01, "size": 10, "predict_seconds": 1.0}
            made[method].add(split, {"train_seconds": 1.0, "epochs": 1, "modes": {"map": scores}})
    summary = summarize(plan, made)
    expected = stats.ttest_rel([0.02, 0.03, 0.02], [0.04, 0.04, 0.03]).pvalue
    assert summary["rows"][1]["error"]["p"] == pytest.approx(expected)
    assert "seeds" in summary["test"]
    assert describe_rows(summary)[0][1] == "2.33±0.33%"


def test_a_figure_that_is_missing_is_a_dash_and_cannot_win(compared) -> None:
    plan, records, _, _ = compared
    records["pbp"].modes["analytic"]["rmse"][3] = None
    summary = summarize(plan, records)
    pbp = summary["rows"][2]
    assert not pbp["rmse"]["best"]
    assert pbp["rmse"]["p"] is None


def test_the_words(compared) -> None:
    plan, records, first, _ = compared
    summary = summarize(plan, records)
    rows = describe_rows(summary)
    assert [row[0] for row in rows] == ["bqn", "bqn map", "pbp"]
    assert all(len(row) == len(heads(summary)) for row in rows)
    assert rows[2][1] == f"{first.mean():.2f}±{stats.sem(first):.2f}"
    assert rows[2][2] == "best"
    assert rows[2][5:] == ["90%", "6.02 kB", "3 s", "2 µs"]
    assert "bostonHousing" in notes(summary)
    assert "over 1 split;" in notes({**summary, "splits": summary["splits"][:1]})
    assert "Nadeau" in notes(summary)


def test_the_page_is_whole_and_draws_every_row(compared) -> None:
    plan, records, _, _ = compared
    page = render_page(summarize(plan, records))
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 2 + 2  # two charts, two signs in the legend
    assert page.count('class="marker') == 2 * 3 + 2
    assert "<script" not in page
