"""What keeps a worker or the KV pool from serving: which Pod, what was said about it, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from fulcrum.api.durations import seconds
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Condition, ConditionStatus, ConditionType, InferenceClusterSpec, InferenceClusterStatus
from fulcrum.api.worker import EXIT_ENGINE_STALLED
from fulcrum.balance.revision import kv_pool_claim
from fulcrum.balance.snapshot import EXIT_MEANINGS, Worker

SAID_BYTES: Final = 1024
"""How much a condition repeats of what an engine, the kubelet or the API server said."""
NAMED_WORKERS: Final = 8
"""How many workers a message lists by name."""

IMAGE_PULL_REASONS: Final = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
CONTAINER_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
"""Why the kubelet could not make the container: a Secret or a key that is absent, a volume, a command."""
DEADLINE_MARGIN: Final = timedelta(seconds=180)
"""Beyond `engine.startTimeout`: the agent and the kubelet give up first, and what they say is more precise."""


def standing_fault(status: InferenceClusterStatus) -> Condition | None:
    """Return the condition Degraded of a status while it is true."""
    degraded = next((c for c in status.conditions if c.type is ConditionType.DEGRADED), None)
    return degraded if degraded is not None and degraded.status is ConditionStatus.TRUE else None


def worker_fault(workers: Iterable[Worker], spec: InferenceClusterSpec, now: datetime) -> tuple[Reason, str] | None:
    """Return the fault of workers that most needs a human, with a message; None where there is none."""
    found: dict[Reason | None, list[Worker]] = {}
    for worker in sorted(workers, key=lambda worker: worker.name):
        found.setdefault(fault_of(worker, spec, now), []).append(worker)
    return next(((reason, _message(reason, found[reason], spec)) for reason in _MESSAGES if reason in found), None)


def fault_of(worker: Worker, spec: InferenceClusterSpec, now: datetime) -> Reason | None:
    """Return why the worker will not serve before an operator does something about it; None where it may."""
    stalled = worker.termination is not None and worker.termination.exit_code == EXIT_ENGINE_STALLED
    longest = timedelta(seconds=seconds(spec.engine.start_timeout)) + DEADLINE_MARGIN
    late = not worker.ready and worker.unready_since is not None and now - worker.unready_since > longest
    holds = {
        Reason.ENGINE_FAILED: worker.engine_failed and not stalled,
        Reason.ENGINE_STALLED: worker.engine_failed,
        Reason.IMAGE_PULL_FAILED: worker.live and worker.waiting_reason in IMAGE_PULL_REASONS,
        Reason.CONTAINER_NOT_CREATED: worker.live and worker.waiting_reason in CONTAINER_REASONS,
        Reason.NODE_LOST: worker.lost,
        Reason.WORKER_UNSCHEDULABLE: worker.live and worker.unschedulable is not None,
        Reason.PROGRESS_DEADLINE_EXCEEDED: worker.live and late,
    }
    return next((reason for reason, applies in holds.items() if applies), None)


_MESSAGES: Final[Mapping[Reason, str]] = {
    Reason.ENGINE_FAILED: "The engine of Pod {first}{others} {ended}",
    Reason.ENGINE_STALLED: "The engine of Pod {first}{others} {ended}",
    Reason.IMAGE_PULL_FAILED: (
        "The image of {pods} cannot be pulled: {kubelet} Check that engine.image exists in its registry, that nodes "
        "reach it, and imagePullSecrets in pools[].template.spec."
    ),
    Reason.CONTAINER_NOT_CREATED: (
        "The container of {pods} cannot be made: {kubelet} Most often a Secret, ConfigMap or claim that the spec names "
        "is absent, or has no such key: create it, or correct model.credentials, model.cache or pools[].template."
    ),
    Reason.NODE_LOST: (
        "Node {nodes} does not answer any more or is gone: {pods} {are} removed, and replaced where another node has "
        "room. If the node comes back, nothing is to be done."
    ),
    Reason.WORKER_UNSCHEDULABLE: (
        "{names} cannot be scheduled: {scheduler}. Add nodes with the label and the resources that the pool asks for, "
        "or lower workers.max."
    ),
    Reason.PROGRESS_DEADLINE_EXCEEDED: (
        "{pods} {are} not ready and engine.startTimeout ({start_timeout}) is over: see `kubectl describe pod {first}` "
        "and `kubectl logs {first}`; where weights take longer to load, raise engine.startTimeout."
    ),
}
"""The most urgent first: faults that time alone does not mend."""


def _message(reason: Reason, workers: list[Worker], spec: InferenceClusterSpec) -> str:
    first, *others = workers
    names = names_of([worker.name for worker in workers])
    kubelet = shortened(first.waiting_message.strip())
    return _MESSAGES[reason].format(
        first=first.name,
        others=f" (and {names_of([worker.name for worker in others])})" if others else "",
        names=names,
        pods=f"Pods {names}" if others else f"Pod {names}",
        are="are" if others else "is",
        ended=_ended(first),
        kubelet=f"{first.waiting_reason}: {kubelet}." if kubelet else f"{first.waiting_reason}.",
        scheduler=(first.unschedulable or "").rstrip("."),
        nodes=", ".join(sorted({worker.node for worker in workers if worker.node})),
        start_timeout=spec.engine.start_timeout,
    )


def _ended(worker: Worker) -> str:
    if worker.termination is None:
        return f"keeps ending ({worker.waiting_reason})."
    code, lines = worker.termination.exit_code, last_lines(worker.termination.message.strip())
    said = f" Last lines:\n{lines}" if lines else ""
    return f"failed: {EXIT_MEANINGS.get(code, 'the worker ended')} (exit code {code}).{said}"


_POOL_PROBLEMS: Final[Mapping[str, str]] = {
    "readOnly": "the workers may not write to it; see its access mode, and whether group 10001 may write",
    "full": "its volume is full; make it larger, or lower kvCache.offload.pool.size",
    "slow": "it does not answer in time",
    "gone": "it answers with errors",
    "unusable": "the engine's KV cannot be shared; its log says why (kv_pool_not_used)",
}


def pool_fault(workers: Iterable[Worker], spec: InferenceClusterSpec) -> tuple[Reason, str] | None:
    """Return what is wrong with the KV pool; None while it works. Without figures: each change would be a write."""
    failing: dict[str, list[str]] = {}
    for worker in workers:
        offload = worker.load.offload if worker.load is not None else None
        if offload is not None and offload.pool is not None and offload.pool.problem is not None:
            failing.setdefault(offload.pool.problem, []).append(worker.name)
    claim = kv_pool_claim(spec)
    if claim is None or not failing:
        return None
    said = "; ".join(
        f"{_POOL_PROBLEMS.get(problem, problem)} ({problem}, {names_of(sorted(names))})"
        for problem, names in sorted(failing.items())
    )
    return Reason.KV_POOL_FAILING, (
        f"The KV pool on claim {claim} does not work: {said}. Requests are served; prompts are computed where "
        "their KV would have been loaded."
    )


def last_lines(text: str) -> str:
    """Return the end of `text` in at most `SAID_BYTES` of UTF-8, from the beginning of a line where there is one."""
    tail = text.encode()[-SAID_BYTES:].decode(errors="ignore")
    return tail if tail == text else tail.partition("\n")[2] or tail


def shortened(text: str) -> str:
    """Return the beginning of `text` in at most `SAID_BYTES` of UTF-8."""
    return text.encode()[:SAID_BYTES].decode(errors="ignore")


def names_of(names: list[str]) -> str:
    """Return names for a message, at most `NAMED_WORKERS` of them."""
    listed = ", ".join(names[:NAMED_WORKERS])
    return listed if len(names) <= NAMED_WORKERS else f"{listed} and {len(names) - NAMED_WORKERS} more"


def pool_maxima(spec: InferenceClusterSpec) -> str:
    """Return the pools for a message, each with the workers that it may have at most."""
    return ", ".join(f"{pool.name} ({pool.workers.max})" for pool in spec.pools)
