"""Where a cluster's load is read: its Prometheus where the spec names one, else its gateways."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from fulcrum.api.types import BalanceMode, InferenceClusterSpec
from fulcrum.balance.outlook import traffic_window_seconds
from fulcrum.telemetry.prometheus_source import PrometheusSource
from fulcrum.telemetry.scrape_source import ScrapeSource
from fulcrum.telemetry.source import TelemetrySource

TICK_SECONDS: Final = 2.0
"""How often a cluster is looked at whose ratio is decided here."""
FORECASTS_AT_ONCE: Final = 1
"""A fit takes a whole core, and what Python does with its warnings meanwhile holds for all threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often traffic is read, and over which window."""

    every_seconds: float
    window_seconds: float


_SHOWN_WINDOW_SECONDS: Final = 60.0
# A scrape must follow the one before within the source's grace; nobody decides by it, so it may be rare.
_SCRAPED_TO_SHOW: Final = Pace(every_seconds=5.0, window_seconds=_SHOWN_WINDOW_SECONDS)
_QUERIED_TO_SHOW: Final = Pace(every_seconds=15.0, window_seconds=_SHOWN_WINDOW_SECONDS)
QUERIES_EVERY_SECONDS: Final = 5.0


def decides(spec: InferenceClusterSpec) -> bool:
    """Report whether the balance reads load at all: in Manual it is only shown."""
    return spec.balance.mode is not BalanceMode.MANUAL


def pace_of(spec: InferenceClusterSpec) -> Pace:
    """Return how often the traffic of a cluster is read."""
    queried = spec.metrics.prometheus is not None
    if not decides(spec):
        return _QUERIED_TO_SHOW if queried else _SCRAPED_TO_SHOW
    return Pace(
        every_seconds=QUERIES_EVERY_SECONDS if queried else TICK_SECONDS, window_seconds=traffic_window_seconds(spec)
    )


def name_of(spec: InferenceClusterSpec) -> str:
    """Return the kind of source, for metric labels."""
    return "prometheus" if spec.metrics.prometheus is not None else "scrape"


class Sources:
    """The sources of all clusters. Use as an async context manager."""

    def __init__(self) -> None:
        self.scrape = ScrapeSource()
        self.forecasts = asyncio.Semaphore(FORECASTS_AT_ONCE)
        """Fits take whole cores; reconciles must not wait for the interpreter."""
        self._prometheus: dict[str, PrometheusSource] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.scrape)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def of(self, spec: InferenceClusterSpec) -> TelemetrySource:
        """Return the source that a spec asks for."""
        if spec.metrics.prometheus is None:
            return self.scrape
        url = spec.metrics.prometheus.url
        if url not in self._prometheus:
            self._prometheus[url] = await self._stack.enter_async_context(PrometheusSource(url))
        return self._prometheus[url]
