"""Figures within the words of the pages, by reference to records, so that they cannot say what the records do not.

`[[ARCHITECTURE-DATA/RECIPE PART MODE FORM]]`, for example `[[mlp-kmnist/best validation analytic mean]]`, stands for
NLL and error of a mode; RECIPE may be one of its variants. FORM is

- the number of a seed;
- `mean`, with the standard deviation over seeds, or `brief`, without;
- `nll` or `error`, for the lowest and the highest over seeds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bqn.reproduction import records, tables
from bqn.reproduction.records import MODES, RecordError

_REFERENCE = re.compile(r"\[\[(?P<network>[a-z0-9-]+)/(?P<recipe>\S+) (?P<part>\S+) (?P<mode>\S+) (?P<form>\S+)\]\]")
_PARTS = ("validation", "test")
_FORMS = ("mean", "brief", "nll", "error")


def quoted(text: str, out: Path) -> str:
    """The text with its figures; where there is no such record it says so."""
    return _REFERENCE.sub(lambda match: _figure(out, **match.groupdict()), text)


def without_record(text: str, out: Path) -> int:
    """How many of the figures in a text have no record."""
    return sum(tables.MISSING in quoted(match[0], out) for match in _REFERENCE.finditer(text))


def _figure(out: Path, network: str, recipe: str, part: str, mode: str, form: str) -> str:
    known = (*MODES, *records.DISTILLED_MODES)
    if part not in _PARTS or mode not in known or not (form in _FORMS or form.isdecimal()):
        raise RecordError(f"a page quotes {network}/{recipe} {part} {mode} {form}, which cannot be")
    architecture, _, data = network.partition("-")
    documents = records.seeds(architecture, data, recipe, out)
    if form.isdecimal():
        documents = [row for row in documents if row["seed"] == int(form)]
    found = {name: records.figure(documents, part, mode, name) for name in ("nll", "error")}
    if form in found:
        return _range(documents, part, mode, form)
    if form == "brief":
        found = {name: each and each._replace(std=None) for name, each in found.items()}
    return " / ".join(tables.shown(each, name) for name, each in found.items())


def _range(documents: list[dict[str, Any]], part: str, mode: str, name: str) -> str:
    each = [records.figure([row], part, mode, name) for row in documents]
    values = sorted((one for one in each if one is not None), key=lambda one: one.mean)
    if not values:
        return tables.MISSING
    return f"{tables.shown(values[0], name)} to {tables.shown(values[-1], name)}"
