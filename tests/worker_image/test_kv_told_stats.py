"""What of an engine's tier metrics goes to its API server at a step."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Any

from fulcrum_worker.kv.told_stats import ToldStats


def stats(*, used: float, problem: float = 0.0, stored: int | None = None) -> dict[str, dict[str, Any]]:
    told: dict[str, dict[str, Any]] = {
        "types": {"used": "gauge", "problem": "gauge"},
        "data": {"used": {(): used}, "problem": {("full",): problem}},
    }
    if stored is not None:
        told["types"]["stored"], told["data"]["stored"] = "counter", {(): stored}
    return told


def test_gauges_are_told_once() -> None:
    told = ToldStats()
    assert told.is_news(stats(used=0.0))
    assert not told.is_news(stats(used=0.0))


def test_a_gauge_that_moves_is_told() -> None:
    told = ToldStats()
    told.is_news(stats(used=0.0))
    assert told.is_news(stats(used=0.5))
    assert told.is_news(stats(used=0.5, problem=1.0))
    assert told.is_news(stats(used=0.0))


def test_equal_counts_are_told_each_time() -> None:
    told = ToldStats()
    assert told.is_news(stats(used=0.0, stored=1))
    assert told.is_news(stats(used=0.0, stored=1))
    assert not told.is_news(stats(used=0.0))


def test_vllm_keeps_its_stats_so() -> None:
    spec = util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    metrics = Path(spec.origin).parent / "distributed/kv_transfer/kv_connector/v1/offloading/metrics.py"
    text = metrics.read_text()
    assert 'GAUGE = "gauge"' in text
    assert 'TYPES = "types"' in text
    assert 'DATA = "data"' in text
