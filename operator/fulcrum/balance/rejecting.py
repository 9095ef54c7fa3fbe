"""Whether so many requests are turned away that a condition says so, and what could be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fulcrum.api.reasons import Reason
from fulcrum.api.types import BalanceMode, ConditionStatus, ConditionType
from fulcrum.balance.snapshot import Snapshot
from fulcrum.balance.tuning import TUNING
from fulcrum.load.traffic import Traffic

_SHARES: Final = ((0.5, "More than half"), (0.25, "More than a quarter"), (0.1, "More than a tenth"), (0.0, "Some"))
_SHORT_OF: Final[Mapping[Reason, str]] = {
    Reason.TTFT_UNREACHABLE: "first tokens would come too late: prefill is short",
    Reason.TPOT_UNREACHABLE: "tokens would come too slowly: decode is short",
    Reason.KV_EXHAUSTED: "the KV cache is full: decode is short",
    Reason.QUEUE_FULL: "a queue or a batch is full",
    Reason.CLASS_SHARE: "the room that is left is kept for other classes",
    Reason.PREEMPTED: "they made way for higher classes",
}
"""What admission turns away for, as against requests that find no worker at all."""
_FIRST: Final[Mapping[BalanceMode, str]] = {
    BalanceMode.AUTO: "",
    BalanceMode.MANUAL: "change spec.balance.ratio, ",
    BalanceMode.OBSERVE: "set spec.balance.mode to Auto, ",
    BalanceMode.EXTERNAL: "change how many of them the InferenceScales ask for in each role, ",
}
"""What is to be tried before more workers."""


def rejecting(snapshot: Snapshot) -> str | None:
    """Return what to say about requests that are turned away for want of capacity; None while they are few.

    Without exact figures, which never stand still: the share is in the status.
    """
    traffic = snapshot.outlook.traffic
    if traffic is None:
        return None
    rejected = {reason: share for reason, share in traffic.rejections.items() if reason in _SHORT_OF}
    total = sum(rejected.values())
    if not _worth_saying(snapshot, traffic, total):
        return None
    much = next(words for least, words in _SHARES if total >= least)
    reason = max(rejected, key=lambda each: rejected[each])
    return (
        f"{much} of all requests are turned away, most of them for {reason}: {_SHORT_OF[reason]}. {_advice(snapshot)}"
    )


def _worth_saying(snapshot: Snapshot, traffic: Traffic, total: float) -> bool:
    allowed = 1 - snapshot.spec.slo.attainment
    said = any(
        c.type is ConditionType.DEGRADED and c.status is ConditionStatus.TRUE and c.reason is Reason.REQUESTS_REJECTED
        for c in snapshot.status.conditions
    )
    if said:
        return total > TUNING.rejections_end * allowed
    return total > allowed and traffic.rate * traffic.window_seconds >= TUNING.rejections_least


def _advice(snapshot: Snapshot) -> str:
    pools = snapshot.spec.pools
    there = sum(1 for worker in snapshot.workers if worker.serving)
    most = sum(pool.workers.max for pool in pools)
    if there < most:
        if snapshot.spec.balance.mode is BalanceMode.AUTO:
            return f"{there} of at most {most} workers serve; the balance adds more where they help."
        if snapshot.spec.balance.mode is BalanceMode.EXTERNAL:
            return f"{there} of at most {most} workers serve: raise the replicas of its InferenceScales."
        ratio = ", or at spec.balance.ratio" if snapshot.spec.balance.mode is BalanceMode.MANUAL else ""
        return f"{there} of at most {most} workers serve: look at those that do not{ratio}."
    bounds = ", ".join(f"{pool.name} ({pool.workers.max})" for pool in pools)
    first = _FIRST[snapshot.spec.balance.mode]
    return f"All {most} workers serve: {first}raise workers.max of a pool: {bounds}; or widen spec.slo."
