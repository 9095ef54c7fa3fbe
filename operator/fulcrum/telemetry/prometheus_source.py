"""Load from a Prometheus server that scrapes the gateways: histories of hours that outlive this process."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final, TypeVar

from fulcrum.forecast.series import LoadSeries
from fulcrum.load.traffic import Traffic
from fulcrum.telemetry.counts import make_traffic
from fulcrum.telemetry.prometheus_access import PrometheusAccess
from fulcrum.telemetry.prometheus_calls import PrometheusCalls
from fulcrum.telemetry.prometheus_queries import Queries, UnknownError
from fulcrum.telemetry.source import ClusterRef, Unknown

logger = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 5.0
STALE_SECONDS: Final = 90.0
"""A gateway's newest sample may be this old; Prometheus itself would go on for five minutes."""

Answer = TypeVar("Answer")


class PrometheusSource:
    """`TelemetrySource` over one Prometheus server. Each call opens its connections and closes them: nothing stays.

    Users of the cluster name the server, so it may be any: nothing that it answers is repeated, no redirect is
    followed, nothing is decompressed, and the deadline ends whatever is under way.
    """

    def __init__(
        self,
        url: str,
        access: PrometheusAccess | None = None,
        *,
        calls: PrometheusCalls,
        deadline_seconds: float = DEADLINE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        """`calls` has the threads of all sources."""
        self._url = url.rstrip("/")
        self.access = access or PrometheusAccess()
        """May be replaced: tokens are rotated."""
        self._calls = calls
        self._deadline_seconds = deadline_seconds
        self._stale_seconds = stale_seconds

    async def load_series(
        self, cluster: ClusterRef, *, interval_seconds: float, history_seconds: float, now: float
    ) -> LoadSeries | Unknown:
        """As `TelemetrySource`; the interval must hold two scrapes or more."""
        end_seconds = math.floor(now / interval_seconds) * interval_seconds
        intervals = int(history_seconds // interval_seconds)

        def ask(queries: Queries) -> LoadSeries:
            queries.check_gateways(cluster, now, self._stale_seconds)
            return queries.series(cluster, interval_seconds, intervals, end_seconds)

        return await self._run(cluster, ask)

    async def traffic(self, cluster: ClusterRef, *, window_seconds: float, now: float) -> Traffic | Unknown:
        """As `TelemetrySource`; the window must hold two scrapes or more."""

        def ask(queries: Queries) -> Traffic:
            queries.check_gateways(cluster, now, self._stale_seconds)
            return make_traffic(queries.counts(cluster, window_seconds, now), window_seconds)

        return await self._run(cluster, ask)

    async def _run(self, cluster: ClusterRef, ask: Callable[[Queries], Answer]) -> Answer | Unknown:
        client = await self._calls.client()
        try:
            return await self._calls.run(
                cluster.namespace,
                self._deadline_seconds,
                lambda call: client.ask_prometheus(self._url, self.access, call, ask),
            )
        except UnknownError as error:
            why = str(error)
        except TimeoutError:
            why = f"it did not answer within {self._deadline_seconds:g} s; look at its load and at the network"
        logger.debug("prometheus_unknown url=%s cluster=%s/%s why=%s", self._url, cluster.namespace, cluster.name, why)
        return Unknown(f"Prometheus at {self._url}, cluster {cluster.namespace}/{cluster.name}: {why}.")
