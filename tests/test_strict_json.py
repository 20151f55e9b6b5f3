"""JSON that two readers could understand differently is refused."""

import pytest

from bqn.strict_json import parse_object


class OwnError(ValueError):
    pass


def test_an_object():
    assert parse_object('{"a": [1, 2.5, null], "b": {"c": "d"}}', "text") == {"a": [1, 2.5, None], "b": {"c": "d"}}
    assert parse_object('{"a": 1e308, "b": 1e-999}', "text") == {"a": 1e308, "b": 0.0}
    assert parse_object("{}".encode("utf-16"), "text") == {}  # as the standard library reads it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "text: a key stands twice in one object"),
        ('{"b": {"a": 1, "a": 1}}', "text: a key stands twice in one object"),
        ('{"a": NaN}', "text: NaN is not a JSON number"),
        ('{"a": -Infinity}', "text: -Infinity is not a JSON number"),
        ('{"a": 1e999}', "text: 1e999 is too large for a number"),
        ('{"a": [{"b": -1.5e400}]}', "text: -1.5e400 is too large for a number"),
        ("[1]", "text must hold a JSON object, got list"),
        ("3", "text must hold a JSON object, got int"),
        ("", "text is not valid JSON"),
        ('{"a": 1} x', "text is not valid JSON"),
        (b"\xff\xff", "text is not valid JSON"),
        ("[" * 100_000, "text is not valid JSON"),
    ],
)
@pytest.mark.parametrize("failure", [ValueError, OwnError])
def test_anything_else(text, message, failure):
    with pytest.raises(failure, match=r"^text") as caught:
        parse_object(text, "text", failure)
    assert type(caught.value) is failure
    assert str(caught.value).startswith(message)
