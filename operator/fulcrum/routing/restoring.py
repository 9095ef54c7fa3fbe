"""What a prefix costs on a worker with tiers: nothing on its device, below that what the split says. Pure."""

from __future__ import annotations

from typing import NamedTuple

from fulcrum.kv import Tiers, Waits, restore
from fulcrum.routing.tuning import TUNING
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
    return max(TUNING.estimate_share * ttft_seconds - waited_seconds, 0.0)


def restoring(
    prompt_tokens: float,
    worker: WorkerView,
    tiers: Tiers,
    *,
    held_tokens: float,
    device_tokens: float,
    pooled_tokens: float,
    within_seconds: float,
    wait_seconds: float,
) -> Restoring:
    """Return what the engine does by the split that it uses itself; the prompt has its turn after `wait_seconds`.

    The worker holds `held_tokens` of the prompt, `device_tokens` of them on its device; the KV pool `pooled_tokens`.
    The prefill is to take `within_seconds`.
    """
    prompt, present, engine = prompt_tokens, device_tokens, worker.engine
    link, matched = tiers.host_link, held_tokens
    if tiers.pool_link is not None and pooled_tokens > held_tokens:
        link, matched = tiers.pool_link, pooled_tokens
    if matched - present < 1.0 or prompt < matched + 1.0:
        return Restoring(present, 0.0, 0.0, engine.work_seconds(prompt, present))
    way = restore(
        present_tokens=int(present),
        matched_tokens=int(matched),
        prompt_tokens=int(prompt),
        speed=engine.speed.coefficients,
        link=link,
        waits=Waits(compute_seconds=wait_seconds),
        within_seconds=within_seconds,
        front=tiers.front,
    )
    if not way.load_tokens:
        return Restoring(present, 0.0, 0.0, engine.work_seconds(prompt, present))
    front = engine.work_seconds(present + way.recompute_tokens, present)
    work = front + engine.work_seconds(prompt, matched)
    return Restoring(matched - way.recompute_tokens, float(way.load_tokens), way.predicted_seconds, work)
