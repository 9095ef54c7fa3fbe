"""Collectors for tests of traces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.gateway.tracing.collector import Collector, collecting

from fulcrum.gateway.tracing import export


@pytest.fixture(autouse=True)
def spans_leave_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_EVERY_MILLISECONDS", 50.0)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found
