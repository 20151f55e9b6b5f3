"""The words of the generated pages, which lie beside this file as Markdown with names in braces."""

from __future__ import annotations

from importlib import resources


def template(name: str) -> str:
    """The text of a page, to be filled by `str.format`."""
    return resources.files("bqn.reproduction").joinpath("pages", name).read_text(encoding="utf-8")
