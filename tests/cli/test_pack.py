"""`bqn pack`, `bqn run` and `bqn inspect`: three commands from a run to the same figures from a file alone."""

import csv
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from bqn.cli import main
from bqn.deploy import container, load_packed
from bqn.deploy.columns import KEY, from_about
from bqn.training import distill, load_data, load_run, own_parts
from tests.cli.files import QUICK, images, write_images, write_table


@pytest.fixture(scope="module")
def packed(home, tmp_path_factory):
    """Packed files of the runs: map and mc of the classifier, mc of the regression."""
    folder = tmp_path_factory.mktemp("packed")
    assert main(["pack", str(home.classifier), "--out", str(folder / "map.bqn")]) == 0
    options = ["--mode", "mc", "--samples", "3", "--seed", "5"]
    assert main(["pack", str(home.classifier), *options, "--out", str(folder / "mc.bqn")]) == 0
    assert main(["pack", str(home.regression), *options, "--out", str(folder / "prices.bqn")]) == 0
    return folder


def evaluated(bqn, run, *options):
    return json.loads(bqn("evaluate", run, "--samples", 3, "--seed", 5, *options, "--json").out)


def test_a_run_is_no_packed_network(bqn, home):
    refused = bqn("run", home.classifier, "--data", home.images).fails()
    assert f"is a folder, not a packed network: bqn pack {home.classifier} makes one of the run" in refused


@pytest.mark.parametrize("mode", ["map", "mc"])
def test_the_same_figures_as_evaluate(bqn, home, packed, mode):
    done = bqn("run", packed / f"{mode}.bqn", "--data", home.images, "--json")
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    expected = evaluated(bqn, home.classifier)[mode]
    assert {name: result[name] for name in expected} == expected
    assert result["members"] == (1 if mode == "map" else 3)
    assert (result["examples"], result["part"], result["task"]) == (30, "test", "classification")


def test_the_same_figures_for_a_regression(bqn, home, packed):
    result = json.loads(bqn("run", packed / "prices.bqn", "--data", home.table, "--json").out)
    expected = evaluated(bqn, home.regression)["mc"]
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, rel=1e-5), name


def test_recalibrated(bqn, home, tmp_path):
    options = ("--mode", "mc", "--samples", 3, "--seed", 5)
    assert bqn("pack", home.classifier, *options, "--recalibrate", "--out", tmp_path / "a.bqn").code == 0
    result = json.loads(bqn("run", tmp_path / "a.bqn", "--data", home.images, "--json").out)
    expected = evaluated(bqn, home.classifier, "--recalibrate")["mc_recalibrated"]
    assert {name: result[name] for name in expected} == expected
    assert load_packed(tmp_path / "a.bqn").packed.about["recalibrated"] is True


def test_statistics_that_may_not_fit_are_said(bqn, home, tmp_path):
    options = ("pack", home.classifier, "--out", tmp_path / "a.bqn", "--force")
    words = "batch norm keeps the statistics of the analytic pass"
    assert words in bqn(*options).err
    assert words not in bqn(*options, "--recalibrate").err
    assert bqn("train", "--data", home.images, "--no-batch-norm", "--out", tmp_path / "run", *QUICK).code == 0
    assert words not in bqn("pack", tmp_path / "run", "--out", tmp_path / "b.bqn").err


def test_tempered(bqn, home, tmp_path):
    assert bqn("pack", home.classifier, "--temper", "--out", tmp_path / "a.bqn").code == 0
    result = json.loads(bqn("run", tmp_path / "a.bqn", "--data", home.images, "--json").out)
    expected = evaluated(bqn, home.classifier, "--temper")["tempered"]["map"]
    assert load_packed(tmp_path / "a.bqn").packed.about["temperature"] == pytest.approx(expected["temperature"])
    for name in ("nll", "error", "ece"):
        assert result[name] == pytest.approx(expected[name], rel=1e-4), name
    told = bqn("pack", home.regression, "--temper", "--out", tmp_path / "b.bqn").fails(2)
    assert "--temper needs a classifier with validation examples" in told


@pytest.mark.parametrize("mode", ["map", "mc"])
def test_distilled(bqn, home, tmp_path, mode):
    options = ["--mode", mode, *(["--samples", 2] if mode == "mc" else []), "--seed", 5, "--distill", 2]
    done = bqn("pack", home.classifier, *options, "--out", tmp_path / "a.bqn", "--json")
    assert done.code == 0
    assert set(json.loads(done.out)) >= {"file", "members"}  # progress goes elsewhere
    which = "network 2 of 2, " if mode == "mc" else ""
    assert f"distilling: {which}epoch 2 of 2, validation NLL " in done.err
    model = load_packed(tmp_path / "a.bqn")
    about = model.packed.about
    assert (about["distill_epochs"], about["recalibrated"], about["seed"]) == (2, False, 5)
    run = load_run(home.classifier)
    training, validation = own_parts(home.classifier, run.config, load_data(run.config))
    expected = distill(run, training, validation, mode=mode, samples=2, seed=5, epochs=2)
    assert about["distilled"] == sum(epoch > 0 for epoch in expected.kept)
    assert done.err.count("not distilled: no epoch was better than none") == expected.kept.count(0)
    assert done.err.count(" as of epoch ") == about["distilled"]
    x = torch.from_numpy(images(20)[0]).unsqueeze(1)
    probs = torch.stack([network.predict(run.preprocessing.input(x)) for network in expected.networks]).mean(0)
    np.testing.assert_allclose(model(x.numpy()), probs.numpy(), atol=1e-6)


def test_distilled_regression_and_refusals(bqn, home, tmp_path):
    assert bqn("pack", home.regression, "--distill", 1, "--out", tmp_path / "a.bqn").code == 0
    assert load_packed(tmp_path / "a.bqn").packed.about["distill_epochs"] == 1
    told = bqn("pack", home.classifier, "--distill", 1, "--recalibrate", "--out", tmp_path / "b.bqn").fails(2)
    assert "--recalibrate is not for --distill" in told
    assert not (tmp_path / "b.bqn").exists()
    point = tmp_path / "point"
    assert main(["train", "--data", str(home.images), "--method", "qnn", "--out", str(point), *QUICK]) == 0
    told = bqn("pack", point, "--distill", 1, "--out", tmp_path / "b.bqn").fails(2)
    assert "distillation needs a run with a posterior: method must be bqn, got qnn" in told


def test_the_digits_that_come_with_scikit_learn(bqn, tmp_path):
    assert main(["train", "--data", "digits", "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert bqn("pack", tmp_path / "run", "--mode", "map", "--out", tmp_path / "one.bqn").code == 0
    result = json.loads(bqn("run", tmp_path / "one.bqn", "--data", "digits", "--json").out)
    expected = evaluated(bqn, tmp_path / "run")["map"]
    assert {name: result[name] for name in expected} == expected


def test_a_table_of_features_with_classes(bqn, tmp_path):
    table = write_table(tmp_path / "kinds.csv", labels=True)
    assert main(["train", "--data", str(table), "--target", "kind", "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert bqn("pack", tmp_path / "run", "--out", tmp_path / "a.bqn").code == 0
    result = json.loads(bqn("run", tmp_path / "a.bqn", "--data", table, "--json").out)
    expected = evaluated(bqn, tmp_path / "run")["map"]
    assert result["error"] == expected["error"]
    assert result["nll"] == pytest.approx(expected["nll"], rel=1e-5)


def test_all_examples(bqn, home, packed):
    result = json.loads(bqn("run", packed / "map.bqn", "--data", home.images, "--part", "all", "--json").out)
    assert result["examples"] == 90


def test_tables_for_people(bqn, home, packed):
    done = bqn("run", packed / "mc.bqn", "--data", home.images)
    assert done.code == 0
    for text in ("3 networks", "30 examples", "NLL", "packed"):
        assert text in done.out
    done = bqn("inspect", packed / "mc.bqn")
    assert done.code == 0
    for text in ("3 networks on pixels", "36 → 8, binary", "thresholds", "one in float32", "3 classes"):
        assert text in " ".join(done.out.split())
    assert max(map(len, done.out.splitlines())) <= 80


def test_pack_says_what_it_wrote(bqn, home, tmp_path):
    done = bqn("pack", home.classifier, "--out", tmp_path / "a.bqn")
    assert done.code == 0
    assert "the most probable network of 312 weights at 1 bit;" in " ".join(done.out.split())
    before = (tmp_path / "a.bqn").read_bytes()
    told = bqn("pack", home.classifier, "--mode", "mc", "--out", tmp_path / "a.bqn").fails()
    assert told == f"{tmp_path / 'a.bqn'} exists already: replace it with --force, or choose another --out"
    assert (tmp_path / "a.bqn").read_bytes() == before
    facts = json.loads(bqn("pack", home.classifier, "--out", tmp_path / "a.bqn", "--force", "--json").out)
    assert facts["file_bytes"] == (tmp_path / "a.bqn").stat().st_size
    inspected = json.loads(bqn("inspect", tmp_path / "a.bqn", "--json").out)
    assert inspected == facts
    assert sum(inspected["bytes"].values()) == inspected["file_bytes"]
    assert inspected["about"]["mode"] == "map"


def test_predictions(bqn, home, packed, tmp_path):
    x, _ = images(4, seed=9)
    files = []
    for position, picture in enumerate(x):
        files.append(tmp_path / f"{position}.png")
        Image.fromarray(picture).save(files[-1])
    rows = list(csv.DictReader(io.StringIO(bqn("run", packed / "mc.bqn", *files).out)))
    probs = load_packed(packed / "mc.bqn")(x[:, None])
    for row, file, expected in zip(rows, files, probs, strict=True):
        assert row["file"] == str(file)
        assert [float(row[f"p_{name}"]) for name in "abc"] == pytest.approx(expected.tolist(), abs=1e-6)
        assert row["prediction"] == "abc"[int(expected.argmax())]
    done = bqn("run", packed / "mc.bqn", *files, "--json")
    result = json.loads(done.out)
    assert (result["members"], len(result["predictions"])) == (3, 4)
    assert bqn("run", packed / "mc.bqn", *files, "--out", tmp_path / "rows.csv").out == ""
    assert (tmp_path / "rows.csv").read_text().count("\n") == 5


def test_predictions_of_a_regression(bqn, home, packed):
    rows = list(csv.DictReader(io.StringIO(bqn("run", packed / "prices.bqn", home.table).out)))
    assert len(rows) == 80
    table = np.genfromtxt(home.table, delimiter=",", skip_header=1)
    x = torch.from_numpy(table[:, [0, 2, 3]].astype(np.float32))
    expected = load_run(home.regression).predict(x, "mc", 3, torch.Generator().manual_seed(5))
    assert [float(row["mean"]) for row in rows] == pytest.approx(expected.mean[:, 0].tolist(), rel=1e-5)
    assert [float(row["std"]) for row in rows] == pytest.approx(expected.var[:, 0].sqrt().tolist(), rel=1e-5)


def test_columns_of_a_table_are_found_by_name(bqn, home, packed, tmp_path):
    rows = list(csv.reader(io.StringIO(home.table.read_text())))
    mixed, wrong = tmp_path / "mixed.csv", tmp_path / "wrong.csv"
    mixed.write_text("".join(f"{','.join(row[::-1])}\n" for row in rows))
    wrong.write_text("rooms,price,area,old\n" + "".join(f"{','.join(row)}\n" for row in rows[1:]))
    for command in (("predict",), ("run",)):
        means = [
            [row["mean"] for row in csv.DictReader(io.StringIO(bqn(*command, packed / "prices.bqn", file).out))]
            for file in (home.table, mixed)
        ]
        assert len(means[0]) == 80
        assert means[0] == means[1]
    same = shutil.copy(home.table, tmp_path / "same.csv")
    told = bqn("run", packed / "prices.bqn", wrong).fails()
    assert told == f"{wrong}: its columns are not those of training: missing 'age'; unknown 'old'"
    for command in (("run", packed / "prices.bqn"), ("evaluate", home.regression)):
        assert "missing 'age'; unknown 'old'" in bqn(*command, "--data", wrong).fails()
        figures = [json.loads(bqn(*command, "--data", file, "--part", "all", "--json").out) for file in (same, mixed)]
        for figure in figures:
            figure.pop("data")
        assert figures[0] == figures[1]


def test_packed_files_without_names_are_read_by_position(bqn, home, packed, tmp_path):
    whole = container.load(packed / "prices.bqn")
    assert from_about(whole.about) == (("rooms", "area", "age"), "price")
    about = {key: value for key, value in whole.about.items() if key != KEY}
    old = tmp_path / "old.bqn"
    old.write_bytes(container.to_bytes(replace(whole, about=about)))
    named = tmp_path / "named.csv"
    named.write_text("a,b,c\n7,100,6.9\n")
    assert bqn("run", old, named).code == 0
    for text in ("5", "[1]", '{"features": [1]}', '{"features": ["a", "a"], "target": "b"}', '{"features": ["a"]}'):
        old.write_bytes(container.to_bytes(replace(whole, about={**about, KEY: text})))
        bqn("run", old, named).fails()


def test_the_table_has_no_empty_columns(bqn, packed):
    assert "bound" not in bqn("run", "digits-mlp", "--data", "digits").out.splitlines()[2]


@pytest.mark.parametrize("command", ["evaluate", "report", "pack", "compare"])
def test_a_packed_network_is_no_run(bqn, packed, tmp_path, command):
    options = ("--out", tmp_path / "x") if command == "pack" else ()
    assert "digits-mlp is a packed network, not the folder of a run: use bqn run" in bqn(
        command, "digits-mlp", *options
    ).fails(2)
    assert "use bqn run" in bqn(command, packed / "map.bqn", *options).fails(2)


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_files_that_are_no_packed_networks(bqn, packed, tmp_path, command):
    broken = tmp_path / "broken.bqn"
    options = ("--data", "digits") if command == "run" else ()
    content = (packed / "map.bqn").read_bytes()
    for damage in (b"", content[:50], content[:-1], b"\0" * 100, content[:-1] + bytes([content[-1] ^ 1])):
        broken.write_bytes(damage)
        assert str(broken) in bqn(command, broken, *options).fails()
    assert "checksum does not match" in bqn(command, broken, *options).fails()
    assert "No such file" in bqn(command, tmp_path / "missing.bqn", *options).fails()
    assert bqn(command, tmp_path, *options).fails() == f"{tmp_path} is a folder, not a packed network"


def test_wrong_usage_of_pack(bqn, home, run, tmp_path):
    out = ("--out", tmp_path / "a.bqn")
    assert "--mode must be one of map, mc" in bqn("pack", home.classifier, "--mode", "analytic", *out).fails(2)
    assert "missing option '--out'" in bqn("pack", home.classifier).fails(2)
    assert "is not a folder" in bqn("pack", tmp_path / "nothing", *out).fails()
    for drawn in ("--samples", 99), ("--seed", 4), ("--samples", 99, "--distill", 1):
        assert f"{drawn[0]} is for --mode mc" in bqn("pack", home.classifier, *drawn, *out).fails(2)
    for unusable in (tmp_path / "no" / "a.bqn", tmp_path):
        told = bqn("pack", home.classifier, "--out", unusable).fails(2)
        assert f"--out must be a file in a folder that is there, got {unusable}" in told
    assert not (tmp_path / "a.bqn").exists()


def test_wrong_usage_of_run(bqn, home, packed, tmp_path):
    file = packed / "map.bqn"
    assert "name either --data to evaluate on, or files" in bqn("run", file).fails(2)
    assert "name either --data" in bqn("run", file, home.images, "--data", home.images).fails(2)
    assert "--part must be one of test, all" in bqn("run", file, "--data", home.images, "--part", "half").fails(2)
    assert "are for predictions" in bqn("run", file, "--data", home.images, "--format", "csv").fails(2)
    assert "--format must be one of" in bqn("run", file, home.images, "--format", "yaml").fails(2)
    for unfit in ("--format", "csv"), ("--format", "table"), ("--out", tmp_path / "rows.csv"):
        assert "--json prints one JSON object" in bqn("run", file, home.images, "--json", *unfit).fails(2)
    assert not (tmp_path / "rows.csv").exists()
    assert bqn("run", file, home.images, "--json") == bqn("run", file, home.images, "--json", "--format", "json")
    for ignored in ("--part", "all"), ("--bins", 7):
        assert "--part and --bins are for --data" in bqn("run", file, home.images, *ignored).fails(2)
    assert "is for regression" in bqn("run", file, "--data", home.table).fails()
    assert "must be numbers for regression" in bqn("run", packed / "prices.bqn", "--data", home.images).fails()
    other = write_images(tmp_path / "other.npz", size=8)
    assert "images of 1 × 8 × 8" in bqn("run", file, "--data", other).fails()
    unknown = write_images(tmp_path / "unknown.npz", names="abx")
    assert "does not know: x" in bqn("run", file, "--data", unknown).fails()


def test_inspect_rounds_the_temperature(bqn, home, tmp_path):
    assert bqn("pack", home.classifier, "--temper", "--out", tmp_path / "a.bqn").code == 0
    temperature = container.load(tmp_path / "a.bqn").about["temperature"]
    shown = " ".join(bqn("inspect", tmp_path / "a.bqn").out.split())
    assert f"temperature {temperature:.4g})" in shown
