"""A ring of the requests that ended last: bounded memory, no text. Compiled (hatch_build.py).

Requests are packed by the page, in the order in which they ended. Where there is no room for a new page, the oldest one
goes if it is older than what the ring is wanted for. If not, the sample is halved: pages are thinned as room is needed,
two or three of them for each new one, so that no request waits for all of it.
"""

from __future__ import annotations

from typing import Final

from fulcrum.api.record import is_sampled, pack_rows, uncrowded_depth, unpack_rows

PAGE_ROWS: Final = 256
PAGE_KEYS: Final = 3072
"""Prefix keys of a page: 12 for each request, which is a prompt of about 7,000 tokens."""
RING_BYTES: Final = 7 * 1024 * 1024
"""Memory of packed pages; the page that is being filled and what is under way take up to 1 MiB more."""
WANTED_SECONDS: Final = 600.0
"""The sample is halved rather than cover less than this: the longest stretch that a rehearsal plays."""
LONGEST_SECONDS: Final = 3600.0
"""Nothing older is kept, however few requests come."""
_MOST_LEVELS: Final = 20
_MOST_THINNED: Final = 8
"""Pages that are thinned for a new one, so that no request waits for long; then the oldest one goes."""
_UNEVEN: Final = 4
"""A page that stands for this many times more requests than it should was drawn by what a crowd shares."""


class _Page:
    __slots__ = ("level", "newest", "packed", "rows")

    def __init__(self, packed: bytes, rows: int, level: int, newest: float) -> None:
        self.packed = packed
        self.rows = rows
        self.level = level
        """Halvings that its requests went through."""
        self.newest = newest
        """When its last request ended."""


class Kept:
    """What a ring holds."""

    __slots__ = ("covers_from", "depths", "pages")

    def __init__(self, pages: list[bytes], depths: tuple[int, ...], covers_from: float) -> None:
        self.pages = pages
        """Packed rows, in the order of the ends."""
        self.depths = depths
        """Of the halvings that the coarsest page went through."""
        self.covers_from = covers_from
        """All requests that came since then are here. Seconds since the ring's start."""


class Ring:
    """Requests that ended. Times are seconds since the ring's start."""

    def __init__(self, *, most_bytes: int = RING_BYTES, wanted_seconds: float = WANTED_SECONDS) -> None:
        """`wanted_seconds`: how far back it reaches at least, if necessary with fewer of the requests."""
        self._most_bytes = most_bytes
        self._wanted_seconds = wanted_seconds
        self._depths: list[int] = []
        """Of all halvings that there ever were."""
        self._level = 0
        """Halvings in force."""
        self._forgotten = 0.0
        """When the last request ended that is not here though it was sampled."""
        self._numbers = 0
        self._pages: list[_Page] = []
        """The oldest first."""
        self.bytes_taken = 0
        """By its pages."""
        self._open: list[tuple[float, float, float, float, int, int, int, int, int, int, int, tuple[int, ...]]] = []
        """Rows of the page that is being filled."""
        self._open_keys = 0
        self._open_from = 0
        """Number of the last request before that page."""

    def __len__(self) -> int:
        return sum(page.rows for page in self._pages) + len(self._open)

    def add(  # noqa: PLR0917  (a call with names costs a quarter more)
        self,
        arrival: float,
        duration: float,
        ttft: float,
        retry_after: float,
        prompt_tokens: int,
        units: int,
        output_tokens: int,
        identity: int,
        qos: int,
        outcome: int,
        keys: tuple[int, ...],
    ) -> None:
        """Keep a request that ends now. Its numbers are those of `Row`, and must fit there."""
        number = self._numbers = self._numbers + 1
        if self._level and not is_sampled(keys, identity, number, self._depths[: self._level]):
            if number - self._open_from > (_UNEVEN * PAGE_ROWS) << self._level:
                self._begin_anew(arrival + duration)
            return
        self._open.append(
            (
                arrival, duration, ttft, retry_after, prompt_tokens, units, output_tokens, identity, number, qos,
                outcome, keys,
            )
        )  # fmt: skip
        self._open_keys += len(keys)
        if len(self._open) == PAGE_ROWS or self._open_keys >= PAGE_KEYS:
            self._close_page(arrival + duration)

    def read(self, now: float, last_seconds: float = LONGEST_SECONDS) -> Kept:
        """What came in the last seconds, and some of what came before."""
        since = now - min(last_seconds, LONGEST_SECONDS)
        found, level, covers_from = [], self._level, self._forgotten
        for page in self._pages:
            if page.newest < since:
                covers_from = max(covers_from, page.newest)
                continue
            level = max(level, page.level)
            found.append(page.packed)
        if self._open:
            found.append(pack_rows(self._open))
        return Kept(found, tuple(self._depths[:level]), covers_from)

    def _close_page(self, now: float) -> None:
        page = _Page(pack_rows(self._open), len(self._open), self._level, now)
        self._begin_page()
        while self._pages and self._pages[0].newest < now - LONGEST_SECONDS:
            self._forget_oldest()
        self._pages.append(page)
        self.bytes_taken += len(page.packed)
        thinned = 0
        while self.bytes_taken > self._most_bytes:
            if self._pages[0].newest < now - self._wanted_seconds or thinned == _MOST_THINNED:
                self._forget_oldest()
            else:
                self._make_room()
                thinned += 1
        self._relax(now)

    def _begin_page(self) -> None:
        self._open.clear()
        self._open_keys = 0
        self._open_from = self._numbers

    def _begin_anew(self, now: float) -> None:
        """What decides is shared by a crowd since: what came before is unknown, rather than wrong."""
        self._pages.clear()
        self._depths.clear()
        self._level, self.bytes_taken, self._forgotten = 0, 0, now
        self._begin_page()

    def _forget_oldest(self) -> None:
        page = self._pages.pop(0)
        self._forgotten = page.newest
        self.bytes_taken -= len(page.packed)

    def _relax(self, now: float) -> None:
        """Keep more again, where all that is wanted has been coarse and takes less than a quarter of the ring."""
        if self._level:
            wanted = [page for page in self._pages if page.newest >= now - self._wanted_seconds]
            few = sum(len(page.packed) for page in wanted) * 4 < self._most_bytes
            if few and all(page.level == self._level for page in wanted):
                self._level -= 1

    def _make_room(self) -> None:
        """Thin the oldest page that is finer than what is kept now; with none, halve what is kept."""
        at = next((at for at, page in enumerate(self._pages) if page.level < self._level), None)
        if at is not None:
            self._thin(at)
        elif self._level == _MOST_LEVELS:
            self._forget_oldest()
        else:
            if self._level == len(self._depths):
                self._depths.append(uncrowded_depth([page.packed for page in self._pages]))
            self._level += 1

    def _thin(self, at: int) -> None:
        """Drop what is not sampled any more, and put the rest to the page before where it has room."""
        page, depths = self._pages[at], self._depths[: self._level]
        rows = [
            row
            for row in unpack_rows(page.packed)
            if is_sampled(row.keys, row.identity, row.number, depths, page.level)
        ]
        self.bytes_taken -= len(page.packed)
        before = self._pages[at - 1] if at else None
        if before is not None and before.rows + len(rows) <= PAGE_ROWS and before.level == self._level:
            del self._pages[at]
            self.bytes_taken -= len(before.packed)
            rows = unpack_rows(before.packed) + rows
            before.newest = page.newest
            page = before
        page.packed = pack_rows(rows)
        page.rows = len(rows)
        page.level = self._level
        self.bytes_taken += len(page.packed)
