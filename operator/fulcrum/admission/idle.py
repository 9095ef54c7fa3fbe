"""Checks of a path for a batch request: is there anything idle on it?"""

from __future__ import annotations

from fulcrum.admission.margin import Margin
from fulcrum.admission.outcome import Over
from fulcrum.api.reasons import Reason
from fulcrum.routing import ClusterView, Incoming, Route, harmed
from fulcrum.routing.tuning import TUNING as ROUTING


def over_idle(incoming: Incoming, found: Route, view: ClusterView, margin: Margin, now_seconds: float) -> Over | None:
    """Nothing that is promised a latency waits for prefill, and the batch stays clearly inside the promise with it.

    A prompt that comes next waits for one step of batch prompts at most: it overtakes those that have not begun.
    """
    worker, there = found.decode, found.hand_over
    spare = 1 - ROUTING.idle_share
    prompts = found.prefill.prompts
    new_tokens = max(incoming.prompt_tokens - found.cached_tokens, 1.0)
    online_share = prompts.prefill_share(now_seconds)
    # A worker that hardly has any prompts may take a long one: it is ended when another prompt comes.
    alone = not prompts.legs and not prompts.foreign_seconds and online_share < spare
    step_fits = alone or (
        prompts.batch_fits(new_tokens, found.work_seconds / new_tokens, spare * view.ttft_seconds)
        and _another_is_free(found, view)
    )
    if not found.known or not step_fits:
        return Over(Reason.NOTHING_IDLE, max(found.wait_seconds, there.step_seconds))
    others = worker.running + worker.pending + worker.foreign_running
    room_seconds = margin.allowed_seconds(max(view.tpot_seconds - worker.least_step, 0.0))
    share = ROUTING.idle_share
    between = 1 - min(worker.prompts.batch_share(now_seconds), ROUTING.most_prefill_share)
    fits = (
        there.step_seconds / between <= worker.least_step + share * room_seconds
        and others + 1 <= share * worker.max_batch
        and (worker.kv_capacity <= 0 or there.kv_tokens <= share * worker.kv_capacity)
    )
    if fits and found.whole and worker.running:
        fits = not worker.prompts.legs and harmed(worker, found.work_seconds, view.tpot_seconds) < spare**2
    # One of those that decode ends on average after that time.
    return None if fits else Over(Reason.NOTHING_IDLE, there.life_seconds / max(others, 1.0))


def _another_is_free(found: Route, view: ClusterView) -> bool:
    """Report whether a prompt that comes next finds another worker of that role without prompts."""
    own = found.prefill
    return any(
        worker.role is own.role
        and worker.revision == own.revision
        and not (worker.prompts.legs or worker.prompts.foreign_seconds)
        for worker in view.workers.by_index.values()
        if worker is not own
    )
