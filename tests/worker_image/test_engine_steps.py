"""Steps of an engine, as vLLM's loggers see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fulcrum.api.worker import EngineProgress
from fulcrum_worker import engine_steps
from fulcrum_worker.engine_metrics import EngineMetrics, parse_engine_metrics
from fulcrum_worker.engine_steps import LONGEST_STEP, STEPPED_AT, EngineSteps


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_step_without_tokens_counts_while_requests_run() -> None:
    """A part of a long prompt makes no token; a look for KV that has not come computes nothing."""
    clock = Clock()
    steps = EngineSteps(clock)
    for now, running, made_tokens, at in (
        (101.0, 1, False, 101.0),
        (105.0, 1, False, 105.0),
        (106.0, 0, True, 106.0),
        (107.0, 0, False, 106.0),
        (200.0, 0, False, 106.0),
    ):
        clock.now = now
        steps.ended(running=running, made_tokens=made_tokens)
        assert steps.at == at
    assert steps.longest_seconds == 4.0


def test_the_longest_step_is_a_recent_one_and_idle_time_is_none() -> None:
    clock = Clock()
    steps = EngineSteps(clock)

    def ended(now: float, running: int) -> None:
        clock.now = now
        steps.ended(running=running, made_tokens=True)

    ended(101.0, 1)
    ended(109.0, 0)
    ended(150.0, 1)
    ended(151.0, 1)
    assert steps.longest_seconds == 8.0
    ended(165.0 + 1.0, 0)
    assert steps.longest_seconds == 15.0, "of this window, and the one before"
    ended(400.0, 1)
    ended(400.5, 0)
    assert steps.longest_seconds == 0.5


def test_a_long_step_is_seen_beside_the_steps_of_another_rank() -> None:
    clock = Clock()
    steps = EngineSteps(clock)
    for now, rank, running in ((101.0, 0, 1), (102.0, 1, 2), (103.0, 1, 0), (109.0, 0, 0), (120.0, 1, 1)):
        clock.now = now
        steps.ended(running=running, made_tokens=True, rank=rank)
    assert (steps.at, steps.longest_seconds) == (120.0, 8.0)


def test_the_report_tells_how_long_ago_the_last_step_was() -> None:
    text = (
        f"vllm:iteration_tokens_total_count 4.0\nvllm:prompt_tokens_total 30.0\nvllm:generation_tokens_total 3.0\n"
        f"{STEPPED_AT} 1234.5\n{LONGEST_STEP} 2.5\n"
    )
    read = parse_engine_metrics(text)
    assert read.progress_at(1240.0) == EngineProgress(steps=4, tokens=33, still_seconds=5.5, longest_step_seconds=2.5)
    assert read == parse_engine_metrics(text), "what stands still compares equal, whenever it is read"
    assert EngineMetrics(progress=EngineProgress(steps=1, tokens=2)).progress_at(9.0) == EngineProgress(
        steps=1, tokens=2
    )


def test_vllms_logger_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class PrometheusStatLogger:
        def record(self, *args: Any, **kwargs: Any) -> None:
            seen.append((args, kwargs))

    exported: list[EngineSteps] = []
    loggers = SimpleNamespace(PrometheusStatLogger=PrometheusStatLogger)
    monkeypatch.setattr(engine_steps.importlib, "import_module", lambda _name: loggers)
    monkeypatch.setattr(engine_steps, "_export", exported.append)
    engine_steps.publish_steps()
    (steps,) = exported
    began = steps.at
    logger, stats = PrometheusStatLogger(), SimpleNamespace(num_running_reqs=1)
    logger.record(None, None, engine_idx=0)
    assert steps.at == began
    logger.record(stats, None, mm_cache_stats=None, engine_idx=0)
    assert steps.at > began
    assert seen == [((None, None), {"engine_idx": 0}), ((stats, None), {"mm_cache_stats": None, "engine_idx": 0})]
