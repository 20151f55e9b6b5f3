"""Reading JSON from files that may come from anywhere: one object, each key once, finite numbers."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


class _RefusedError(ValueError):
    """JSON, but of a kind that others would read differently."""


def parse_object(text: bytes | str, source: str, failure: type[ValueError] = ValueError) -> dict[str, Any]:
    """The JSON object in `text`.

    Parameters
    ----------
    text : bytes or str
    source : str
        What the text is, for messages.
    failure : type
        What is raised if it is anything else, has a key twice, or holds NaN or infinity.
    """

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise _RefusedError(f"{source}: a key stands twice in one object")
        return result

    def no_constant(constant: str) -> NoReturn:
        raise _RefusedError(f"{source}: {constant} is not a JSON number")

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):  # 1e999 is JSON, but no float
            raise _RefusedError(f"{source}: {digits:.40} is too large for a number")
        return number

    try:
        value = json.loads(text, object_pairs_hook=distinct, parse_constant=no_constant, parse_float=finite)
    except _RefusedError as error:
        raise failure(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise failure(f"{source} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise failure(f"{source} must hold a JSON object, got {type(value).__name__}")
    return value
