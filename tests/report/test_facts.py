from __future__ import annotations

from dataclasses import replace

import pytest

from bqn.deploy import to_bytes
from bqn.deploy.runs import pack_run
from bqn.report.facts import describe, levels_text
from bqn.sizes import bytes_in_words
from tests.report import pages


def facts(material: pages.Material) -> dict[str, str]:
    return dict(describe(material.run, material.dataset, material.result))


def test_a_classifier_is_described() -> None:
    told = facts(pages.full())
    assert told["Data"] == (
        "tiny: 40 training (10\u00a0% of them for validation), 50 test examples, 1 × 6 × 6 pixels, 3 classes"
    )
    assert told["Network"] == "mlp; hidden 8; activations in {−1, 1}; batch norm"
    # 36 × 8 weights, 8 × 3 more and 3 biases, a bit each
    packed = bytes_in_words(len(to_bytes(pack_run(pages.full().run))))
    assert told["Weights"] == f"315 in {{−1, 1}} (1 bit): {packed} packed, 1.3 kB in float32"
    assert told["Training"].startswith("3 of 3 epochs in 4.5 s; weights of epoch 3; batches of 100; learning rate 0.03")
    assert told["Evaluation"] == (
        "50 test examples; 2 sampled networks; seed 0; batch norm recalibrated on 40 training examples"
    )


def test_a_regression_is_described() -> None:
    told = facts(pages.regression())
    assert told["Data"].endswith("4 features, regression")
    assert told["Network"].startswith("regressor; hidden 6")
    assert "recalibrated" not in told["Evaluation"]


def test_an_early_stop_is_told() -> None:
    material = pages.full()
    run = replace(material.run, history=replace(material.run.history, stopped_early=True))
    assert "stopped early" in facts(replace(material, run=run))["Training"]


@pytest.mark.parametrize(
    ("levels", "text"),
    [((-1.0, 1.0), "{−1, 1}"), ((-0.5, 0.0, 0.5), "{−0.5, 0, 0.5}"), (tuple(map(float, range(9))), "{0, 1, …, 8}")],
)
def test_levels_are_short(levels: tuple[float, ...], text: str) -> None:
    assert levels_text(levels) == text


def test_the_name_of_a_file_is_told_without_its_place() -> None:
    material = pages.classification(name="/home/someone/secret/birds.npz", outside=False, corruptions=False)
    assert facts(material)["Data"].startswith("birds.npz:")
    assert material.page().title == "birds.npz · mlp"
