"""The embedded source: gateways are scraped directly, and their load is remembered in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import aiohttp

from fulcrum.api.names import PORT_GATEWAY, PORT_GATEWAY_INSIDE
from fulcrum.forecast.series import LoadSeries
from fulcrum.load.bursts import dispersion
from fulcrum.load.traffic import Traffic
from fulcrum.load.tuning import TUNING
from fulcrum.telemetry.counts import (
    LENGTHS,
    BadPageError,
    Counts,
    Page,
    add,
    increase,
    make_traffic,
    read_page,
    spread_of,
)
from fulcrum.telemetry.deadline import Within
from fulcrum.telemetry.load_history import LoadHistory, Slice
from fulcrum.telemetry.reading import HEADERS, BodyReader, known_url
from fulcrum.telemetry.source import ClusterRef, Unknown
from fulcrum.telemetry.turns import Turns

logger = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 15.0
"""Longest time without an answer of a gateway after which its counts are still spread evenly over that time."""
_AT_ONCE: Final = 64
_PAGE_BYTES: Final = 8 * 1024 * 1024
"""Most of a gateway's page: one with 2,000 workers has 2 MiB."""
_KNOWN_SHARE: Final = 0.5
_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, UnicodeDecodeError, BadPageError, RecursionError)


@dataclass(slots=True, kw_only=True)
class _Cluster:
    """What is remembered of one cluster."""

    history: LoadHistory = field(default_factory=LoadHistory)
    pages: dict[str, tuple[float, Page]] = field(default_factory=dict)
    """Time and content of the last scrape of each gateway, by Pod name."""
    pending: Counts = field(default_factory=dict)
    """Counted since the last tick at which every gateway answered."""
    complete_at: float | None = None
    """The last tick at which every gateway answered."""
    scraped_at: float | None = None
    problem: str | None = None
    """Why the last tick was not complete."""
    every_seconds: float = 0.0
    """Longest time between two scrapes since the last tick at which every gateway answered."""
    grace_seconds: float = 0.0
    """How old a page or a tick may be."""


class ScrapeSource:
    """`TelemetrySource` over the gateways that `scrape` is given each tick. Use as an async context manager."""

    def __init__(
        self,
        *,
        port: int = PORT_GATEWAY_INSIDE,
        older_port: int | None = PORT_GATEWAY,
        deadline_seconds: float = DEADLINE_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._port = port
        self._older_port = older_port
        """Where gateways of the release before have their metrics: they are rolled out after the operator."""
        self._deadline_seconds = deadline_seconds
        self._grace_seconds = grace_seconds
        self._turns = Turns(_AT_ONCE)
        self._clusters: dict[tuple[str, str], _Cluster] = {}
        self._session: aiohttp.ClientSession | None = None
        self._bodies = BodyReader()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
            timeout=aiohttp.ClientTimeout(),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers=HEADERS,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def scrape(
        self, cluster: ClusterRef, gateways: Mapping[str, str], now: float, *, every_seconds: float = 0.0
    ) -> None:
        """Read the counters of all gateways (Pod name -> address) of a cluster; call it each tick.

        Hand in the ready ones: one that does not answer makes the tick unknown. `now` is Unix time. `every_seconds`:
        until the next one; one that is lost is bridged.
        """
        known = self._clusters.setdefault(cluster.key, _Cluster())
        if known.scraped_at is not None and now <= known.scraped_at:
            return
        known.every_seconds = max(known.every_seconds, every_seconds)
        known.grace_seconds = max(self._grace_seconds, 2.5 * known.every_seconds)
        pages = await asyncio.gather(*(self._page(cluster, name, address) for name, address in gateways.items()))
        self._take(known, dict(zip(gateways, pages, strict=True)), now)
        if known.complete_at == now:
            known.every_seconds = every_seconds

    def forget(self, cluster: ClusterRef) -> None:
        """Drop what is remembered of a cluster that is gone."""
        self._clusters.pop(cluster.key, None)

    def _take(self, known: _Cluster, pages: Mapping[str, Page | str], now: float) -> None:
        previous, known.scraped_at = known.scraped_at, now
        for name, page in pages.items():
            if isinstance(page, Page):
                known.pending = add((known.pending, self._counted(known, name, page, previous, now)))
                known.pages[name] = (now, page)
        known.pages = {name: kept for name, kept in known.pages.items() if now - kept[0] <= known.grace_seconds}
        problems = [f"{name} ({page})" for name, page in pages.items() if isinstance(page, str)]
        if problems or not pages:
            known.problem = "; ".join(problems) or "no gateway is ready"
            return
        known.problem = None
        begin, known.complete_at = known.complete_at, now
        counts, known.pending = known.pending, {}
        if begin is not None and now - begin <= known.grace_seconds:
            known.history.put(Slice(start_seconds=begin, end_seconds=now, counts=counts))

    def _counted(self, known: _Cluster, name: str, page: Page, previous: float | None, now: float) -> Counts:
        """What a gateway has counted since its last scrape, or since it started when that is later."""
        before = known.pages.get(name)
        if before is not None and now - before[0] <= known.grace_seconds:
            return increase(before[1], page)
        # It was not handed in before it was ready, and clocks differ a little.
        is_new = previous is not None and page.started_seconds >= previous - known.grace_seconds
        return page.counts if is_new else {}

    async def _page(self, cluster: ClusterRef, name: str, address: str) -> Page | str:
        """The counters of one gateway, or why there are none."""
        found = await self._page_at(cluster, name, address, self._port)
        if isinstance(found, str) and self._older_port is not None:
            older = await self._page_at(cluster, name, address, self._older_port)
            return older if isinstance(older, Page) else found
        return found

    async def _page_at(self, cluster: ClusterRef, name: str, address: str, port: int) -> Page | str:
        assert self._session is not None, "use `async with ScrapeSource()`"
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{port}/metrics"
        try:
            async with (
                self._turns.of(cluster.key),
                Within(self._deadline_seconds),
                self._session.get(known_url(url), allow_redirects=False) as response,
            ):
                if response.status != 200:
                    return f"{url} answered {response.status}"
                page = read_page((await self._bodies.read(response, most_bytes=_PAGE_BYTES)).decode())
        except _FAILURES as error:
            what = f"did not answer within {self._deadline_seconds:g} s" if isinstance(error, TimeoutError) else error
            logger.debug("gateway_unknown gateway=%s url=%s error=%r", name, url, error)
            return f"{url}: {what}"
        # An address may have passed on to another Pod.
        if page.pod_name not in ("", name) or page.cluster not in ("", cluster.name):
            return f"{url} is now that of {page.pod_name}"
        return page

    # TelemetrySource

    async def load_series(
        self, cluster: ClusterRef, *, interval_seconds: float, history_seconds: float, now: float
    ) -> LoadSeries | Unknown:
        """As `TelemetrySource`: from memory, so it begins with this process."""
        known = self._clusters.get(cluster.key)
        if known is None:
            return self._unknown(cluster, "it has not been scraped yet")
        if not known.history.fits(interval_seconds):
            known.history = known.history.refined(interval_seconds)
        series = known.history.series(interval_seconds=interval_seconds, history_seconds=history_seconds, now=now)
        if series is None:
            return self._unknown(cluster, known.problem or f"no whole interval of {interval_seconds:g} s was seen yet")
        return series

    async def traffic(self, cluster: ClusterRef, *, window_seconds: float, now: float) -> Traffic | Unknown:
        """As `TelemetrySource`."""
        known = self._clusters.get(cluster.key)
        if known is None or known.scraped_at is None:
            return self._unknown(cluster, "it has not been scraped yet")
        if known.complete_at is None or now - known.complete_at > known.grace_seconds:
            return self._unknown(cluster, known.problem or f"the last scrape was {now - known.scraped_at:.0f} s ago")
        counts, covered_seconds = known.history.recent(window_seconds=window_seconds, now=now)
        if covered_seconds <= 0 or covered_seconds < _KNOWN_SHARE * window_seconds:
            seen = f"only {covered_seconds:.0f} s of the last {window_seconds:.0f} s were seen so far"
            return self._unknown(cluster, known.problem or seen)

        lasting = [*(part * window_seconds for part in TUNING.newest_parts), TUNING.memory_seconds]
        *newest, longer = known.history.between([(now - seconds, now) for seconds in lasting], LENGTHS)
        count, each_seconds = int(TUNING.memory_seconds / TUNING.window_seconds), TUNING.window_seconds
        stretches = [(now - (part + 1) * each_seconds, now - part * each_seconds) for part in range(count)]
        return make_traffic(
            counts,
            covered_seconds,
            newest=newest,
            longer=longer,
            stretches=known.history.between(stretches, spread_of(counts)),
            dispersion=dispersion(known.history.spans(TUNING.memory_seconds, now=now)),
        )

    def _unknown(self, cluster: ClusterRef, why: str) -> Unknown:
        return Unknown(
            f"Scraping the gateways of {cluster.namespace}/{cluster.name}: {why}. "
            f"Look at the Pods of Deployment {cluster.name}-gateway, and whether the operator can reach their port "
            f"{self._port}."
        )
