from __future__ import annotations

from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bqn.report.markup import Markup, escape, join, number, shorten, tag
from tests.report.pages import HOSTILE, Reader


def test_a_tag_has_children_and_attributes() -> None:
    made = tag("p", "one ", tag("b", "two"), ["a", "b"], None, class_="x", data_y=1.5, hidden=True, id=None, lang=False)
    assert made == '<p class="x" data-y="1.5" hidden>one <b>two</b>ab</p>'


def test_void_elements_are_not_closed() -> None:
    assert tag("img", src="data:,") == '<img src="data:,">'


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(text: str) -> None:
    page = Reader(tag("p", text, title=text))
    assert page.names() == {"p"}
    assert set(page.all("p")[0]) == {"title"}


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_written_and_read_back(text: str) -> None:
    made = escape(text)
    made.encode()
    assert not set("<>\"'") & set(made)
    kept = [character for character in unescape(made) if character != "\ufffd"]
    assert kept == [character for character in unescape(made) if character in text and character != "\ufffd"]


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x85", "\u202e", "\u2066", "\udcff"])
def test_characters_that_cannot_be_shown_are_replaced(character: str) -> None:
    assert escape(f"a{character}b") == "a\ufffdb"


def test_letters_of_all_scripts_stay() -> None:
    assert escape("Größe 猫 ελ\n\t🐱") == "Größe 猫 ελ\n\t🐱"


def test_markup_is_not_escaped_twice() -> None:
    once = escape("<")
    assert escape(once) is once
    assert join([once, "<"]) == Markup("&lt;&lt;")


def test_numbers_are_short() -> None:
    assert [number(value) for value in (1.0, 0.125, -0.001, 12.3456)] == ["1", "0.12", "0", "12.35"]


def test_shorten_marks_what_is_missing() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abc defg", 5) == "abc…"
