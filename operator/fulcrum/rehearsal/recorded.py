"""What gateways recorded, as a rehearsal is asked with it. Pure: the merged rings come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from fulcrum.api.admission_state import MOST_CLASSES
from fulcrum.api.record import MOST_TOKENS, Outcome, RecordedRequest
from fulcrum.load.demand import LatencyTargets
from fulcrum.rehearsal.rings import Recording
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen
from fulcrum.simulation.traffic.recorded_blocks import prefix_blocks
from fulcrum.simulation.workload import Workload

_MOST_BLOCKS: Final = 1 << 20
"""Bounds the ids of prefix blocks of all requests together, which take 40 bytes each. Older requests go without."""
_REFUSED: Final = (Outcome.REJECTED, Outcome.FAILED, Outcome.UNREAD)
_NO_LOAD: Final = (Outcome.INVALID, Outcome.UNREAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The requests of the last minutes."""

    seen: Seen
    """Second 0 is the beginning of the window. Requests of batch classes, and those that are invalid, are not there."""
    now: float
    """End of the window, on the clock of `seen`: the window's length in seconds."""


def recorded(recording: Recording, key_ends: Sequence[int], *, slo: LatencyTargets) -> Recorded | None:
    """Return what a recording shows; None where the load is unknown: a gateway is missing, or all requests are unread.

    `key_ends`: lengths of the prefixes whose keys are recorded, in the prompts' units (`RingPage.key_ends`).
    """
    if not recording.complete:
        return None
    now = min(recording.covers_from_seconds, TUNING.memory_seconds)
    load = _load([request for request in recording.requests if request.age_seconds <= now])
    if load is None:
        return None
    return Recorded(seen=_seen(load, key_ends, now, slo), now=now)


def _load(requests: Sequence[RecordedRequest]) -> list[RecordedRequest] | None:
    """Return the requests that are load, by arrival; None: all of them were turned away unread.

    An unread request gets the prompt and the class of the read one with the median prompt: its row tells neither.
    """
    unread = [request for request in requests if request.outcome is Outcome.UNREAD]
    read = [request for request in requests if request.outcome not in _NO_LOAD and not request.batch]
    if not read:
        return None if unread else []
    usual = sorted(read, key=lambda request: request.prompt_tokens)[len(read) // 2]
    as_usual = [
        msgspec.structs.replace(one, prompt_tokens=usual.prompt_tokens, qos_class=usual.qos_class) for one in unread
    ]
    return sorted(read + as_usual, key=lambda request: -request.age_seconds)


def _seen(requests: Sequence[RecordedRequest], key_ends: Sequence[int], now: float, slo: LatencyTargets) -> Seen:
    """Return the columns of requests by arrival, none older than `now`."""
    names = sorted({request.qos_class for request in requests})
    known = names[:MOST_CLASSES]  # no cluster has more; requests of others are of the class that takes the rest
    number = {name: index for index, name in enumerate(known)}
    made = np.array([_made_tokens(request) for request in requests], dtype=np.int64)
    ended = np.array([_has_length(request) for request in requests], dtype=np.bool_)
    over = np.array([request.outcome is not Outcome.PENDING for request in requests], dtype=np.bool_)
    load = Workload(
        arrival_seconds=np.array([now - max(request.age_seconds, 0.0) for request in requests], dtype=np.float64),
        prompt_tokens=np.clip([request.prompt_tokens for request in requests], 1, MOST_TOKENS).astype(np.int32),
        output_tokens=np.maximum(made, 1).astype(np.int32),
        qos_class=np.array([number.get(request.qos_class, len(known)) for request in requests], dtype=np.int16),
        classes=tuple(known) if known == names and names else (*known, None),
        prefix_ids=_prefix_ids(requests, key_ends),
    )
    return Seen(
        load=load,
        made_tokens=made,
        ended=ended,
        refused=over & ~ended,
        missed=np.array([_missed(request, slo) for request in requests], dtype=np.bool_),
    )


def _has_length(request: RecordedRequest) -> bool:
    return request.outcome is Outcome.SERVED and request.output_tokens is not None


def _made_tokens(request: RecordedRequest) -> int:
    begun = request.ttft_seconds is not None or _has_length(request)
    return min(max(request.output_tokens or 0, int(begun)), MOST_TOKENS)


def _missed(request: RecordedRequest, slo: LatencyTargets) -> bool:
    """Report whether it is known to be outside of the promise. What a client left in time is not."""
    if request.outcome in _REFUSED:
        return True
    ttft_seconds, tpot_seconds = request.ttft_seconds, request.tpot_seconds
    # Gateways do not tell when the first token of a stream under way came; without a token, the wait so far is known.
    if ttft_seconds is None and request.outcome is not Outcome.SERVED and not request.output_tokens:
        ttft_seconds = request.duration_seconds
    return (ttft_seconds or 0.0) > slo.ttft_seconds or (tpot_seconds or 0.0) > slo.tpot_seconds


def _prefix_ids(requests: Sequence[RecordedRequest], key_ends: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Return the ids of each prompt's blocks; None: no request has a key."""
    if not any(request.keys for request in requests):
        return None
    return tuple(prefix_blocks(requests, key_ends, most_blocks=_MOST_BLOCKS))
