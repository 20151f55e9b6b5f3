"""One of several names: the error for any other, with the nearest of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def expected_one_of(what: str, known: Iterable[str], got: object) -> str:
    """The message for a name that is none of those known; it ends with the one that was meant, where that shows."""
    names = list(known)
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(str(got)[:100].lower(), lower, n=1)
    hint = f", did you mean {lower[near[0]]}?" if near else ""
    return f"{what} must be one of {', '.join(names)}, got {got!r:.80}{hint}"
