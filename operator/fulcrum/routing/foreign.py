"""What a worker's report says about the work of other gateways. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport

if TYPE_CHECKING:
    from fulcrum.routing.worker import WorkerView


def take_report(
    worker: WorkerView, load: LoadReport, now_seconds: float, mean_prompt_tokens: float, tpot_seconds: float
) -> None:
    """Set what the report has beyond what was started here, as far as it says how much runs, waits and was computed."""
    if load.work is not None and load.work.computed_tokens is not None:
        seconds_per_token = worker.work_seconds(mean_prompt_tokens, 0.0) / max(mean_prompt_tokens, 1.0)
        worker.set_computed(now_seconds, load.work.computed_tokens, seconds_per_token)
    if load.running is None or load.waiting is None:
        return
    beyond = max(load.running + load.waiting - worker.in_flight, 0)
    decoding = 0.0
    if worker.role is Role.DECODE:
        decoding = float(beyond)
    elif worker.role is Role.MIXED:
        # What waits has not been prefilled, whichever gateway sent it.
        decoding = float(min(beyond, max(load.running - worker.running, 0)))
    tokens = (beyond - decoding) * mean_prompt_tokens
    if load.queued_prompt_tokens is not None and worker.role is not Role.DECODE:
        tokens = max(load.queued_prompt_tokens - worker.queued_tokens, tokens if load.queued_prompt_tokens else 0.0)
    mean = worker.context_tokens / worker.running if worker.running else mean_prompt_tokens
    context = decoding * mean
    if decoding and load.kv_usage is not None and worker.kv_capacity:
        context = max(load.kv_usage * worker.kv_capacity - worker.context_tokens, 0.0)
    worker.set_foreign(
        now_seconds,
        prefill_seconds=worker.work_seconds(tokens, 0.0) if tokens else 0.0,
        running=decoding,
        context_tokens=context,
        share=decoding * worker.share_of(context / decoding, 0.0, tpot_seconds) if decoding else 0.0,
    )
