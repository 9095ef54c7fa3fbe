"""One gateway process with a thousand idle streams, and with clients that do not read: benchmarks/streams.py, small."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
pytestmark = pytest.mark.integration
SAMPLED_SECONDS = 3.0
"""How long memory is looked at while clients do not read."""


@pytest.fixture(scope="module")
def streams() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("streams")


def test_a_thousand_idle_streams_cost_little(streams: ModuleType) -> None:
    with streams.serving(500) as bench:
        streams.idle(bench, bench.sample(), 1000, 1000)
    assert bench.failed == []


@pytest.mark.parametrize("kind", ["mute", "large", "pile"])
def test_who_does_not_read_costs_others_nothing(streams: ModuleType, kind: str) -> None:
    with (
        streams.serving(500) as bench,
        streams.held_load(kind, 60, bench.port) as clients,
    ):
        before = bench.resident_megabytes()
        streams.told(clients)
        began, peak = time.monotonic(), before
        while time.monotonic() - began < SAMPLED_SECONDS:
            assert bench.sample().failures == 0
            peak = max(peak, bench.resident_megabytes())
    # 60 clients ask for 16 MB, 4 MB or 30 MB each.
    assert peak - before < 220  # 96 MB may wait; the rest is what is on its way through
