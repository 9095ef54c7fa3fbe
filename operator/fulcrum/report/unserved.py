"""What is not served although workers run: requests beyond their capacity, LoRA adapters, files and batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fulcrum.api.messages import names_of
from fulcrum.api.reasons import Reason
from fulcrum.api.types import AdapterStatus, AdmissionPolicy, BalanceMode, Condition, InferenceClusterSpec
from fulcrum.decide.tuning import TUNING
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


def requests_rejected(
    spec: InferenceClusterSpec, traffic: Traffic | None, fault: Condition | None, *, over_capacity: bool, serving: int
) -> tuple[Reason, str] | None:
    """Return what to say when more requests arrive than the workers can serve; None while they can.

    `fault` is the condition Degraded that stands, `serving` the number of workers that serve. `over_capacity`: the load
    is more than all workers that spec.pools allows can serve within spec.slo.
    """
    rejected = _rejecting(spec, traffic, fault, serving=serving)
    if over_capacity:
        return Reason.OVER_CAPACITY, _over_capacity(spec, rejected)
    return (Reason.REQUESTS_REJECTED, rejected) if rejected is not None else None


def _rejecting(
    spec: InferenceClusterSpec, traffic: Traffic | None, fault: Condition | None, *, serving: int
) -> str | None:
    """Return what to say about requests that are turned away for want of capacity; None while they are few.

    Without exact figures, which never stand still: the share is in the status.
    """
    if traffic is None:
        return None
    rejected = {reason: share for reason, share in traffic.rejections.items() if reason in _SHORT_OF}
    total, allowed = sum(rejected.values()), 1 - spec.slo.attainment
    if fault is not None and fault.reason is Reason.REQUESTS_REJECTED:
        worth_saying = total > TUNING.rejections_end * allowed
    else:
        worth_saying = total > allowed and traffic.rate * traffic.window_seconds >= TUNING.rejections_least
    if not worth_saying:
        return None
    much = next(words for least, words in _SHARES if total >= least)
    reason = max(rejected, key=lambda each: rejected[each])
    advice = _advice(spec, serving=serving)
    return f"{much} of all requests are turned away, most of them for {reason}: {_SHORT_OF[reason]}. {advice}"


def _advice(spec: InferenceClusterSpec, *, serving: int) -> str:
    most = sum(pool.workers.max for pool in spec.pools)
    others, first = _ADVICE[spec.balance.mode]
    if serving < most:
        return f"{serving} of at most {most} workers serve{others}."
    return f"All {most} workers serve: {first}raise workers.max of a pool: {_pool_maxima(spec)}; or widen spec.slo."


def _pool_maxima(spec: InferenceClusterSpec) -> str:
    """Return the pools for a message, each with the workers that it may have at most."""
    return ", ".join(f"{pool.name} ({pool.workers.max})" for pool in spec.pools)


def _over_capacity(spec: InferenceClusterSpec, rejected: str | None) -> str:
    most = sum(pool.workers.max for pool in spec.pools)
    said = f"More arrives than all {most} workers can serve within spec.slo."
    if rejected is not None:
        return f"{said} {rejected}"
    shed = ", or turn requests away with spec.admission" if spec.admission.policy is AdmissionPolicy.OFF else ""
    return f"{said} Raise workers.max of a pool: {_pool_maxima(spec)}; or widen spec.slo{shed}."


def adapters_missing(adapters: Iterable[AdapterStatus]) -> tuple[Reason, str] | None:
    """Return which LoRA adapters some worker has failed to load, and the first one's reason; None where none has."""
    failed = [each for each in adapters if each.message is not None]
    if not failed:
        return None
    names = names_of([each.name for each in failed])
    which = f"Adapter {names} is" if len(failed) == 1 else f"Adapters {names} are"
    return Reason.ADAPTER_NOT_LOADED, (
        f"{which} not loaded on every ready worker; the model and other adapters are served. "
        f"{failed[0].name}: {failed[0].message}."
    )


def batches_missing(problem: str | None) -> tuple[Reason, str] | None:
    """Return why files and batches are not served; None where they are, or none are to be."""
    if problem is None:
        return None
    return Reason.BATCH_NOT_READY, f"Files and batches get 503; all other requests are served. {problem}"
