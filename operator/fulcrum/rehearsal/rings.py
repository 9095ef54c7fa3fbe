"""The rings of a cluster's gateways, put together. Pure: what was read comes in.

A gateway that does not answer, or whose ring is young, leaves the time before unknown. It is never taken for less load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, inf, log2
from typing import Final

import msgspec

from fulcrum.api.record import (
    Outcome,
    RecordedRequest,
    RecordError,
    RingPage,
    decode,
    sampling_rate,
    uncrowded_depth,
)
from fulcrum.rehearsal.tuning import TUNING

CLOCKS_APART_SECONDS: Final = 0.1
"""By so much ages of two gateways may be apart."""
RETRY_GRACE_SECONDS: Final = 1.0
"""A client that waits for Retry-After comes this much later at most: its timer, a connection, the clocks' reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRing:
    """What reading one gateway's ring came to."""

    gateway: str
    page: RingPage | None
    """None: it was not read."""
    read_seconds_ago: float = 0.0
    """How old the page is: ages in it are as of then."""
    problem: str = ""
    """Why it was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The last requests of a cluster."""

    requests: tuple[RecordedRequest, ...] = ()
    """By arrival; all that came in the last `covers_from_seconds`, as far as they were sampled."""
    covers_from_seconds: float = 0.0
    """Age from which on all requests are known."""
    limited_by: str = ""
    """The gateway that knows of nothing older."""
    sampling_rate: float = 1.0
    retries: int = 0
    """Requests that came again after a 429, and count as one with the first."""
    silent: tuple[tuple[str, str], ...] = ()
    """Gateways that were not read, and why. With one of them nothing is complete."""

    @property
    def complete(self) -> bool:
        """Whether all of the cluster's gateways are in it."""
        return not self.silent and self.covers_from_seconds > 0


def merge(rings: Sequence[ReadRing], *, last_seconds: float = inf, least_rate: float = 1.0) -> Recording:
    """One recording of all gateways that there are now, of the last seconds at most.

    Its window is that of the youngest ring, and no longer than it is since a gateway went with its ring. With gateways
    of different sampling the coarsest one counts for all. `least_rate`: the share of the requests that is enough.
    """
    silent = [(ring.gateway, ring.problem) for ring in rings if ring.page is None]
    pages = [(ring, ring.page) for ring in rings if ring.page is not None]
    found: list[tuple[ReadRing, RingPage, list[RecordedRequest]]] = []
    coarsest = _coarsest([page for _, page in pages], least_rate)
    for ring, page in pages:
        own = page.sampling_depths
        depths = (*own, *_further(own, coarsest))
        try:
            found.append((ring, page, decode(page, depths=depths, older_by_seconds=ring.read_seconds_ago)))
        except RecordError as error:
            silent.append((ring.gateway, str(error)))
    if not found:
        return Recording(silent=tuple(silent))
    covers_from, limited_by = min((_covers(ring, page), ring.gateway) for ring, page, _ in found)
    covers_from = min(covers_from, last_seconds)
    requests = [request for _, _, own in found for request in own if request.age_seconds <= covers_from]
    requests.sort(key=lambda request: -request.age_seconds)
    once = _without_retries(requests)
    return Recording(
        requests=tuple(once),
        covers_from_seconds=covers_from,
        limited_by=limited_by,
        sampling_rate=_rate([own for _, _, own in found], sampling_rate(coarsest)),
        retries=len(requests) - len(once),
        silent=tuple(silent),
    )


def _coarsest(pages: Sequence[RingPage], least_rate: float) -> tuple[int, ...]:
    """The halvings of the coarsest page, and as many more as `least_rate` allows."""
    depths = max((page.sampling_depths for page in pages), key=len, default=())
    further = int(-log2(least_rate)) - len(depths)
    if further <= 0:
        return depths
    if depths:
        return (*depths, *[depths[-1]] * further)
    packs = next((page.packed_rows for page in pages if page.packed_rows), ())
    try:
        return (uncrowded_depth(packs),) * further
    except RecordError:
        return ()  # as `decode` will say


def _further(own: Sequence[int], coarsest: Sequence[int]) -> Sequence[int]:
    """What a ring lacks of the halvings of the coarsest one, at the place that it chose itself."""
    further = coarsest[len(own) :]
    return [own[-1]] * len(further) if own else further


def _rate(kept: Sequence[Sequence[RecordedRequest]], halved: float) -> float:
    """Share of the requests that these are, by their numbers, which count all: a crowd may have stayed, or gone, whole.

    `kept`: of each gateway; `halved`: what it is without a crowd, which it is taken for unless it is another load.
    """
    if halved == 1.0:
        return 1.0
    numbers = [[request.number for request in own if request.outcome is not Outcome.PENDING] for own in kept]
    known = [own for own in numbers if len(own) > 1]
    if not known:
        return halved
    seen = sum(len(own) - 1 for own in known) / max(sum(max(own) - min(own) for own in known), 1)
    return halved if abs(seen - halved) <= TUNING.stretch_change * halved else min(seen, 1.0)


def _covers(ring: ReadRing, page: RingPage) -> float:
    left = page.neighbour_left_seconds
    covers = page.covers_from_seconds if left is None else min(page.covers_from_seconds, left)
    return covers + ring.read_seconds_ago


def _without_retries(requests: Sequence[RecordedRequest]) -> list[RecordedRequest]:
    """Count a request that was told to come back and did as one: it came when it first came, and ended as it ended.

    The same prompt and length of the same class, when Retry-After is over, is taken for the same request.
    """
    once: list[RecordedRequest] = []
    told: dict[tuple[int, int, str], list[tuple[float, int]]] = {}
    """Of those that were told to come back and have not yet: the earliest time, and the place in `once`. Heaps."""
    for request in requests:
        who = (request.identity, request.units, request.qos_class)
        place = _place(told[who], once, request) if request.identity and who in told else None
        if place is None:
            place = len(once)
            once.append(request)
        else:
            waited = once[place].age_seconds - request.age_seconds
            ttft_seconds = request.ttft_seconds
            once[place] = msgspec.structs.replace(
                request,
                age_seconds=once[place].age_seconds,
                duration_seconds=request.duration_seconds + waited,
                ttft_seconds=None if ttft_seconds is None else ttft_seconds + waited,
            )
        if request.outcome is Outcome.REJECTED and request.retry_after_seconds > 0:
            earliest = request.retry_after_seconds - request.ended_age_seconds - CLOCKS_APART_SECONDS
            heappush(told.setdefault(who, []), (earliest, place))
    return once


def _place(told: list[tuple[float, int]], once: Sequence[RecordedRequest], request: RecordedRequest) -> int | None:
    """Place of the first one that `request` is the retry of; those whose time is over are forgotten."""
    while told and told[0][0] <= -request.age_seconds:
        place = heappop(told)[1]
        before = once[place]
        if before.ended_age_seconds - request.age_seconds <= ceil(before.retry_after_seconds) + RETRY_GRACE_SECONDS:
            return place
    return None
