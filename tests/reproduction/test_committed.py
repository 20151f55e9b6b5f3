"""The records in this repository are what they say, and their recipes are those that stand in the code.

Each check also runs on made-up records that it must refuse: a check that nothing can fail says nothing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from bqn.reproduction import Cell, RecordError, recipes, records, tuning
from bqn.reproduction.boston import METHODS, boston_folder, plan_boston

RESULTS = Path(__file__).resolve().parents[2] / "results"


def cells_of(folder: Path) -> list[Cell]:
    found = []
    for path in sorted(folder.glob("*-*/*/seed-*.json")):
        architecture, _, data = path.parents[1].name.partition("-")
        recipe, _, variant = path.parent.name.partition("-")
        if recipe in recipes.RECIPES:
            found.append(Cell(architecture, data, recipe, variant, int(path.stem.removeprefix("seed-"))))
    return found


def problems(folder: Path) -> Iterator[str]:
    """What is wrong with the records of a folder, in words."""
    for cell in cells_of(folder):
        try:
            document = records.read(cell, folder)
        except RecordError as error:
            yield str(error)
            continue
        assert document is not None
        for problem in (*_stale(document, cell), *_incomplete(document, cell), *_impure(document, cell, folder)):
            yield f"{cell.name}: {problem}"


def _stale(document: dict[str, Any], cell: Cell) -> Iterator[str]:
    """A recipe that is edited needs new records. Ideas may be older than the recipe that they led to."""
    differs = None if cell.variant in recipes.IDEAS else records.difference(document, cell.config("cpu"))
    if differs:
        yield f"made with {differs}"


def _incomplete(document: dict[str, Any], cell: Cell) -> Iterator[str]:
    for name in ("code", "hardware", "date"):
        if not document.get(name):
            yield f"{name} is missing"
    if "failed" in document:
        return
    if ("test" in document) != cell.judged_on_test:
        yield "test examples are for recipes, not for ideas"
    for part in {"test", "validation"} & document.keys():
        expected = {*records.MODES, *(records.DISTILLED_MODES if "distilled" in document else ())}
        if set(document[part]) != expected:
            yield f"{part} has other modes"
    if not 0 < len(document.get("curve", {}).get("epoch", ())) <= 25:
        yield "the curve must have 1 to 25 epochs"


def _impure(document: dict[str, Any], cell: Cell, folder: Path) -> Iterator[str]:
    """An idea differs from what it is compared with in itself alone."""
    idea = recipes.IDEAS.get(cell.variant)
    if idea is None or not idea.against:
        return
    reference = records.read(Cell(cell.architecture, cell.data, cell.recipe, idea.against, cell.seed), folder)
    if reference is None:
        return
    ours, theirs = (vars(records.config_of(each)) for each in (document, reference))  # what is newer has its default
    changed = {name for name in ours if ours[name] != theirs[name]}
    extra = changed - {*idea.settings, *recipes.IDEAS[idea.against].settings, *records.NOT_COMPARED}
    if extra:
        yield f"differs in {', '.join(sorted(extra))}"


def test_committed_records() -> None:
    assert len(cells_of(RESULTS)) > 20
    assert list(problems(RESULTS)) == []


@pytest.mark.parametrize("one_split", [False, True])
@pytest.mark.parametrize("recipe", METHODS)
def test_committed_regressions(recipe: str, one_split: bool) -> None:
    """Nothing is left to do for table 4, and a setting that is newer than its records is no reason to refuse them."""
    found = boston_folder(RESULTS, recipe, one_split).read_all(plan_boston(recipe, one_split=one_split))
    assert set(found) == set(METHODS[recipe])
    assert all(record.replicates == list(range(10 if one_split else 20)) for record in found.values())


MLP = Cell("mlp", "mnist", "best")
WHOLE = {
    "code": "0123456",
    "date": "2026-01-02",
    "epochs": 1,
    "best_epoch": 1,
    "curve": {"epoch": [1], "train_nll": [0.1], "validation_nll": [0.1]},
}


def edit(cell: Cell, folder: Path, **changed: Any) -> None:
    path = cell.path(folder)
    document = {**json.loads(path.read_text()), **changed}
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))


def test_a_made_up_record_that_is_whole(put: Any, tmp_path: Path) -> None:
    put(MLP, **WHOLE)
    put(Cell("mlp", "mnist", "best", "jensen"), **WHOLE)
    put(Cell("mlp", "mnist", "best", "short"), **WHOLE)
    assert len(cells_of(tmp_path)) == 3
    assert list(problems(tmp_path)) == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"code": None}, "code is missing"),
        ({"hardware": None}, "hardware is missing"),
        ({"date": None}, "date is missing"),
        ({"curve": None}, "the curve must have 1 to 25 epochs"),
        (
            {"curve": {name: [1.0] * 26 for name in ("epoch", "train_nll", "validation_nll")}},
            "must have 1 to 25 epochs",
        ),
        ({"test": None}, "test must have nll of every mode"),
        ({"test": {"analytic": {"nll": 0.1, "error": 0.1, "ece": 0.1}}}, "test must have nll of every mode"),
        ({"seed": 3}, "seed must be 0, got 3"),
    ],
)
def test_a_made_up_record_that_is_not(put: Any, tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    put(MLP, **WHOLE)
    edit(MLP, tmp_path, **changed)
    assert any(problem in found for found in problems(tmp_path)), list(problems(tmp_path))


def test_made_up_records_of_another_recipe(put: Any, tmp_path: Path) -> None:
    idea, reference = Cell("mlp", "mnist", "best", "jensen"), Cell("mlp", "mnist", "best", "short")
    for cell in (MLP, idea, reference):
        put(cell, **WHOLE)
    config = json.loads(MLP.path(tmp_path).read_text())["config"]
    edit(MLP, tmp_path, config={**config, "lam": 0.5})
    edit(idea, tmp_path, config={**config, "epochs": 20, "bound": "jensen", "shift": 3})
    edit(reference, tmp_path, test=json.loads(MLP.path(tmp_path).read_text())["test"])
    assert sorted(problems(tmp_path)) == [
        "mlp-mnist/best-jensen/seed-0: differs in shift",
        "mlp-mnist/best-short/seed-0: test examples are for recipes, not for ideas",
        "mlp-mnist/best/seed-0: made with lam 0.5, not 0.03",
    ]


def test_recipe_best_is_among_the_tuning_runs() -> None:
    """What docs/ablations.md says was chosen is what the recipe has, but for the number of epochs."""
    chosen = {
        ("mlp-2", "mnist"): "s1l3e-2d0",
        ("mlp-3", "fashion-mnist"): "l0.03",
        ("mlp-3", "kmnist"): "l0.1",
        ("cnn-5", "mnist"): "turned",
        ("cnn-5", "fashion-mnist"): "half-mode",
        ("cnn-5", "kmnist"): "turned-half-mode",
        ("vgg-7", "cifar10"): "l0.01-drawn40",
    }
    for (name, data), run in chosen.items():
        record = tuning.read(RESULTS / f"tuning/{name}.json")
        (only,) = (each for each in record["runs"] if (each["name"], each["data"]) == (run, data))
        tried = {"compile": True, **record["settings"], **only["settings"]}
        best = recipes.settings("best", record["architecture"], data)
        assert without_epochs(best) == without_epochs(tried)


def without_epochs(settings: dict[str, Any]) -> dict[str, Any]:
    """Of drawn networks it counts in which share of the epochs they are trained."""
    rest = {key: value for key, value in settings.items() if key not in ("epochs", "drawn_epochs")}
    return {**rest, "drawn": settings.get("drawn_epochs", 0) / settings["epochs"]}


def round_3() -> dict[tuple[str, str], dict[str, Any]]:
    runs = tuning.read(RESULTS / "tuning/cnn-3.json")["runs"]
    return {(run["data"], run["name"]): run for run in runs}


PREDICTIONS = ("analytic", "mc", "mc_recalibrated")


@pytest.mark.parametrize("data", ["mnist", "fashion-mnist", "kmnist"])
def test_lam_of_the_cnn_was_confirmed(data: str) -> None:
    """What docs/ablations.md says of round 3: by NLL 0.01 to 0 is best, an end below zero worse than one at zero."""
    runs = round_3()
    best = runs[data, "l1e-2d"]["scores"]
    for name in ("l1e-3d", "l3e-3d", "l3e-3n"):
        assert all(best[mode][0] < runs[data, name]["scores"][mode][0] for mode in PREDICTIONS)
    assert runs[data, "l3e-3d"]["scores"]["analytic"][0] < runs[data, "l3e-3n"]["scores"]["analytic"][0]


@pytest.mark.parametrize("data", ["mnist", "fashion-mnist", "kmnist"])
def test_sharpening_gains_nothing_for_the_cnn(data: str) -> None:
    """No posterior of round 3 that was sharpened comes near the one of the recipe as it is."""
    runs = round_3()
    best = runs[data, "l1e-2d"]["scores"]
    for (other, _), run in runs.items():
        if other == data:
            assert set(run["sharpened"]) == {"1.5", "2", "3", "5"}
            assert all(best[mode][0] < scores[mode][0] for scores in run["sharpened"].values() for mode in PREDICTIONS)


@pytest.mark.parametrize(
    ("sharpened", "problem"),
    [
        ([2], "sharpened must be an object"),
        ({"2": {}}, "sharpened 2: scores must have the modes"),
        ({"2": {mode: [1] for mode in records.MODES}}, "sharpened 2: analytic must be NLL and error"),
    ],
)
def test_a_made_up_sharpened_posterior(tmp_path: Path, sharpened: Any, problem: str) -> None:
    document = json.loads((RESULTS / "tuning/cnn-3.json").read_text())
    document["runs"][0]["sharpened"] = sharpened
    (tmp_path / "cnn-3.json").write_text(json.dumps(document))
    with pytest.raises(RecordError, match=problem):
        tuning.read(tmp_path / "cnn-3.json")


def over_seeds(network: tuple[str, str], recipe: str, mode: str, name: str, part: str = "test") -> records.Statistic:
    found = records.figure(records.seeds(*network, recipe, RESULTS), part, mode, name)
    assert found is not None
    return found


RECALIBRATED = ("analytic", "mc_recalibrated", "map_recalibrated")


@pytest.mark.parametrize("data", ["fashion-mnist", "kmnist"])
@pytest.mark.parametrize("mode", RECALIBRATED)
@pytest.mark.parametrize("name", ["nll", "error"])
def test_lam_of_the_cnn_is_the_best_that_was_swept(data: str, mode: str, name: str) -> None:
    """What docs/results.md says of the sweep."""
    network = ("cnn", data)
    own = over_seeds(network, "best", mode, name).mean
    for lam in ("0.001", "0.01", "0.1"):
        assert own < over_seeds(network, f"best-lam-{lam}", mode, name).mean


def test_lam_of_the_cnn_on_mnist() -> None:
    """What docs/results.md says of 0.01 and 0.03, ten seeds of each, on validation examples."""
    ours, theirs = (records.seeds("cnn", "mnist", recipe, RESULTS) for recipe in ("best", "best-lam-0.01"))
    assert [run["seed"] for run in ours] == [run["seed"] for run in theirs] == list(range(10))

    def ahead(mode: str, name: str) -> tuple[str, str]:
        factor = {"nll": 1e3, "error": 100.0}[name]
        pairs = zip(ours, theirs, strict=True)
        gain = [factor * (b["validation"][mode][name] - a["validation"][mode][name]) for a, b in pairs]
        return f"{mean(gain):.2f}", f"{stdev(gain) / 10**0.5:.2f}"

    assert [ahead("analytic", name) for name in ("nll", "error")] == [("0.74", "0.39"), ("0.04", "0.02")]
    assert [ahead("map_recalibrated", name) for name in ("nll", "error")] == [("-0.78", "0.66"), ("-0.04", "0.02")]
    assert [sum(run["validation"]["map"]["error"] < 0.02 for run in runs) for runs in (theirs, ours)] == [4, 1]


def test_how_far_sampled_networks_are_from_the_analytic_pass() -> None:
    """What docs/results.md says of the gap in the recipe `best`: per cent of NLL, by λ."""

    def more(network: tuple[str, str], lams: tuple[str, ...]) -> list[int]:
        ratios = []
        for lam in lams:
            recipe = f"best-lam-{lam}" if lam else "best"
            analytic, mc = (over_seeds(network, recipe, mode, "nll").mean for mode in ("analytic", "mc"))
            ratios.append(round(100 * (mc / analytic - 1)))
        return ratios

    small = ("0.0001", "0.0002", "0.0005", "0.001", "0.002", "0.005", "0.01")
    for data, least, most in (("mnist", 5, 9), ("kmnist", 4, 6)):
        assert (min(more(("mlp", data), small)), max(more(("mlp", data), small))) == (least, most)
    assert more(("mlp", "mnist"), ("", "0.3")) == [14, 32]
    assert more(("mlp", "kmnist"), ("", "0.3")) == [15, 19]
    all_of_them = more(("mlp", "fashion-mnist"), (*small, "", "0.1", "0.3"))
    assert (min(all_of_them), max(all_of_them)) == (1, 3)
    lams = ("0.001", "0.01", "", "0.1")
    assert (min(more(("cnn", "kmnist"), lams)), max(more(("cnn", "kmnist"), lams))) == (1, 8)
    assert (min(more(("cnn", "fashion-mnist"), lams)), max(more(("cnn", "fashion-mnist"), lams))) == (2, 4)


def test_lam_of_the_vgg() -> None:
    """What docs/results.md says of the sweep: 0.003 is better for the most probable network alone, 0.03 for nothing."""
    network = ("vgg", "cifar10")
    for mode in RECALIBRATED:
        own = over_seeds(network, "best", mode, "nll").mean
        assert own < over_seeds(network, "best-lam-0.03", mode, "nll").mean
        assert (own < over_seeds(network, "best-lam-0.003", mode, "nll").mean) == (mode != "map_recalibrated")
