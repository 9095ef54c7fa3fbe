"""What is shown now: read once a second while a page is open, encoded once, and handed to each page as changes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fulcrum import __version__
from fulcrum.api.status import InferenceClusterStatus
from fulcrum.dashboard.changes import Changes
from fulcrum.dashboard.facts import ClusterFacts, Source
from fulcrum.dashboard.history import SAMPLE_SECONDS, SERIES, History
from fulcrum.dashboard.view import detail, point, row, status_of, workers

logger = logging.getLogger(__name__)

PUSH_SECONDS: Final = 1.0
"""Time between two pushes: people do not read faster, and a fleet of 1,000 workers is 100 kB a push."""
MOST_PAGES: Final = 32
"""Open pages: each holds a connection, and together at most 32 x 64 kB of socket buffers."""
SPARK_POINTS: Final = 30
"""Points of the small chart in the list: five minutes."""


class TooManyPagesError(Exception):
    """As many pages as allowed are open; close one, or try again later."""


class _Watched:
    """A cluster whose workers are on an open page."""

    def __init__(self) -> None:
        self.pages = 0
        self.detail = Changes()
        self.workers = Changes()


class Board:
    """The latest documents of all clusters, and their last hour. `run` keeps it up; pages `open` it."""

    def __init__(self, *, origin: str, waiting: str, now: Callable[[], float] = time.time) -> None:
        """`origin` says where figures come from, `waiting` why there are none yet; `now` is Unix time."""
        self.source: Source | None = None
        """None while there is nothing to show; pages are told `waiting` then."""
        self.waiting = waiting
        self._origin = origin
        self._now = now
        self._session = secrets.token_hex(8)
        self._tick = 0
        self._read_at = 0.0
        self._behind_seconds: float | None = None
        self._problem = ""
        self._rows = Changes()
        self._watched: dict[str, _Watched] = {}
        self._histories: dict[str, History] = {}
        self._statuses: dict[str, tuple[str, InferenceClusterStatus]] = {}
        self._pages = 0
        self._sampled_at = float("-inf")
        self._ticked = asyncio.Event()
        self._wanted = asyncio.Event()

    def has_source(self) -> bool:
        """Report whether there is something to show."""
        return self.source is not None

    async def run(self) -> None:
        """Read until cancelled: each second while a page is open, else as often as the charts need."""
        while True:
            self._wanted.clear()
            await self.refresh()
            await asyncio.sleep(PUSH_SECONDS)
            if not self._pages:
                try:
                    async with asyncio.timeout(SAMPLE_SECONDS - PUSH_SECONDS):
                        await self._wanted.wait()
                except TimeoutError:
                    continue

    async def refresh(self) -> None:
        """Read the source once and wake the pages."""
        if self.source is not None:
            try:
                reading = await self.source.read(frozenset(self._watched))
                self._take(reading.clusters)
                self._behind_seconds, self._problem = reading.behind_seconds, ""
                self._read_at = self._now()
            except Exception as error:
                # A page must not take the operator along; it says what is wrong and shows what was known.
                logger.exception("dashboard_not_refreshed")
                self._problem = f"The figures cannot be read ({type(error).__name__}); see the log of this process."
        self._tick += 1
        ticked, self._ticked = self._ticked, asyncio.Event()
        ticked.set()

    def _take(self, clusters: Iterable[ClusterFacts]) -> None:
        now, tick = self._now(), self._tick + 1
        sampling = now - self._sampled_at >= SAMPLE_SECONDS
        if sampling:
            self._sampled_at = now
        rows: dict[str, bytes] = {}
        for facts in clusters:
            key, status = facts.key, self._status(facts)
            shown = row(facts, status)
            rows[key] = msgspec.json.encode(shown)
            if sampling:
                self._histories.setdefault(key, History()).add(now, point(status, shown))
            if (watched := self._watched.get(key)) is not None:
                watched.detail.put({"": msgspec.json.encode(detail(facts, status, shown))}, tick)
                watched.workers.put({each.name: msgspec.json.encode(each) for each in workers(facts)}, tick)
        self._rows.put(rows, tick)
        for memory in (self._histories, self._statuses):
            for key in memory.keys() - rows.keys():
                del memory[key]

    def _status(self, facts: ClusterFacts) -> InferenceClusterStatus:
        version = facts.document["metadata"]["resourceVersion"]
        known = self._statuses.get(facts.key)
        if known is None or known[0] != version:
            known = self._statuses[facts.key] = (version, status_of(facts.document))
        return known[1]

    @contextmanager
    def open(self, key: str) -> Iterator[Page]:
        """Open a page that shows the list, and the cluster `key` in full ("": none). Errors: TooManyPagesError."""
        if self._pages >= MOST_PAGES:
            raise TooManyPagesError
        self._pages += 1
        if key:
            self._watched.setdefault(key, _Watched()).pages += 1
        self._wanted.set()
        try:
            # A cluster that was watched by no page so far is read at the next tick.
            yield Page(key=key)
        finally:
            self._pages -= 1
            if key:
                self._watched[key].pages -= 1
                if not self._watched[key].pages:
                    del self._watched[key]

    async def news(self, page: Page) -> bytes:
        """Wait for a tick that the page has not seen; return the events that bring it up to date."""
        while page.tick == self._tick:
            await self._ticked.wait()
        events = b"".join(self._events(page))
        page.tick = self._tick
        return events

    def _events(self, page: Page) -> Iterator[bytes]:
        is_first = page.tick == 0
        if is_first:
            hello = {"session": self._session, "version": __version__, "origin": self._origin}
            yield _event(b"hello", msgspec.json.encode(hello | {"series": SERIES, "sampleSeconds": SAMPLE_SECONDS}))
        rows = self._rows.keys()
        fleet: dict[str, Any] = {
            "now": self._now(),
            "readAt": self._read_at,
            "behindSeconds": self._behind_seconds,
            "problem": self._problem,
            "gone": sorted(page.rows - rows),
            "total": len(rows),
        }
        if is_first:
            fleet["sparks"] = {key: history.last("rate", SPARK_POINTS) for key, history in self._histories.items()}
        page.rows = rows
        yield _event(b"fleet", _with_list(fleet, b"rows", self._rows.since(page.tick)))
        watched = self._watched.get(page.key)
        if watched is None or page.key not in rows:
            return
        names = watched.workers.keys()
        points = self._histories[page.key].since(page.point_at) if page.key in self._histories else []
        if points:
            page.point_at = points[-1][0] or 0.0
        cluster: dict[str, Any] = {"key": page.key, "points": points, "left": sorted(page.workers - names)}
        page.workers = names
        details = watched.detail.since(page.tick)
        if details:
            cluster["detail"] = msgspec.Raw(details[0])
        yield _event(b"cluster", _with_list(cluster, b"workers", watched.workers.since(page.tick)))


@dataclass(slots=True, kw_only=True)
class Page:
    """What one open page has received. A page that reads slowly skips ticks; nothing is queued for it."""

    key: str
    tick: int = 0
    rows: frozenset[str] = frozenset()
    workers: frozenset[str] = frozenset()
    point_at: float = 0.0
    """Time of the newest point of the charts, Unix time in seconds."""


def _event(name: bytes, document: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, document)


def _with_list(fields: dict[str, Any], name: bytes, documents: list[bytes]) -> bytes:
    """Encode the fields and, under `name`, documents that are encoded already."""
    return msgspec.json.encode(fields)[:-1] + b',"%b":[%b]}' % (name, b",".join(documents))
