"""Numbers of bytes for people."""

from __future__ import annotations


def bytes_in_words(count: float) -> str:
    """A number of bytes, short: "12.3 kB"."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
