"""Checks of a path: is it within what was promised, and if not, when would it be?"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Final

from fulcrum.admission.outcome import Over, ThresholdLimits
from fulcrum.admission.predict import Margin
from fulcrum.api.reasons import Reason
from fulcrum.routing import ClusterView, Flight, Incoming, Route

_KV_FULL: Final = 0.95
"""Share of the KV cache that may be planned with: blocks are filled in part, answers may be longer than expected, and
one that has to be preempted for want of a block is computed twice."""
_AIM: Final = 0.25
"""Share of what is allowed that is to be free when a rejected request comes back: others come back, too."""
_LEAST_SPARE: Final = 0.1
"""Share of a worker's time by which its queue is believed to become shorter, at least."""
_EMPTY: Final = 3.0
"""Mean lives after which a batch is taken for empty."""


def over_ttft(
    incoming: Incoming, found: Route, view: ClusterView, margin: Margin, room: float, *, slower: float = 1.0
) -> Over | None:
    """TTFT: of what is left of the promise after its own prefill, the queue may take the part `room`.

    `slower`: how many times longer than predicted all of it takes, because neighbours are busy.

    What has begun of lower classes is beyond that: they were served because nobody else was there.
    """
    promise = min(view.ttft_seconds, incoming.ttft_seconds)
    # Where nothing is queued and no neighbour is felt, a margin spares nobody: it is never served sooner than now.
    allowed = margin.allowed_seconds(promise) if found.wait_seconds > 0 or slower > 1 else promise
    left = (allowed - incoming.waited_seconds) / slower - (found.ttft_seconds - found.wait_seconds)
    if left < 0:
        return Over(Reason.TTFT_UNREACHABLE, _until_idle(found))
    excess = found.wait_seconds - min(room * left + found.begun_seconds, left)
    if excess <= 0:
        return None
    return Over(Reason.TTFT_UNREACHABLE, _until_shorter(found, excess + _AIM * room * left))


def over_others(found: Route, view: ClusterView, margin: Margin, held: Sequence[tuple[Flight, float]]) -> Over | None:
    """TTFT of those who are held up: a promise that was given is not broken by a later request."""
    if not held:
        return None
    promise = view.ttft_seconds
    allowed = margin.allowed_seconds(promise)
    excess = 0.0
    for leg, ttft_seconds in held:
        if leg.ttft_seconds <= promise:
            excess = max(excess, ttft_seconds - (allowed if leg.ttft_seconds <= allowed else promise))
    return Over(Reason.TTFT_UNREACHABLE, _until_shorter(found, excess)) if excess > 0 else None


def held_up(
    incoming: Incoming, found: Route, view: ClusterView, now_seconds: float, beyond_seconds: float
) -> Sequence[tuple[Flight, float]]:
    """Return who waits on the same worker and would be held up beyond a TTFT, and what its TTFT would then be.

    An engine prefills all that waits in one step, up to its token budget, and answers all of it at the end. So the
    last one to come prolongs the step of those before it that have not begun.
    """
    worker = found.prefill
    for oldest in worker.legs:
        if now_seconds + found.ttft_seconds - oldest.asked_at <= beyond_seconds:
            return ()
        break
    held = []
    ranks = view.ranks
    rank = ranks[incoming.qos]
    new_tokens = incoming.prompt_tokens - found.cached_tokens
    token_seconds = found.work_seconds / max(new_tokens, 1.0)
    between = 0.0
    for leg in reversed(worker.legs):
        if between >= worker.chunk_tokens:
            break
        if leg.started_at <= worker.anchor:
            # It is in the step under way. A prompt of several steps shares the last one with those behind it.
            if leg.new_tokens > worker.chunk_tokens and ranks[leg.qos] <= rank:
                room = -leg.new_tokens % worker.chunk_tokens - between
                ttft_seconds = leg.ttft_seconds + min(room, new_tokens) * token_seconds
                if room > 0 and ttft_seconds > beyond_seconds:
                    held.append((leg, ttft_seconds))
            break
        if ranks[leg.qos] > rank:
            continue  # overtaken: it waits for another step
        later = max(between + new_tokens - worker.chunk_tokens, 0.0) * token_seconds
        ttft_seconds = now_seconds + found.ttft_seconds - later - leg.asked_at
        if ttft_seconds > max(leg.ttft_seconds, beyond_seconds):
            held.append((leg, ttft_seconds))
        between += leg.prompt_tokens
    return held


def over_tpot(incoming: Incoming, found: Route, view: ClusterView, margin: Margin, room: float) -> Over | None:
    """TPOT: the batch at hand-over must suit the new request, and all that are or will be in it."""
    worker, there = found.decode, found.hand_over
    promise = min(view.tpot_seconds, incoming.tpot_seconds, worker.tight_tpot_seconds)
    allowed = margin.allowed_seconds(promise)
    if allowed > worker.decode_a:
        allowed = worker.decode_a + room * (allowed - worker.decode_a)
    if there.step_seconds <= allowed:
        return None
    return Over(Reason.TPOT_UNREACHABLE, _until(found, there.step_seconds, there.own_step_seconds, allowed))


def over_kv(incoming: Incoming, found: Route, room: float, full: float = _KV_FULL) -> Over | None:
    """KV cache of the decode worker."""
    capacity = found.decode.kv_capacity
    used, allowed = found.hand_over.kv_tokens, room * full * capacity
    if capacity <= 0 or used <= allowed:
        return None
    own = incoming.prompt_tokens + incoming.output_tokens
    return Over(Reason.KV_EXHAUSTED, _until(found, used, own, allowed))


def over_threshold(
    incoming: Incoming, found: Route, view: ClusterView, limits: ThresholdLimits, rooms: tuple[float, float]
) -> list[Over]:
    """Queue, batch and KV cache against fixed limits; what it overtakes is no queue to it."""
    prefill, decode = found.prefill, found.decode
    over = []
    queue = rooms[0] * limits.queued_prompt_tokens
    queued = prefill.queued_tokens
    rank = view.ranks[incoming.qos]
    if prefill.lower_seconds(rank) > 0:
        for leg in prefill.overtaken(rank):
            queued -= leg.prompt_tokens
    # A prompt that is longer than the limit may still come when nothing is before it.
    if queued >= 1 and queued + incoming.prompt_tokens > queue:
        share = min((queued + incoming.prompt_tokens - queue) / queued, 1.0)
        over.append(Over(Reason.QUEUE_FULL, _until_shorter(found, min(share + _AIM, 1.0) * found.wait_seconds)))
    batch = decode.running + decode.pending + decode.foreign_running + 1
    if batch > rooms[1] * limits.batch * decode.max_batch:
        over.append(Over(Reason.QUEUE_FULL, found.hand_over.life_seconds))
    kv = over_kv(incoming, found, rooms[1], limits.kv_usage)
    if kv is not None:
        over.append(kv)
    return over


def _until_shorter(found: Route, seconds: float) -> float:
    """Time until the queue for the prefill is shorter by `seconds`, if others keep coming as of late."""
    return min(seconds / max(1 - found.prefill.prefill_rate, _LEAST_SPARE), found.wait_seconds)


def _until(found: Route, total: float, own: float, allowed: float) -> float:
    """Time until `total` has sunk below `allowed`; all but the part `own` fades exponentially, to what keeps coming."""
    there, worker = found.hand_over, found.decode
    others = worker.running + worker.pending + worker.foreign_running
    if allowed <= own or total <= own or not others:
        return _until_idle(found)
    aim = (1 - _AIM) * (allowed - own)
    coming = min(worker.join_rate * there.life_seconds / others, 1.0) * (total - own)
    if aim <= coming:
        return _until_idle(found)
    return min(there.life_seconds * log((total - own - coming) / (aim - coming)), _until_idle(found))


def _until_idle(found: Route) -> float:
    return found.wait_seconds + _EMPTY * found.hand_over.life_seconds
