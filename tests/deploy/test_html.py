"""The HTML page in a real browser: the integers of Python, answers to strokes and pictures, at any width, offline."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import bqn
from bqn.deploy import Packed, PackedError, PackedModel, UnpackableError, from_bytes, pack_in_memory, to_bytes
from bqn.deploy.html import MOST_FIELDS, to_html
from bqn.report.png import encode
from tests.deploy.networks import disturb, image_networks, packed_model, pixels, sampled
from tests.deploy.programs import random_program
from tests.report.browser import Browser, start_browser

# More cases than CI has time for: BQN_FUZZ=2000 pytest tests/deploy/test_html.py
CASES = int(os.environ.get("BQN_FUZZ", "20"))
PHONE, DESKTOP = 360, 1280
ANSWER = "document.getElementById('headline').textContent"
SETTLED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
SEEN = """(() => {
  const canvas = document.getElementById("preview");
  return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
})()"""
# Elements that leave the page, but for what scrolls by itself.
ESCAPED = """[...document.body.querySelectorAll("*")]
  .filter(element => element.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .filter(element => !element.closest(".scroll")).map(element => element.outerHTML)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with start_browser() as started:
        yield started


@pytest.fixture
def blank(browser: Browser, folder: Path) -> Browser:
    """With some page, for those who bring their own networks."""
    show(browser, folder, packed_model(bqn.models.mlp(4, 2, hidden=()).mode(), input_shape=(1, 2, 2)))
    return browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def show(browser: Browser, folder: Path, model: PackedModel, width: int = DESKTOP, **options: Any) -> Path:
    path = folder / "page.html"
    path.write_text(to_html(model), encoding="utf-8")
    browser.open(path, width, **options)
    return path


def ask(browser: Browser, x: np.ndarray, verb: str) -> np.ndarray:
    """What the page says about examples `(N, ...)`."""
    kind = "Uint8Array" if x.dtype == np.uint8 else "Float64Array"
    rows = json.dumps(x.reshape(len(x), -1).tolist())
    return np.array(json.loads(browser.evaluate(f"JSON.stringify({rows}.map(x => bqn.{verb}({kind}.from(x))))")))


def settle(browser: Browser) -> None:
    browser.call("Runtime.evaluate", expression=SETTLED, awaitPromise=True)


def draw(browser: Browser, *strokes: list[tuple[float, float]]) -> None:
    """Move the mouse over the pad, in units of its width."""
    rectangle = "(r => [r.left, r.top, r.width])(document.getElementById('ink').getBoundingClientRect())"
    left, top, width = browser.evaluate(rectangle)

    def mouse(kind: str, point: tuple[float, float], buttons: int) -> None:
        x, y = left + point[0] * width, top + point[1] * width
        browser.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1
        )  # fmt: skip

    for stroke in strokes:
        mouse("mousePressed", stroke[0], 1)
        for point in stroke[1:]:
            mouse("mouseMoved", point, 1)
        mouse("mouseReleased", stroke[-1], 0)
    settle(browser)


def pick(browser: Browser, path: Path) -> None:
    """Choose a picture file, and wait until it is shown."""
    document = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=document, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)
    arrived = "document.body.classList.contains('empty') && !document.getElementById('trouble').textContent"
    waiting = f"new Promise(done => {{ const look = () => {arrived} ? setTimeout(look, 20) : done(); look(); }})"
    browser.call("Runtime.evaluate", expression=waiting, awaitPromise=True)
    settle(browser)


# --- the same numbers -----------------------------------------------------------------------------------------------


def mlp() -> tuple[bqn.Network, tuple[int, ...]]:
    return bqn.models.mlp(14 * 14, 10, hidden=(33, 20)), (1, 14, 14)


def cnn(pool_first: bool) -> tuple[bqn.Network, tuple[int, ...]]:
    return bqn.models.cnn((1, 12, 12), 10, channels=(6, 33), hidden=20, pool_first=pool_first), (1, 12, 12)


def quaternary() -> tuple[bqn.Network, tuple[int, ...]]:
    net = bqn.models.cnn((3, 9, 11), 4, (5, 7), 12, levels=bqn.QUATERNARY, activations=bqn.TERNARY)
    return net, (3, 9, 11)


def residual() -> tuple[bqn.Network, tuple[int, ...]]:
    return bqn.models.resnet((3, 8, 8), 5, channels=(8, 12), blocks=1), (3, 8, 8)


NETWORKS = {
    "mlp": mlp,
    "pooling first": lambda: cnn(True),
    "pooling last": lambda: cnn(False),
    "levels and colour": quaternary,
    "residual": residual,
}


@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_numbers_are_those_of_python(browser: Browser, folder: Path, name: str, members: int) -> None:
    net, shape = NETWORKS[name]()
    networks = sampled(disturb(net, shape), members) if members > 1 else disturb(net, shape).mode()
    model = packed_model(networks, input_shape=shape)
    x = pixels(100, shape).numpy()
    path = show(browser, folder, model)
    np.testing.assert_array_equal(ask(browser, x, "logits"), np.stack(model.logits(x), 1))
    np.testing.assert_allclose(ask(browser, x, "probabilities"), model(x), atol=1e-12)
    doubts = browser.evaluate(f"bqn.predict({x[5].reshape(-1).tolist()}).uncertainty")
    expected = model.uncertainty(x[5:6])
    assert [doubts[part] for part in expected._fields] == pytest.approx(np.concatenate(expected).tolist(), abs=1e-9)
    assert browser.complaints() == []
    assert browser.requests() == [path.resolve().as_uri()]


def assert_same_integers(browser: Browser, packed: Packed, x: np.ndarray) -> None:
    """The page must compute what Python does with a network that is not its own."""
    content, rows = base64.b64encode(to_bytes(packed)).decode(), json.dumps(x.reshape(len(x), -1).tolist())
    line = f"(model => {rows}.map(x => model.logits(Uint8Array.from(x)).map(each => [...each])))(bqn.load('{content}'))"
    given = browser.evaluate(line)
    np.testing.assert_array_equal(given, np.stack(PackedModel(packed, "numpy").logits(x), 1))


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=image_networks(), seed=st.integers(0, 99))
def test_any_network(blank: Browser, drawn: tuple[bqn.Network, tuple[int, ...]], seed: int) -> None:
    net, shape = drawn
    try:
        packed = pack_in_memory(sampled(disturb(net, shape, seed), 2, seed), input_shape=shape)
    except UnpackableError:
        reject()
    assert_same_integers(blank, packed, pixels(6, shape, seed).numpy())


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6))
def test_any_program(blank: Browser, seed: int) -> None:
    packed = random_program(seed)
    shape = packed.program.input.shape
    assert shape is not None
    assert_same_integers(blank, packed, pixels(4, shape, seed).numpy())


def test_features_are_typed_in(browser: Browser, folder: Path) -> None:
    net = disturb(bqn.models.mlp(5, 3, hidden=(17,), levels=bqn.TERNARY), (5,))
    scale = (torch.tensor([0.1, -2.0, 300.0, 0.0, 7.0]), torch.tensor([1.5, 0.2, 90.0, 1e-3, 3.0]))
    model = packed_model(sampled(net, 3), inputs="features", input_shape=(5,), input_scale=scale, classes=list("abc"))
    generator = np.random.default_rng(0)
    x = (scale[0].numpy() + scale[1].numpy() * generator.normal(size=(100, 5))).astype(np.float64)
    show(browser, folder, model)
    np.testing.assert_array_equal(ask(browser, x, "logits"), np.stack(model.logits(x), 1))
    np.testing.assert_allclose(ask(browser, x, "probabilities"), model(x), atol=1e-12)
    first = "document.querySelector('#numbers input')"
    assert browser.evaluate(ANSWER) != "Waiting for input"
    for typed, trouble in (("x", "feature 1: “x” is not a number."), ("1e9", "number 1 is too far"), ("1.5", "")):
        browser.evaluate(f"{first}.value = '{typed}'; {first}.dispatchEvent(new Event('input', {{bubbles: true}}))")
        settle(browser)
        assert browser.evaluate("document.getElementById('trouble').textContent").startswith(trouble)
        assert (browser.evaluate(ANSWER) == "Waiting for input") == bool(trouble)
    assert browser.complaints() == []


def test_a_regression(browser: Browser, folder: Path) -> None:
    net = bqn.models.regressor(4, hidden=(9,))
    target = (torch.tensor([20.0]), torch.tensor([5.0]))
    model = packed_model(sampled(net.eval(), 3), input_shape=(4,), target_scale=target)
    x = np.random.default_rng(1).normal(size=(20, 4))
    show(browser, folder, model)
    np.testing.assert_array_equal(ask(browser, x, "logits"), np.stack(model.logits(x), 1))
    moments = model(x)
    rows = json.dumps(x.tolist())
    given = browser.evaluate(f"{rows}.map(x => bqn.predict(x).moments[0]).map(m => [m.mean, m.var])")
    np.testing.assert_allclose(given, np.concatenate([moments.mean, moments.var], 1), rtol=1e-9)
    assert re.fullmatch(r"−?[\d.]+ ± [\d.]+", browser.evaluate(ANSWER))
    assert browser.complaints() == []


# --- what is drawn and picked ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bars() -> PackedModel:
    """Networks that tell upright lines from level ones in 28 × 28 pixels, trained on crude pictures of both."""
    generator = torch.Generator().manual_seed(0)
    net = bqn.models.mlp(28 * 28, 2, hidden=(16,))
    x = torch.zeros(200, 1, 28, 28, dtype=torch.uint8)
    y = torch.arange(200) % 2
    for image, level in zip(x[:, 0], y, strict=True):
        middle, width = (int(torch.randint(low, high, (1,), generator=generator)) for low, high in ((11, 16), (2, 5)))
        (image.T if level else image)[4:24, middle : middle + width] = 255
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for _ in range(30):
        optimizer.zero_grad()
        (-net.elbo(bqn.data.to_input(x), y, len(x), 1e-4)).backward()
        optimizer.step()
    networks = sampled(net.eval(), 5)
    return packed_model(networks, input_shape=(1, 28, 28), classes=["upright", "level"])


UPRIGHT, LEVEL = [(0.4, 0.2 + 0.05 * k) for k in range(13)], [(0.2 + 0.05 * k, 0.7) for k in range(13)]


def test_a_stroke_is_answered(browser: Browser, folder: Path, bars: PackedModel) -> None:
    path = show(browser, folder, bars)
    assert browser.evaluate(ANSWER) == "Waiting for a stroke"
    for stroke, name in ((UPRIGHT, "upright"), (LEVEL, "level")):
        draw(browser, stroke)
        assert browser.evaluate(ANSWER) in (f"Sure: {name}", f"Quite sure: {name}")
        assert browser.evaluate("document.querySelector('#bars .best .name').textContent") == name
        votes = browser.evaluate("[...document.querySelectorAll('#votes li')].map(each => each.textContent)")
        assert len(votes) == 5
        assert votes.count(name) >= 3
        assert re.fullmatch(r"[\d.]+ ms", browser.evaluate("document.getElementById('fact-time').textContent"))
        browser.evaluate("document.getElementById('clear').click()")
        settle(browser)
        assert browser.evaluate(ANSWER) == "Waiting for a stroke"
    assert browser.complaints() == []
    assert browser.requests() == [path.resolve().as_uri()]


def test_undo_takes_back_the_last_stroke(browser: Browser, folder: Path, bars: PackedModel) -> None:
    show(browser, folder, bars)
    draw(browser, UPRIGHT)
    before = browser.evaluate(SEEN)
    draw(browser, LEVEL)
    assert browser.evaluate(SEEN) != before
    browser.evaluate("document.getElementById('undo').click()")
    settle(browser)
    assert browser.evaluate(SEEN) == before


@pytest.mark.parametrize(("size", "at"), [(0.2, (0.1, 0.1)), (0.6, (0.2, 0.3))])
def test_strokes_are_framed_like_digits(
    browser: Browser, folder: Path, bars: PackedModel, size: float, at: tuple[float, float]
) -> None:
    """In a box of 20 pixels, its centre of mass in the middle, wherever and however large it was drawn."""
    show(browser, folder, bars)
    corner = [(at[0], at[1]), (at[0], at[1] + size), (at[0] + 0.6 * size, at[1] + size)]
    draw(browser, corner)
    image = np.array(browser.evaluate(SEEN)).reshape(28, 28, 4)[..., 0]
    rows, columns = np.nonzero(image > 127)
    assert 19 <= np.ptp(rows) + 1 <= 21
    assert 11 <= np.ptp(columns) + 1 <= 14
    middles = np.arange(28) + 0.5
    assert (image.sum(1) @ middles) / image.sum() == pytest.approx(14, abs=0.3)
    assert (image.sum(0) @ middles) / image.sum() == pytest.approx(14, abs=0.3)
    edges = image[(image > 20) & (image < 235)]
    assert len(edges) > 20, "nothing is anti-aliased"


def test_a_picture_is_cut_out_and_framed(browser: Browser, folder: Path, bars: PackedModel) -> None:
    """Dark ink on light paper, off centre, in colour: framed as if it had been drawn."""
    photo = np.full((150, 200, 3), 230, np.uint8)
    photo[30:90, 140:146] = (20, 30, 90)
    (folder / "photo.png").write_bytes(encode(photo))
    show(browser, folder, bars)
    pick(browser, folder / "photo.png")
    image = np.array(browser.evaluate(SEEN)).reshape(28, 28, 4)[..., 0]
    rows, columns = np.nonzero(image > 127)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (4, 23, 13, 14)
    assert browser.evaluate(ANSWER).endswith("ure: upright")


def test_a_picture_of_the_right_size_is_taken_as_it_is(browser: Browser, folder: Path) -> None:
    net, shape = quaternary()
    model = packed_model(disturb(net, shape).mode(), input_shape=shape)
    picture = pixels(3, shape, 4)[2].numpy()
    (folder / "exact.png").write_bytes(encode(np.ascontiguousarray(picture.transpose(1, 2, 0))))
    (folder / "text.png").write_text("no picture")
    show(browser, folder, model)
    pick(browser, folder / "text.png")
    assert "text.png is no picture" in browser.evaluate("document.getElementById('trouble').textContent")
    browser.evaluate("document.getElementById('clear').click()")
    pick(browser, folder / "exact.png")
    seen = np.array(browser.evaluate(SEEN)).reshape(*shape[1:], 4)[..., :3].transpose(2, 0, 1)
    np.testing.assert_array_equal(seen, picture)
    shown = browser.evaluate("[...document.querySelectorAll('#bars b')].map(each => parseFloat(each.textContent))")
    np.testing.assert_allclose(shown, 100 * model(picture[None])[0], atol=0.51)
    assert browser.complaints() == []


# --- how it looks, and what it refuses ------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [PHONE, 768, DESKTOP])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_at_any_width(browser: Browser, folder: Path, width: int, dark: bool) -> None:
    net = disturb(bqn.models.mlp(64, 30, hidden=(8,)), (1, 8, 8))
    names = [f"<b>&{'Donaudampfschifffahrtsgesellschaft' * 3}</script>{n}" for n in range(30)]
    model = packed_model(sampled(net, 40), input_shape=(1, 8, 8), classes=names, about={"data": "</script><i>x"})
    show(browser, folder, model, width, dark=dark)
    browser.evaluate("document.querySelector('details').open = true")
    draw(browser, UPRIGHT)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(ESCAPED) == []
    assert browser.evaluate("document.querySelectorAll('#bars li').length") == 10
    assert browser.evaluate("document.querySelector('#bars .best .name').textContent") in names
    assert browser.complaints() == []
    assert len(browser.screenshot()) > 10_000


def test_a_finger_draws(browser: Browser, folder: Path, bars: PackedModel) -> None:
    show(browser, folder, bars, PHONE)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    rectangle = "(r => [r.left, r.top, r.width])(document.getElementById('ink').getBoundingClientRect())"
    left, top, width = browser.evaluate(rectangle)
    for k, (x, y) in enumerate(UPRIGHT):
        point = {"x": left + x * width, "y": top + y * width}
        browser.call("Input.dispatchTouchEvent", type="touchMove" if k else "touchStart", touchPoints=[point])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    settle(browser)
    assert browser.evaluate(ANSWER).endswith("ure: upright")


def test_the_page_has_a_title_and_the_file(folder: Path, bars: PackedModel) -> None:
    path = folder / "bars.bqn"
    path.write_bytes(to_bytes(bars.packed))
    page = to_html(path, title="Bars <&> lines")
    assert page == to_html(bars.packed, "Bars <&> lines")
    assert "<title>Bars &lt;&amp;&gt; lines</title>" in page
    assert "{{" not in page
    assert "default-src 'none'" in page
    stored = re.search('id="packed">([^<]+)<', page)
    assert stored is not None
    assert from_bytes(base64.b64decode(stored[1])).program == bars.program


def test_what_nobody_can_enter_is_refused() -> None:
    net = disturb(bqn.models.mlp(math.prod((2, 12, 12)), 3, hidden=(4,)), (2, 12, 12)).mode()
    with pytest.raises(PackedError, match=r"input: a page takes images of one or three channels.*\(2, 12, 12\)"):
        to_html(pack_in_memory(net, input_shape=(2, 12, 12)))
    with pytest.raises(PackedError, match=r"does not say the shape.*pack the network with input_shape"):
        to_html(pack_in_memory(net))
    assert MOST_FIELDS < 2 * 12 * 12
    small = disturb(bqn.models.mlp(18, 3, hidden=(4,)), (2, 3, 3)).mode()
    assert "pixel 18" in to_html(pack_in_memory(small, input_shape=(2, 3, 3)))
