"""Whether so many requests are turned away that a condition says so, and what could be done about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fulcrum.api.reasons import Reason
from fulcrum.api.types import BalanceMode, InferenceClusterSpec, InferenceClusterStatus
from fulcrum.balance.faults import pool_maxima, standing_fault
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
_ADVICE: Final[Mapping[BalanceMode, tuple[str, str]]] = {
    BalanceMode.AUTO: ("; the balance adds more where they help", ""),
    BalanceMode.MANUAL: (": look at the others, or at spec.balance.ratio", "change spec.balance.ratio, "),
    BalanceMode.OBSERVE: (": look at the others", "set spec.balance.mode to Auto, "),
    BalanceMode.EXTERNAL: (
        ": raise the replicas of its InferenceScales",
        "change how many of them the InferenceScales ask for in each role, ",
    ),
}
"""By mode: what to do while fewer workers serve than there may be, and what to try before there may be more."""


def rejecting(
    traffic: Traffic | None, spec: InferenceClusterSpec, workers: Iterable[Worker], status: InferenceClusterStatus
) -> str | None:
    """Return what to say about requests that are turned away for want of capacity; None while they are few.

    Without exact figures, which never stand still: the share is in the status. `status` is the one that stands.
    """
    if traffic is None:
        return None
    rejected = {reason: share for reason, share in traffic.rejections.items() if reason in _SHORT_OF}
    total, allowed = sum(rejected.values()), 1 - spec.slo.attainment
    fault = standing_fault(status)
    if fault is not None and fault.reason is Reason.REQUESTS_REJECTED:
        worth_saying = total > TUNING.rejections_end * allowed
    else:
        worth_saying = total > allowed and traffic.rate * traffic.window_seconds >= TUNING.rejections_least
    if not worth_saying:
        return None
    much = next(words for least, words in _SHARES if total >= least)
    reason = max(rejected, key=lambda each: rejected[each])
    advice = _advice(spec, serving=sum(worker.serving for worker in workers))
    return f"{much} of all requests are turned away, most of them for {reason}: {_SHORT_OF[reason]}. {advice}"


def _advice(spec: InferenceClusterSpec, *, serving: int) -> str:
    most = sum(pool.workers.max for pool in spec.pools)
    others, first = _ADVICE[spec.balance.mode]
    if serving < most:
        return f"{serving} of at most {most} workers serve{others}."
    return f"All {most} workers serve: {first}raise workers.max of a pool: {pool_maxima(spec)}; or widen spec.slo."
