"""What the agent of a simulated worker reports."""

from __future__ import annotations

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, SpeedCoefficients, WorkCounters
from fulcrum.simulation.fleet import Pod
from fulcrum.simulation.worker import SimulatedWorker


def load_report(pod: Pod, worker: SimulatedWorker) -> LoadReport:
    """Return what the agent of a ready worker would answer to `GET /load`."""
    speed = worker.speed
    coefficients = getattr(speed, "coefficients", None)
    return LoadReport(
        role=pod.role,
        role_epoch=pod.epoch,
        ready=True,
        draining=pod.role is Role.DRAINING,
        running=worker.running,
        waiting=len(worker.waiting) + worker.loading,
        queued_prompt_tokens=worker.queued_tokens,
        kv_usage=worker.kv_usage,
        kv_held_for_peers=worker.held_blocks / worker.kv_capacity_blocks,
        kv_capacity_tokens=speed.kv_capacity_tokens,
        speed=coefficients if isinstance(coefficients, SpeedCoefficients) else None,
        work=WorkCounters(
            prompts=worker.work.prompts,
            prompt_tokens=worker.work.prompt_tokens,
            cached_tokens=worker.work.cached_tokens,
            prefill_seconds=worker.work.prefill_seconds,
            decode_tokens=worker.work.decode_tokens,
            decode_seconds=worker.work.decode_seconds,
            computed_tokens=worker.work.prompt_tokens - worker.work.cached_tokens,
        ),
        max_batch=speed.max_batch,
        max_batched_tokens=speed.max_batched_tokens,
    )
