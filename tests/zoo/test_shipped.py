"""The entries that come with the package: whole, small, as good as their cards say, and on the page."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bqn
from bqn.data import available, load
from bqn.deploy import network
from bqn.deploy.inspection import describe
from bqn.zoo import PRETRAINED, page
from bqn.zoo.build import MOST_BYTES
from bqn.zoo.card import SCORES

ROOT = Path(__file__).resolve().parent.parent.parent
MOST_BYTES_TOGETHER = 11_000_000
BUNDLED = ("digits",)


@pytest.fixture(params=bqn.pretrained())
def card(request):
    return PRETRAINED.card(request.param)


def test_there_are_some_and_they_are_small():
    cards = PRETRAINED.cards()
    assert cards
    assert sum(card.size for card in cards) <= MOST_BYTES_TOGETHER
    known = {f"{card.name}.{suffix}" for card in cards for suffix in ("bqn", "json")}
    assert {path.name for path in PRETRAINED.folder.iterdir()} == known


def test_the_card_describes_the_file(card):
    model = bqn.load_pretrained(card.name)
    facts = describe(model.packed)
    assert card.size == facts["file_bytes"] == (PRETRAINED.folder / f"{card.name}.bqn").stat().st_size <= MOST_BYTES
    assert (card.samples, card.weights) == (model.members, facts["weights"])
    about = model.packed.about
    assert (card.data, card.architecture, card.mode) == (about["data"], about["model"], about["mode"])
    assert card.recalibrated == about["recalibrated"]
    assert card.distilled == bool(about.get("distilled"))  # files of before there was distillation do not say
    info = {info.name: info for info in available()}[card.data]
    assert (card.data_size, card.data_licence, card.data_source) == (info.size, info.licence, info.source)
    assert card.use
    assert card.limits


def test_it_predicts(card):
    model = bqn.load_pretrained(card.name)
    x = np.random.default_rng(0).integers(0, 256, (3, *model.input_shape), dtype=np.uint8)
    probs = model(x)
    assert probs.shape == (3, len(model.classes))
    np.testing.assert_allclose(probs.sum(-1), 1)


@pytest.mark.parametrize("name", [name for name in bqn.pretrained() if PRETRAINED.card(name).data in BUNDLED])
def test_the_scores_are_those_of_the_card(name):
    card = PRETRAINED.card(name)
    test = load(card.data, split=card.training["split"]).test
    scores = network.evaluate(bqn.load_pretrained(name), test)
    assert {score: scores[score] for score in SCORES} == {score: card.test[score] for score in SCORES}
    assert len(test) == card.test["examples"]


def test_no_torch_is_needed():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy, bqn\n"
        "model = bqn.load_pretrained(bqn.pretrained()[0])\n"
        "print(model(numpy.zeros((2, *model.input_shape), numpy.uint8)).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("(2, ")


def test_the_page_is_that_of_the_cards():
    assert (ROOT / "docs/zoo.md").read_text(encoding="utf-8") == page.render(PRETRAINED.cards())


def test_the_page_is_printed():
    done = subprocess.run([sys.executable, "-m", "bqn.zoo.page"], capture_output=True, text=True, check=True)
    assert done.stdout == page.render(PRETRAINED.cards())


def test_an_installation_has_them(tmp_path):
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run([*command, "build_py", "--build-lib", str(tmp_path / "lib")], cwd=ROOT, check=True)
    installed = {path.name for path in (tmp_path / "lib/bqn/zoo/models").iterdir()}
    assert installed == {path.name for path in PRETRAINED.folder.iterdir()}
