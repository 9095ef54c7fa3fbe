"""What is played: the last seconds as they were, for the state that they leave, and then what is expected to come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from fulcrum.load.demand import LatencyTargets
from fulcrum.rehearsal.lengths import AnswerLengths
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen
from fulcrum.simulation.workload import Workload

_FIRST_NEW_ID = 1 << 62
"""Ids of prefixes that nobody has: above those of traces and of rings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Which seconds are played."""

    now: float
    start: float
    """Where the past begins that is played for its state."""
    filled: float
    """When what began in the past that is played has filled the system, which is empty where the play begins."""
    since: float
    """Since when the load is of one kind."""
    scored_seconds: float
    """Of the future: what comes in it counts."""
    beyond_seconds: float
    """How long the load goes on while that is answered."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Future:
    """Requests of a play, by arrival."""

    load: Workload
    changes_at: float
    """Now, on the clock of `load`: what is expected begins, and an answer is given."""
    scored: NDArray[np.bool_]
    """Requests that count: those that come later, and those that have not ended."""
    seen_seconds: NDArray[np.float64]
    """Of those that count: when they were seen, or the requests whose copies they are."""
    known: NDArray[np.bool_]
    """Requests of the past that have ended under the layout that stands: it is known what became of them."""
    known_inside: NDArray[np.bool_]
    """Of those: they were inside the promise."""


def span_of(
    seen: Seen,
    since: float,
    now: float,
    outputs: NDArray[np.int64],
    slo: LatencyTargets,
    *,
    known_from: float | None = None,
) -> Span:
    """Return which seconds to play, given draws of the answers' lengths.

    `known_from`: nothing is known of the time before; None: before second 0 nothing came.

    Nothing hides in twice the promise of the first token and the time of an answer; and a load goes on for about as
    long as it has gone on. What runs or waits now came in the last promise and time of an answer, and found a system
    that what came in as long a time before had filled: the past that is played has room for both.
    """
    answer_seconds, past_seconds = answer_and_past_seconds(outputs, slo)
    rate = len(seen.since(since)) / (now - since)
    future_seconds = max(2 * slo.ttft_seconds + answer_seconds, now - since)
    future_seconds = float(np.clip(future_seconds, TUNING.shortest_seconds, TUNING.longest_seconds))
    beyond_seconds = min(slo.ttft_seconds + answer_seconds, future_seconds)
    most_seconds = TUNING.most_requests / rate
    if future_seconds + beyond_seconds > most_seconds:
        beyond_seconds = min(beyond_seconds, most_seconds / 2)
        future_seconds = max(most_seconds - beyond_seconds, TUNING.shortest_seconds / 2)
    start = max(known_from or 0.0, now - past_seconds)
    return Span(
        now=now,
        start=start,
        filled=start + (now - start if known_from is None else past_seconds) / 2,
        since=since,
        scored_seconds=future_seconds,
        beyond_seconds=beyond_seconds,
    )


def answer_and_past_seconds(outputs: NDArray[np.int64], slo: LatencyTargets) -> tuple[float, float]:
    """Return how long an answer takes at the promised pace, and how much of the past is played for its state."""
    answer_seconds = float(np.quantile(outputs, 0.9)) * slo.tpot_seconds
    request_seconds = slo.ttft_seconds + answer_seconds + TUNING.shortest_seconds / 2
    return answer_seconds, min(2 * request_seconds, TUNING.longest_seconds / 3)


def future(seen: Seen, span: Span, random: np.random.Generator, *, longer: bool, stands_since: float) -> Future:
    """Return the requests of a play, with drawn lengths where they are not known.

    Each draw is from a curve of its own (bootstrap): where few answers have ended, draws differ as much as the curves.
    What outlasts all that ended is drawn from the `longer` half of what it may be, or from the other one (stratified).
    """
    told = np.flatnonzero(~seen.refused & (seen.made_tokens > 0))
    told = random.choice(told, len(told))
    lengths = AnswerLengths(seen.made_tokens[told], seen.ended[told], (random.random() + (not longer)) / 2)
    until = span.scored_seconds + span.beyond_seconds
    since = max(span.since, span.now - until)  # of a long stretch the newest part
    period = span.now - since
    places: list[NDArray[np.int64]] = []
    arrivals: list[NDArray[np.float64]] = []
    outputs: list[NDArray[np.int64]] = []
    for repeat in range(-1, ceil(until / period)):  # the past first
        begin = span.start if repeat < 0 else since
        # What was seen at `since` comes now, and so on; the play's clock begins at `start`.
        at = seen.arrival_seconds - span.start + (0.0 if repeat < 0 else span.now - since + repeat * period)
        place = np.flatnonzero((seen.arrival_seconds >= begin) & (at < span.now - span.start + until))
        drawn = lengths.draw(seen.made_tokens[place], random)
        places.append(place)
        arrivals.append(at[place])
        outputs.append(np.where(seen.ended[place], seen.made_tokens[place], drawn))
    at = np.concatenate(arrivals)
    order = np.argsort(at, kind="stable")
    place, at, output = np.concatenate(places)[order], at[order], np.concatenate(outputs)[order]
    changes_at = span.now - span.start
    ids = seen.load.prefix_ids
    pending = ~seen.ended & ~seen.refused
    scored = np.where(at < changes_at, pending[place], at < changes_at + span.scored_seconds)
    known = (
        (at >= span.filled - span.start)
        & (at < changes_at)
        & ~pending[place]
        & (seen.arrival_seconds[place] >= stands_since)
    )
    return Future(
        load=Workload(
            arrival_seconds=at,
            prompt_tokens=seen.load.prompt_tokens[place],
            output_tokens=np.clip(output, 1, np.iinfo(np.int32).max).astype(np.int32),
            qos_class=seen.load.qos_class[place],
            classes=seen.load.classes,
            prefix_ids=None if ids is None else _played_ids(ids, place, at >= changes_at),
        ),
        changes_at=changes_at,
        scored=scored,
        seen_seconds=seen.arrival_seconds[place][scored],
        known=known,
        known_inside=~seen.missed[place][known],
    )


def _played_ids(
    ids: Sequence[tuple[int, ...]], place: NDArray[np.int64], again: NDArray[np.bool_]
) -> tuple[tuple[int, ...], ...]:
    """Prefix ids of a play: a prompt that is played once more is not cached, but for what several prompts share."""
    shared = Counter(one for each in set(place.tolist()) for one in ids[each])
    new, found = _FIRST_NEW_ID, []
    for each, repeated in zip(place.tolist(), again.tolist(), strict=True):
        own = list(ids[each])
        if repeated:
            for at, one in enumerate(own):
                if shared[one] == 1:
                    own[at], new = new, new + 1
        found.append(tuple(own))
    return tuple(found)
