"""The rings of a cluster's gateways, put together. Pure: what was read comes in.

A gateway that does not answer, or whose ring is young, leaves the time before unknown. It is never taken for less load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import msgspec

from fulcrum.api.record import Outcome, RecordedRequest, RecordError, RingPage, decode, is_sampled, sampling_rate

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


def merge(rings: Sequence[ReadRing], *, last_seconds: float = inf) -> Recording:
    """One recording of all gateways that there are now, of the last seconds at most.

    Its window is that of the youngest ring, and no longer than it is since a gateway went with its ring. With gateways
    of different sampling the coarsest one counts for all.
    """
    silent = [(ring.gateway, ring.problem) for ring in rings if ring.page is None]
    found: list[tuple[ReadRing, RingPage, list[RecordedRequest]]] = []
    for ring in rings:
        if ring.page is not None:
            try:
                found.append((ring, ring.page, decode(ring.page, older_by_seconds=ring.read_seconds_ago)))
            except RecordError as error:
                silent.append((ring.gateway, str(error)))
    if not found:
        return Recording(silent=tuple(silent))
    depths = max((page.sampling_depths for _, page, _ in found), key=len)
    covers_from, limited_by = min((_covers(ring, page), ring.gateway) for ring, page, _ in found)
    covers_from = min(covers_from, last_seconds)
    requests = [
        request
        for _, page, own in found
        for request in _thinned(own, page.sampling_depths, depths)
        if request.age_seconds <= covers_from
    ]
    requests.sort(key=lambda request: -request.age_seconds)
    once = _without_retries(requests)
    return Recording(
        requests=tuple(once),
        covers_from_seconds=covers_from,
        limited_by=limited_by,
        sampling_rate=sampling_rate(depths),
        retries=len(requests) - len(once),
        silent=tuple(silent),
    )


def _thinned(
    requests: Sequence[RecordedRequest], own: Sequence[int], coarsest: Sequence[int]
) -> Sequence[RecordedRequest]:
    """The requests of a ring, thinned to the rate of the coarsest one, at the place that the ring chose."""
    further = coarsest[len(own) :]
    if not further:
        return requests
    depths = (*own, *([own[-1]] * len(further) if own else further))
    return [request for request in requests if is_sampled(request.keys, request.number, depths, len(own))]


def _covers(ring: ReadRing, page: RingPage) -> float:
    left = page.neighbour_left_seconds
    covers = page.covers_from_seconds if left is None else min(page.covers_from_seconds, left)
    return covers + ring.read_seconds_ago


def _without_retries(requests: Sequence[RecordedRequest]) -> list[RecordedRequest]:
    """Count a request that was told to come back and did as one: it came when it first came, and ended as it ended.

    The same prompt and length of the same class within Retry-After is taken for the same request.
    """
    once: list[RecordedRequest] = []
    told: dict[tuple[int, int, str], list[int]] = {}
    """Places in `once` of those that were told to come back and have not yet."""
    for request in requests:
        who = (request.identity, request.units, request.qos_class)
        place = _place(told.get(who, []), once, request) if request.identity else None
        if place is None:
            place = len(once)
            once.append(request)
        else:
            told[who].remove(place)
            waited = once[place].age_seconds - request.age_seconds
            ttft_seconds = request.ttft_seconds
            once[place] = msgspec.structs.replace(
                request,
                age_seconds=once[place].age_seconds,
                duration_seconds=request.duration_seconds + waited,
                ttft_seconds=None if ttft_seconds is None else ttft_seconds + waited,
            )
        if request.outcome is Outcome.REJECTED and request.retry_after_seconds > 0:
            told.setdefault(who, []).append(place)
    return once


def _place(places: Sequence[int], once: Sequence[RecordedRequest], request: RecordedRequest) -> int | None:
    """Place of the first one of `places` that `request` is the retry of."""
    for place in places:
        before = once[place]
        since = before.ended_age_seconds - request.age_seconds
        if 0 <= since <= before.retry_after_seconds + RETRY_GRACE_SECONDS:
            return place
    return None
