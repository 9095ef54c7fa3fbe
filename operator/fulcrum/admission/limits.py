"""Checks of a path: is it within what was promised, and if not, when would it be?"""

from __future__ import annotations

from math import log

from fulcrum.admission.margin import Margin
from fulcrum.admission.outcome import Over, ThresholdLimits
from fulcrum.admission.tuning import TUNING
from fulcrum.api.reasons import Reason
from fulcrum.routing import ClusterView, Incoming, Route, harmed
from fulcrum.routing.tuning import TUNING as ROUTING


def over_ttft(
    incoming: Incoming, found: Route, view: ClusterView, margin: Margin, room: float, *, slower: float
) -> Over | None:
    """TTFT: of what is left of the promise after its own prefill, the queue may take the part `room`.

    `slower`: how many times longer than predicted all of it takes, because neighbours are busy.

    What has begun of lower classes is beyond that: they were served because no other request was there.
    """
    promise = min(view.ttft_seconds, incoming.ttft_seconds)
    # Where nothing is queued and no neighbour is felt, a margin helps no request: it is never served sooner than now.
    queued = found.wait_seconds > 0 or found.hand_over.slot_seconds > 0
    # What it has waited is known, so a margin is only on what is left.
    to_come = max(promise - incoming.waited_seconds, 0.0)
    allowed = margin.allowed_seconds(to_come) if queued or slower > 1 else to_come
    left = allowed / slower - (found.ttft_seconds - found.wait_seconds)
    if left < 0:
        there = found.hand_over
        memory = 0 < found.decode.engine.kv_capacity < there.kv_tokens and there.slot_seconds > -left
        return Over(Reason.KV_EXHAUSTED if memory else Reason.TTFT_UNREACHABLE, _until_idle(found), promise)
    excess = found.wait_seconds - min(room * left + found.begun_seconds, left)
    if excess <= 0:
        return None
    return Over(
        Reason.TTFT_UNREACHABLE, _until_shorter(found, excess + (1 - ROUTING.estimate_share) * room * left), promise
    )


def over_tpot(incoming: Incoming, found: Route, view: ClusterView, margin: Margin, room: float) -> Over | None:
    """TPOT: the batch at hand-over must suit the new request, and all that are or will be in it.

    An answer of one token has no pace, and is in one step of the others.
    """
    if incoming.output_tokens <= 1:
        return None
    worker, there = found.decode, found.hand_over
    promise = min(view.tpot_seconds, incoming.tpot_seconds, worker.answers.tight_tpot_seconds)
    least_seconds = worker.engine.least_step
    allowed = promise
    if allowed > least_seconds:
        # The batch is what can be chosen: a margin on the whole step would leave none where the promise is tight.
        allowed = least_seconds + room * margin.allowed_seconds(allowed - least_seconds)
    if there.step_seconds <= allowed:
        return None
    return Over(Reason.TPOT_UNREACHABLE, _until(found, there.step_seconds, there.own_step_seconds, allowed), promise)


def over_memory(incoming: Incoming, found: Route) -> Over | None:
    """KV cache of the decode worker: what answers are yet to make must have room, or some of them are preempted.

    A prompt that finds no room waits for it, which is in its TTFT.
    """
    capacity = found.decode.engine.kv_capacity
    return _over_kv(incoming, found, max(capacity, found.hand_over.context_tokens) + TUNING.overflow * capacity)


def _over_kv(incoming: Incoming, found: Route, allowed: float) -> Over | None:
    """KV cache of the decode worker, of which requests may take `allowed` tokens."""
    used = found.hand_over.kv_tokens
    if found.decode.engine.kv_capacity <= 0 or used <= allowed:
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
    queued = prefill.prompts.queued_tokens
    rank = view.ranks[incoming.qos]
    if prefill.prompts.lower_seconds(rank) > 0:
        for leg in prefill.prompts.overtaken(rank):
            queued -= leg.prompt_tokens
    # A prompt that is longer than the limit may still come when nothing is before it.
    if queued >= 1 and queued + incoming.prompt_tokens > queue:
        share = min((queued + incoming.prompt_tokens - queue) / queued, 1.0)
        wait_seconds = min(share + 1 - ROUTING.estimate_share, 1.0) * found.wait_seconds
        over.append(Over(Reason.QUEUE_FULL, _until_shorter(found, wait_seconds)))
    if decode.answers.requests + 1 > rooms[1] * limits.batch * decode.engine.max_batch:
        over.append(Over(Reason.QUEUE_FULL, found.hand_over.life_seconds))
    kv = _over_kv(incoming, found, rooms[1] * limits.kv_usage * decode.engine.kv_capacity)
    if kv is not None:
        over.append(kv)
    return over


def over_idle(incoming: Incoming, found: Route, view: ClusterView, margin: Margin, now_seconds: float) -> Over | None:
    """Whether anything is idle on the path of a batch request.

    Nothing that is promised a latency waits for prefill, and the batch stays clearly inside the promise with it.

    A prompt that comes next waits for one step of batch prompts at most: it overtakes those that have not begun.
    """
    worker, there = found.decode, found.hand_over
    engine, answers = worker.engine, worker.answers
    share = ROUTING.estimate_share
    spare = 1 - share
    prompts = found.prefill.prompts
    new_tokens = max(incoming.prompt_tokens - found.cached_tokens, 1.0)
    # A worker that hardly has any prompts may take a long one: it is ended when another prompt comes.
    alone = not prompts.busy and prompts.prefill_share(now_seconds) < spare
    step_fits = alone or (
        prompts.batch_fits(new_tokens, found.work_seconds / new_tokens, spare * view.ttft_seconds)
        and _another_is_free(found, view)
    )
    if not found.known or not step_fits:
        return Over(Reason.NOTHING_IDLE, max(found.wait_seconds, there.step_seconds))
    others = answers.requests
    room_seconds = margin.allowed_seconds(max(view.tpot_seconds - engine.least_step, 0.0))
    between = 1 - min(worker.prompts.batch_share(now_seconds), share)
    fits = (
        there.step_seconds / between <= engine.least_step + share * room_seconds
        and others + 1 <= share * engine.max_batch
        and (engine.kv_capacity <= 0 or there.kv_tokens <= share * engine.kv_capacity)
    )
    if fits and found.whole and answers.running:
        fits = not worker.prompts.legs and harmed(worker, found.work_seconds, view.tpot_seconds) < spare**2
    # One of those that decode ends on average after that time.
    return None if fits else Over(Reason.NOTHING_IDLE, there.life_seconds / max(others, 1.0))


def _another_is_free(found: Route, view: ClusterView) -> bool:
    """Report whether a prompt that comes next finds another worker of that role without prompts."""
    own = found.prefill
    return any(
        worker.role is own.role and worker.revision == own.revision and not worker.prompts.busy
        for worker in view.workers.by_index.values()
        if worker is not own
    )


def _until_shorter(found: Route, seconds: float) -> float:
    """Time until the queue for the prefill is shorter by `seconds`, if others keep coming as of late."""
    return min(seconds / max(1 - found.prefill.prompts.prefill_rate, 1 - ROUTING.estimate_share), found.wait_seconds)


def _until(found: Route, total: float, own: float, allowed: float) -> float:
    """Time until `total` has sunk below `allowed`; all but the part `own` fades exponentially, to what keeps coming."""
    there, answers = found.hand_over, found.decode.answers
    others = answers.requests
    if allowed <= own or total <= own or not others:
        return _until_idle(found)
    aim = ROUTING.estimate_share * (allowed - own)  # other requests come back then, too
    coming = min((answers.join_rate * there.life_seconds + answers.foreign_running) / others, 1.0) * (total - own)
    if aim <= coming:
        return _until_idle(found)
    return min(there.life_seconds * log((total - own - coming) / (aim - coming)), _until_idle(found))


def _until_idle(found: Route) -> float:
    return found.wait_seconds + 2 * found.hand_over.life_seconds
