"""One gateway process with a thousand idle streams, and with clients that do not read: benchmarks/streams.py, small."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

STREAMS = Path(__file__).parents[2] / "benchmarks" / "streams.py"
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def streams() -> ModuleType:
    spec = importlib.util.spec_from_file_location("streams_benchmark", STREAMS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_thousand_idle_streams_cost_little(streams: ModuleType) -> None:
    with streams.serving(500) as bench:
        streams.idle(bench, bench.sample(), 1000, 1000)
    assert bench.failed == []


@pytest.mark.parametrize("kind", ["mute", "large", "pile"])
def test_who_does_not_read_costs_others_nothing(streams: ModuleType, kind: str) -> None:
    with (
        streams.serving(500) as bench,
        streams.started(str(streams.HERE / "held_load.py"), kind, "60", str(bench.port)) as clients,
    ):
        before = bench.resident_megabytes()
        streams.told(clients)
        deadline = time.monotonic() + 3
        peak = before
        while time.monotonic() < deadline:
            assert bench.sample().failures == 0
            peak = max(peak, bench.resident_megabytes())
    # 60 clients ask for 16 MB, 4 MB or 30 MB each.
    assert peak - before < 220  # 96 MB may wait; the rest is what is on its way through
