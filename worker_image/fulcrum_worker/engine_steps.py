"""Has vLLM say when it last finished a step that computed something.

Its own counters (0.32.0) only move with a step that makes tokens: a long prompt is computed in many steps before its
first token, and none of them shows. Its scheduler's figures come to the API server after every step.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, Final

STEPPED_AT: Final = "fulcrum_engine_stepped_at_seconds"
LONGEST_STEP: Final = "fulcrum_engine_longest_step_seconds"
"""Gauges on vLLM's own `/metrics`."""
_WINDOW_SECONDS: Final = 60.0
"""The longest step is that of the last one to two windows: long enough to remember what a busy machine does to steps,
short enough to forget a hiccup."""


class EngineSteps:
    """The steps of one engine, whose ranks step together: where one hangs, all do.

    Times are CLOCK_MONOTONIC, which all processes of a machine share.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.at = self._window_began_at = clock()
        """When the last step ended that computed something."""
        self._busy_since: dict[int, float] = {}
        """End of the last step of each rank that has running requests."""
        self._longest_seconds = self._before_seconds = 0.0

    def ended(self, *, running: int, made_tokens: bool, rank: int = 0) -> None:
        """A step of a rank has ended, and left so many running requests.

        Without these and without tokens it computed nothing: it looked whether KV has come from a peer.
        """
        now = self._clock()
        if running or made_tokens:
            windows = (now - self._window_began_at) // _WINDOW_SECONDS
            if windows >= 1:
                self._before_seconds = self._longest_seconds if windows < 2 else 0.0
                self._longest_seconds = 0.0
                self._window_began_at += windows * _WINDOW_SECONDS
            if rank in self._busy_since:
                self._longest_seconds = max(self._longest_seconds, now - self._busy_since[rank])
            self.at = now
        if running:
            self._busy_since[rank] = now
        else:
            self._busy_since.pop(rank, None)

    @property
    def longest_seconds(self) -> float:
        """The longest of the recent steps that began where another one ended. It changes with a step only."""
        return max(self._longest_seconds, self._before_seconds)


def publish_steps() -> None:
    """Has this process export its engine's steps. Raises ImportError, AttributeError if vLLM differs.

    Call it before vLLM's server makes its loggers, in the process that does.
    """
    logger: Any = importlib.import_module("vllm.v1.metrics.loggers").PrometheusStatLogger
    record = logger.record
    steps = EngineSteps()

    def record_and_count(self: Any, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        if scheduler_stats is not None:
            made_tokens, rank = iteration_stats is not None, kwargs.get("engine_idx", 0)
            steps.ended(running=scheduler_stats.num_running_reqs, made_tokens=made_tokens, rank=rank)
        record(self, scheduler_stats, iteration_stats, *args, **kwargs)

    logger.record = record_and_count
    _export(steps)


def _export(steps: EngineSteps) -> None:
    from prometheus_client import REGISTRY
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector

    class Steps(Collector):
        def collect(self) -> list[GaugeMetricFamily]:
            return [
                GaugeMetricFamily(STEPPED_AT, "Machine's monotonic clock at the end of the last step.", steps.at),
                GaugeMetricFamily(LONGEST_STEP, "Longest step of the last minutes.", steps.longest_seconds),
            ]

    REGISTRY.register(Steps())
