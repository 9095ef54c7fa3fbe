"""Load from a Prometheus server that scrapes the gateways: histories of hours that outlive this process."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import aiohttp
import msgspec

from fulcrum.forecast.series import LoadSeries
from fulcrum.load.traffic import Traffic
from fulcrum.telemetry.counts import make_traffic
from fulcrum.telemetry.prometheus_access import PrometheusAccess, tls_context
from fulcrum.telemetry.prometheus_queries import Queries, UnknownError
from fulcrum.telemetry.reading import HEADERS, BodyReader, UnfitBodyError
from fulcrum.telemetry.source import ClusterRef, Unknown

logger = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 5.0
STALE_SECONDS: Final = 90.0
"""A gateway's newest sample may be this old; Prometheus itself would go on for five minutes."""

Answer = TypeVar("Answer")


class PrometheusSource:
    """`TelemetrySource` over one Prometheus server. Each call opens its connection and closes it: nothing stays.

    Users of the cluster name the server, so it may be any: nothing that it answers is repeated, no redirect is
    followed, nothing is decompressed, and the deadline ends whatever is under way.
    """

    def __init__(
        self,
        url: str,
        access: PrometheusAccess | None = None,
        *,
        bodies: BodyReader | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        """`bodies` bounds what the answers of all sources take together."""
        self._url = url.rstrip("/")
        self.access = access or PrometheusAccess()
        """May be replaced: tokens are rotated."""
        self._bodies = bodies or BodyReader()
        self._deadline_seconds = deadline_seconds
        self._stale_seconds = stale_seconds

    async def load_series(
        self, cluster: ClusterRef, *, interval_seconds: float, history_seconds: float, now: float
    ) -> LoadSeries | Unknown:
        """As `TelemetrySource`; the interval must hold two scrapes or more."""
        end_seconds = math.floor(now / interval_seconds) * interval_seconds
        intervals = int(history_seconds // interval_seconds)

        async def ask(queries: Queries) -> LoadSeries:
            await queries.check_gateways(cluster, now, self._stale_seconds)
            return await queries.series(cluster, interval_seconds, intervals, end_seconds)

        return await self._run(cluster, ask)

    async def traffic(self, cluster: ClusterRef, *, window_seconds: float, now: float) -> Traffic | Unknown:
        """As `TelemetrySource`; the window must hold two scrapes or more."""

        async def ask(queries: Queries) -> Traffic:
            await queries.check_gateways(cluster, now, self._stale_seconds)
            return make_traffic(await queries.counts(cluster, window_seconds, now), window_seconds)

        return await self._run(cluster, ask)

    async def _run(self, cluster: ClusterRef, ask: Callable[[Queries], Awaitable[Answer]]) -> Answer | Unknown:
        try:
            async with asyncio.timeout(self._deadline_seconds), self._open() as session:
                return await ask(Queries(self._url, session, self._bodies))
        except UnknownError as error:
            why = str(error)
        except TimeoutError:
            why = f"it did not answer within {self._deadline_seconds:g} s; look at its load and at the network"
        except UnfitBodyError as error:
            why = f"{error}; look at metrics.prometheus.url"
        except aiohttp.ClientSSLError:
            why = "its certificate is not trusted; put its CA into the key ca.crt of metrics.prometheus.secretName"
        except ssl.SSLError:
            why = "the key ca.crt of metrics.prometheus.secretName holds no certificate in PEM form"
        except (aiohttp.ClientError, OSError) as error:
            why = f"it cannot be reached ({_said(error)}); look at metrics.prometheus.url and whether it runs"
        except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"it does not answer like Prometheus ({type(error).__name__}); look at metrics.prometheus.url"
        logger.debug("prometheus_unknown url=%s cluster=%s/%s why=%s", self._url, cluster.namespace, cluster.name, why)
        return Unknown(f"Prometheus at {self._url}, cluster {cluster.namespace}/{cluster.name}: {why}.")

    def _open(self) -> aiohttp.ClientSession:
        """Raises ssl.SSLError for a CA that is none. Neither proxies nor .netrc of our environment are a user's."""
        context = tls_context(self.access.ca_pem) if self._url.startswith("https") else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=self._deadline_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers=HEADERS | self.access.headers,
        )


def _said(error: BaseException) -> str:
    """The innermost cause of a failure to connect, which is the part that says something."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error) or type(error).__name__
