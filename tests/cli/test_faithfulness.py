"""`bqn faithfulness`: tables, JSON, figure and record."""

import json
from xml.etree import ElementTree

import pytest

from bqn.cli import main
from tests.cli.files import QUICK, write_images


def test_json_figure_and_record(bqn, home, tmp_path):
    options = ("--samples", "1,2,4", "--examples", 20, "--layer-examples", 5, "--seed", 2)
    out = ("--figure", tmp_path / "a.svg", "--record", tmp_path / "records")
    done = bqn("faithfulness", home.classifier, *options, *out, "--json")
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert (result["settings"]["examples"], result["settings"]["counts"]) == (20, [1, 2, 4])
    assert [row["groups"] for row in result["mc"]["predictions"]] == [4, 2, 1]
    assert result["mc_recalibrated"]["layers"][-1]["kind"] == "Linear"
    assert result["config"]["hidden"] == [8]
    assert {"architecture", "data", "hardware", "code", "date", "seconds"} <= set(result)
    (record,) = (tmp_path / "records").iterdir()
    assert record.name == "mlp-images.json"
    assert json.loads(record.read_text()) == result
    ElementTree.parse(tmp_path / "a.svg")


def test_the_figures_are_those_of_evaluate(bqn, home):
    result = json.loads(bqn("faithfulness", home.classifier, "--samples", "3", "--seed", 5, "--json").out)
    options = ("--samples", 3, "--seed", 5, "--recalibrate", "--json")
    expected = json.loads(bqn("evaluate", home.classifier, *options).out)
    for mode in ("mc", "mc_recalibrated"):
        assert result[mode]["predictions"][0]["nll"] == pytest.approx(expected[mode]["nll"], rel=1e-5)
    assert result["analytic"]["nll"] == pytest.approx(expected["analytic"]["nll"], rel=1e-5)


def test_tables_for_people(bqn, home):
    done = bqn("faithfulness", home.classifier, "--samples", "1,3")
    assert done.code == 0
    for text in ("30 examples, 3 networks", "NLL, mc", "error, recal.", "variances", "neighbours", "BatchNorm1d"):
        assert text in " ".join(done.out.split())  # a long path breaks the line
    assert max(map(len, done.out.splitlines())) <= 80


def test_calibration_and_detection(bqn, home, tmp_path):
    other = write_images(tmp_path / "other.npz", names="xyz")
    options = ("--samples", "3", "--ood", f"{other},{home.images}", "--seed", 1)
    result = json.loads(bqn("faithfulness", home.classifier, *options, "--json").out)["calibration"]
    flags = ("--ood", other, "--temper", "--recalibrate", "--seed", 1, "--json")
    expected = json.loads(bqn("evaluate", home.classifier, *flags).out)
    assert expected["ood"]["data"] == str(other)
    for mode in ("analytic", "mc", "map_recalibrated"):
        assert result[mode]["ece"] == expected[mode]["ece"]
        assert result[mode]["tempered"]["ece"] == expected["tempered"][mode]["ece"]
        assert result[mode]["auroc"][str(other)]["entropy"] == expected["ood"][mode]["entropy"]["auroc"]
        assert result[mode]["auroc"][str(home.images)]["entropy"] == 0.5  # the very same examples
    shown = bqn("faithfulness", home.classifier, *options).out
    assert "calibration and detection" in shown
    assert f"{result['mc']['tempered']['ece']:.2%}" in shown


def test_wrong_usage(bqn, home, tmp_path):
    for text in ("", "1,2", "0,5", "a", "1,,5", "-3"):
        assert "--samples must be whole numbers" in bqn("faithfulness", home.classifier, f"--samples={text}").fails(2)
    assert "is a run for regression" in bqn("faithfulness", home.regression).fails(2)
    assert "is not a folder" in bqn("faithfulness", tmp_path / "nothing").fails()
    small = write_images(tmp_path / "small.npz", size=8)
    assert "takes images of 1 × 6 × 6" in bqn("faithfulness", home.classifier, "--ood", small).fails()
    missing = tmp_path / "no" / "a.svg"
    assert f"{missing} must be in a folder" in bqn("faithfulness", home.classifier, "--figure", missing).fails(2)


def test_a_run_of_another_method(bqn, home, tmp_path):
    options = ("--method", "qnn", "--data", str(home.images), "--out", str(tmp_path / "qnn"))
    assert main(["train", *options, *QUICK]) == 0
    told = bqn("faithfulness", tmp_path / "qnn").fails(2)
    assert "is a run of qnn, which has the modes map; faithfulness compares analytic with mc" in told
