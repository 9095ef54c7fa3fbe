"""What a prefix costs on a worker with tiers: nothing on its device, below that what the split says. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fulcrum.kv import Tiers, Waits, restore
from fulcrum.routing.tuning import TUNING

if TYPE_CHECKING:
    from fulcrum.routing.search import Search
    from fulcrum.routing.worker import WorkerView


class Restoring(NamedTuple):
    """How a prompt begins on a worker."""

    cached_tokens: float
    """What is not computed."""
    loaded_tokens: float
    """Of these, what is loaded."""
    loaded_seconds: float
    """From now to the first token, by the split; 0 where nothing is loaded."""
    work_seconds: float
    """Computing the rest."""


def prefill_left_seconds(ttft_seconds: float, waited_seconds: float) -> float:
    """Return what is left for the prefill of a request that came `waited_seconds` ago: the hand-over comes after it."""
    return max(TUNING.trusted * ttft_seconds - waited_seconds, 0.0)


def restoring(search: Search, worker: WorkerView, tiers: Tiers, wait_seconds: float) -> Restoring:
    """Return what the engine does by the split that it uses itself; the prompt has its turn after `wait_seconds`."""
    incoming = search.incoming
    prompt = incoming.prompt_tokens
    present = 0.0
    held = search.cached_tokens(worker)
    if held:
        on_device = search.view.affinity.on_device(incoming.prefix, worker.index)
        present = min(on_device / incoming.units_per_token, held)
    link, matched = tiers.host_link, held
    if tiers.pool_link is not None and search.pooled_tokens > held:
        link, matched = tiers.pool_link, search.pooled_tokens
    if matched - present < 1.0 or prompt < matched + 1.0:
        return Restoring(present, 0.0, 0.0, worker.work_seconds(prompt, present))
    way = restore(
        present_tokens=int(present),
        matched_tokens=int(matched),
        prompt_tokens=int(prompt),
        speed=worker.speed.coefficients,
        link=link,
        waits=Waits(compute_seconds=wait_seconds),
        within_seconds=prefill_left_seconds(
            min(search.view.ttft_seconds, incoming.ttft_seconds), incoming.waited_seconds
        ),
        front=tiers.front,
    )
    if not way.load_tokens:
        return Restoring(present, 0.0, 0.0, worker.work_seconds(prompt, present))
    front = worker.work_seconds(present + way.recompute_tokens, present)
    work = front + worker.work_seconds(prompt, matched)
    return Restoring(matched - way.recompute_tokens, float(way.load_tokens), way.predicted_seconds, work)
