"""What workers report of host memory and the KV pool, summed up for each pool of workers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fulcrum.api.types import KvTierStatus
from fulcrum.api.worker import LoadReport, OffloadReport


def kv_tiers(reports: Iterable[tuple[str, LoadReport]]) -> dict[str, KvTierStatus]:
    """Return figures by pool of workers from the reports of each pool; of pools without host memory there are none."""
    by_pool: dict[str, list[tuple[LoadReport, OffloadReport]]] = {}
    for pool, report in reports:
        if report.offload is not None:
            by_pool.setdefault(pool, []).append((report, report.offload))
    return {pool: _figures(each) for pool, each in sorted(by_pool.items())}


def _figures(reports: list[tuple[LoadReport, OffloadReport]]) -> KvTierStatus:
    tiers = [tier for _, tier in reports]
    shared = [tier.pool for tier in tiers if tier.pool is not None]
    # Hits and prompts of one engine go together: what one of them does not tell, the other must not count.
    prompts = [(report.work.prompt_tokens, tier) for report, tier in reports if report.work is not None]
    return KvTierStatus(
        host_usage=_ratio((tier.host_used, 1.0) for tier in tiers),
        # Every engine tells the usage of the whole: their mean.
        shared_usage=_ratio((pool.used_bytes, pool.size_bytes) for pool in shared),
        device_hits=_ratio((tier.device_hit_tokens, tokens) for tokens, tier in prompts),
        host_hits=_ratio((tier.host_hit_tokens, tokens) for tokens, tier in prompts),
        shared_hits=_ratio((tier.pool.hit_tokens, tokens) for tokens, tier in prompts if tier.pool is not None),
        host_bytes_per_second=_ratio((tier.loaded_bytes, tier.load_seconds) for tier in tiers),
        shared_bytes_per_second=_ratio((pool.read_bytes, pool.read_seconds) for pool in shared),
    )


def _ratio(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Sum of the first figures over that of the second ones, of pairs that are known; None where that is no figure."""
    known = [(part, whole) for part, whole in pairs if part is not None and whole is not None]
    parts, wholes = sum(part for part, _ in known), sum(whole for _, whole in known)
    return parts / wholes if 0 <= parts < math.inf and 0 < wholes < math.inf else None
