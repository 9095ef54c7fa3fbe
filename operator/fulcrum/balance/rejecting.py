"""Whether so many requests are turned away that a condition says so, and what could be done about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fulcrum.api.reasons import Reason
from fulcrum.api.types import BalanceMode, ConditionStatus, ConditionType, InferenceClusterSpec, InferenceClusterStatus
from fulcrum.balance.snapshot import Worker
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
"""What is short, for each reason of a rejection for want of capacity."""
_FIRST: Final[Mapping[BalanceMode, str]] = {
    BalanceMode.AUTO: "",
    BalanceMode.MANUAL: "change spec.balance.ratio, ",
    BalanceMode.OBSERVE: "set spec.balance.mode to Auto, ",
    BalanceMode.EXTERNAL: "change how many of them the InferenceScales ask for in each role, ",
}
"""What to try before more workers, by mode."""


def rejecting(
    traffic: Traffic | None, spec: InferenceClusterSpec, workers: Iterable[Worker], status: InferenceClusterStatus
) -> str | None:
    """Return what to say about requests that are turned away for want of capacity; None while they are few.

    Without exact figures, which never stand still: the share is in the status. `status` is the one that stands.
    """
    if traffic is None:
        return None
    rejected = {reason: share for reason, share in traffic.rejections.items() if reason in _SHORT_OF}
    total = sum(rejected.values())
    if not _worth_saying(traffic, total, spec=spec, status=status):
        return None
    much = next(words for least, words in _SHARES if total >= least)
    reason = max(rejected, key=lambda each: rejected[each])
    advice = _advice(spec, serving=sum(worker.serving for worker in workers))
    return f"{much} of all requests are turned away, most of them for {reason}: {_SHORT_OF[reason]}. {advice}"


def _worth_saying(
    traffic: Traffic, total: float, *, spec: InferenceClusterSpec, status: InferenceClusterStatus
) -> bool:
    allowed = 1 - spec.slo.attainment
    said = any(
        c.type is ConditionType.DEGRADED and c.status is ConditionStatus.TRUE and c.reason is Reason.REQUESTS_REJECTED
        for c in status.conditions
    )
    if said:
        return total > TUNING.rejections_end * allowed
    return total > allowed and traffic.rate * traffic.window_seconds >= TUNING.rejections_least


def _advice(spec: InferenceClusterSpec, *, serving: int) -> str:
    pools = spec.pools
    most = sum(pool.workers.max for pool in pools)
    if serving < most:
        if spec.balance.mode is BalanceMode.AUTO:
            return f"{serving} of at most {most} workers serve; the balance adds more where they help."
        if spec.balance.mode is BalanceMode.EXTERNAL:
            return f"{serving} of at most {most} workers serve: raise the replicas of its InferenceScales."
        ratio = ", or at spec.balance.ratio" if spec.balance.mode is BalanceMode.MANUAL else ""
        return f"{serving} of at most {most} workers serve: look at the others{ratio}."
    bounds = ", ".join(f"{pool.name} ({pool.workers.max})" for pool in pools)
    first = _FIRST[spec.balance.mode]
    return f"All {most} workers serve: {first}raise workers.max of a pool: {bounds}; or widen spec.slo."
