"""What the agent of a simulated worker reports."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, RankReport, SpeedCoefficients, WorkCounters
from fulcrum.simulation.fleet import Pod
from fulcrum.simulation.worker import SimulatedWorker


def load_report(pod: Pod) -> LoadReport:
    """Return what the agent of a ready worker would answer to `GET /load`."""
    ranks, speed = pod.ranks, pod.pool.speed
    coefficients = getattr(speed, "coefficients", None)
    blocks = sum(rank.kv_capacity_blocks for rank in ranks)
    return LoadReport(
        role=pod.role,
        role_epoch=pod.epoch,
        ready=True,
        draining=pod.role is Role.DRAINING,
        running=sum(rank.running for rank in ranks),
        waiting=sum(len(rank.waiting) + rank.loading for rank in ranks),
        queued_prompt_tokens=sum(rank.queued_tokens for rank in ranks),
        kv_usage=sum(rank.kv_used_blocks for rank in ranks) / blocks,
        kv_held_for_peers=sum(rank.held_blocks for rank in ranks) / blocks,
        kv_capacity_tokens=speed.kv_capacity_tokens * len(ranks),
        speed=coefficients if isinstance(coefficients, SpeedCoefficients) else None,
        work=_counters(ranks),
        max_batch=speed.max_batch,
        max_batched_tokens=speed.max_batched_tokens,
        ranks=tuple(map(_rank_report, ranks)) if len(ranks) > 1 else msgspec.UNSET,
    )


def _rank_report(rank: SimulatedWorker) -> RankReport:
    return RankReport(
        rank=rank.dp_rank or 0,
        running=rank.running,
        waiting=len(rank.waiting) + rank.loading,
        queued_prompt_tokens=rank.queued_tokens,
        kv_usage=rank.kv_usage,
        kv_held_for_peers=rank.held_blocks / rank.kv_capacity_blocks,
        kv_capacity_tokens=rank.speed.kv_capacity_tokens,
        work=_counters([rank]),
    )


def _counters(ranks: Sequence[SimulatedWorker]) -> WorkCounters:
    works = [rank.work for rank in ranks]
    return WorkCounters(
        prompts=sum([work.prompts for work in works]),
        prompt_tokens=sum([work.prompt_tokens for work in works]),
        cached_tokens=sum([work.cached_tokens for work in works]),
        prefill_seconds=sum([work.prefill_seconds for work in works]),
        decode_tokens=sum([work.decode_tokens for work in works]),
        decode_seconds=sum([work.decode_seconds for work in works]),
        computed_tokens=sum([work.prompt_tokens - work.cached_tokens for work in works]),
    )
