"""Which part of a worker's capacity to decode one request takes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fulcrum.routing.worker import WorkerView


def step_share(worker: WorkerView, prompt_tokens: float, output_tokens: float, tpot_seconds: float) -> float:
    """Part of the longest decode step of a worker that a request takes, 0 to 1."""
    room = tpot_seconds - worker.decode_a
    share = (worker.decode_b + worker.decode_c * (prompt_tokens + output_tokens / 2)) / room if room > 0 else 1.0
    return share if share < 1 else 1.0


def decode_share(worker: WorkerView, prompt_tokens: float, output_tokens: float, tpot_seconds: float) -> float:
    """Part of a decode worker that a request takes: of its step, its batch or its KV cache, whichever is most."""
    share = max(step_share(worker, prompt_tokens, output_tokens, tpot_seconds), 1 / worker.max_batch)
    if worker.kv_capacity:
        share = max(share, (prompt_tokens + output_tokens / 2) / worker.kv_capacity)
    return share if share < 1 else 1.0
