"""What workers report of host memory and the KV pool that an operator on call should know."""

from __future__ import annotations

from collections.abc import Iterable

from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.balance.faults import names_of
from fulcrum.balance.revision import kv_pool_claim
from fulcrum.balance.snapshot import Worker

_PROBLEMS = {
    "readOnly": "the workers may not write to it; see its access mode, and whether group 10001 may write",
    "full": "its volume is full; make it larger, or lower kvCache.offload.pool.size",
    "slow": "it does not answer in time",
    "gone": "it answers with errors",
    "unusable": "the engine's KV cannot be shared; its log says why (kv_pool_not_used)",
}


def pool_fault(spec: InferenceClusterSpec, workers: Iterable[Worker]) -> tuple[Reason, str] | None:
    """Return what is wrong with the KV pool; None while it works. Without figures: each change would be a write."""
    claim = kv_pool_claim(spec)
    failing: dict[str, list[str]] = {}
    for worker in workers:
        offload = worker.load.offload if worker.load is not None else None
        if offload is not None and offload.pool is not None and offload.pool.problem is not None:
            failing.setdefault(offload.pool.problem, []).append(worker.name)
    if claim is None or not failing:
        return None
    said = "; ".join(
        f"{_PROBLEMS.get(problem, problem)} ({problem}, {names_of(sorted(names))})"
        for problem, names in sorted(failing.items())
    )
    return Reason.KV_POOL_FAILING, (
        f"The KV pool on claim {claim} does not work: {said}. Requests are served; prompts are computed where "
        "their KV would have been loaded."
    )


def restoring_notes(workers: Iterable[Worker]) -> list[str]:
    """Return why KV comes back otherwise than the spec asks."""
    reasons = {
        worker.load.offload.reason
        for worker in workers
        if worker.load is not None and worker.load.offload is not None and worker.load.offload.reason is not None
    }
    return [f"KV comes back by policy load: {reason}." for reason in sorted(reasons)]
