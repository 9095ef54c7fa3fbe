"""The tiers below a worker's KV cache, as its own reports describe them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fulcrum.api.types import OffloadPolicy
from fulcrum.api.worker import OffloadReport
from fulcrum.capacity.kv import TransferCost

_HOST_BYTES_PER_SECOND: Final = 25e9
"""Before the first load: PCIe Gen4 x16, as large copies reach it."""
_POOL_BYTES_PER_SECOND: Final = 2.9e9
"""Before the first read: a network of 25 Gb/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """What a worker has below its KV cache. Counts are of tokens whose KV fits."""

    host_tokens: float
    host_link: TransferCost
    pool_tokens: float = 0.0
    """All workers of the cluster share them; 0: no pool, or one that does not work."""
    pool_link: TransferCost | None = None
    """From the pool to the device, host memory on the way included."""
    front: bool = False
    """The front of a prefix can be computed while the rest of it is loaded."""


def tiers_of(report: OffloadReport) -> Tiers | None:
    """Return the tiers that a worker reports; None while it does not know how many tokens fit."""
    if not report.host_tokens or report.host_bytes <= 0:
        return None
    token_bytes = report.host_bytes / report.host_tokens
    host = _link(token_bytes, report.loaded_bytes, report.load_seconds, _HOST_BYTES_PER_SECOND)
    pool, pool_tokens, pool_link = report.pool, 0.0, None
    if pool is not None and pool.problem is None:
        read = _link(token_bytes, pool.read_bytes, pool.read_seconds, _POOL_BYTES_PER_SECOND)
        pool_tokens = max(pool.size_bytes / token_bytes, 0.0)
        pool_link = TransferCost(base_seconds=0.0, seconds_per_token=host.seconds_per_token + read.seconds_per_token)
    return Tiers(
        host_tokens=float(report.host_tokens),
        host_link=host,
        pool_tokens=pool_tokens,
        pool_link=pool_link,
        front=report.policy == OffloadPolicy.PARTIAL_RECOMPUTE,
    )


def _link(token_bytes: float, moved_bytes: float | None, seconds: float | None, prior: float) -> TransferCost:
    rate = moved_bytes / seconds if moved_bytes and seconds and moved_bytes > 0 and seconds > 0 else prior
    return TransferCost(base_seconds=0.0, seconds_per_token=token_bytes / rate)
