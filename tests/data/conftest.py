"""Fixtures of the data tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.data.server import Site, serving


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A web server on this machine, reached without a proxy."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as running:
        yield running
