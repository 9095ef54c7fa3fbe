"""What `/load` tells of each rank of data parallel."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fulcrum.api.worker import RankReport
from fulcrum_worker.engine_metrics import EngineMetrics


def rank_reports(ranks: Sequence[EngineMetrics]) -> tuple[RankReport, ...] | msgspec.UnsetType:
    """Return the reports in the order of the ranks; unset where the engine is one rank."""
    return tuple(_report(rank, metrics) for rank, metrics in enumerate(ranks)) or msgspec.UNSET


def _report(rank: int, metrics: EngineMetrics) -> RankReport:
    return RankReport(
        rank=rank,
        running=metrics.running,
        waiting=metrics.waiting,
        queued_prompt_tokens=0 if metrics.waiting == 0 else None,
        kv_usage=metrics.kv_usage,
        kv_held_for_peers=metrics.kv_held_for_peers,
        kv_capacity_tokens=metrics.kv_capacity_tokens,
        prefix_tokens=metrics.prefix_tokens,
        prefix_hit_tokens=metrics.prefix_hit_tokens,
        work=metrics.work,
        transfers=metrics.transfers,
        steps=metrics.progress.steps if metrics.progress is not None else None,
    )
