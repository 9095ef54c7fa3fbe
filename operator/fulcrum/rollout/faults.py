"""All that keeps workers from serving, found once for each plan: which Pod, what was said about it, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fulcrum.api.durations import seconds
from fulcrum.api.gateway import PairsReport
from fulcrum.api.messages import last_lines, names_of, shortened
from fulcrum.api.names import PORT_NIXL, Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import FailedGpu, InferenceClusterSpec, InferenceClusterStatus
from fulcrum.api.worker import EXIT_ENGINE_STALLED, LONGEST_START_FACTOR
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.snapshot import EXIT_MEANINGS, ObservedWorker
from fulcrum.decide.tuning import TUNING
from fulcrum.rollout.failed_gpus import failed_gpus, leaving

IMAGE_PULL_REASONS: Final = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
CONTAINER_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
"""Why the kubelet could not make the container: a Secret or a key that is absent, a volume, a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What keeps workers from serving."""

    worst: tuple[Reason, str] | None
    """What most needs a human, with a message; None while nothing does."""
    unable: frozenset[str]
    """Uids of workers that will not serve before something is done about them."""
    failed_gpus: tuple[FailedGpu, ...]
    """GPUs that failed of late: new workers avoid their nodes."""
    leaving: frozenset[str]
    """Uids of workers that go to another node, because a GPU failed under them."""
    restarts: tuple[ObservedWorker, ...]
    """Workers that no KV can be moved to or from, and that may be made anew now; the oldest comes first."""


def faults_of(
    workers: Sequence[ObservedWorker],
    spec: InferenceClusterSpec,
    measurements: Measurements,
    status: InferenceClusterStatus,
    now: datetime,
    *,
    start_timeout: str,
) -> Faults:
    """Find what keeps workers from serving. `status` is the one that stands, `start_timeout` as in the snapshot."""
    usual = timedelta(seconds=measurements.start_seconds or TUNING.start_seconds)
    found: dict[Reason, list[ObservedWorker]] = {}
    unable: set[str] = set()
    for worker in workers:
        reason = _fault_of(worker, seconds(start_timeout), now)
        if reason is not None:
            found.setdefault(reason, []).append(worker)
            # While Pods usually still start, a node may come for one that has none.
            young = worker.created is not None and now - worker.created < usual
            if worker.unschedulable is None or not young:
                unable.add(worker.uid)
    transfers = transfer_faults(workers, measurements.pairs, status, now)
    return Faults(
        worst=_worker_fault(found, start_timeout) or _transfer_fault(transfers) or _pool_fault(workers, spec),
        unable=frozenset(unable),
        failed_gpus=failed_gpus(workers, status, now),
        leaving=leaving(workers, status, now),
        restarts=transfers.due,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFaults:
    """Pairs between which no KV moves."""

    pairs: tuple[tuple[str, str], ...] = ()
    """Names of prefill and decode worker; requests are routed around them."""
    culprits: tuple[ObservedWorker, ...] = ()
    """Workers that fail with several peers, or with their only one: a restart may cure them. The oldest comes first."""
    due: tuple[ObservedWorker, ...] = ()
    """Culprits that may be restarted now."""
    recovering: tuple[str, ...] = ()
    """Workers on their way through a restart; the fault may come back with them."""


def transfer_faults(
    workers: Sequence[ObservedWorker], reports: Sequence[PairsReport], status: InferenceClusterStatus, now: datetime
) -> TransferFaults:
    """Return what is known of failing pairs; workers that do not serve are left out. `status` is the last one."""
    serving = {worker.name: worker for worker in workers if worker.serving}
    pairs = {
        (pair.prefill, pair.decode)
        for report in reports
        for pair in report.failing
        if pair.prefill in serving and pair.decode in serving
    }
    # Each gateway that answered must see the same: one that is cut off itself would restart all workers.
    blamed = frozenset.intersection(*(_blamed(report, pairs) for report in reports)) if reports else frozenset()
    ages = {name: now - (worker.created or now) for name, worker in serving.items()}
    culprits = sorted(blamed, key=lambda name: (-ages[name], name))
    fault = status.fault
    known = fault is not None and fault.reason is Reason.KV_TRANSFER_FAILING
    stood = now - datetime.fromisoformat(fault.last_transition_time) if fault is not None and known else timedelta()
    return TransferFaults(
        pairs=tuple(sorted(pairs)),
        culprits=tuple(serving[name] for name in culprits),
        # Each must have lived for half of the time for which the fault has stood: pauses double while restarts do not
        # help. These times are in the cluster, nothing else is remembered.
        due=tuple(
            serving[name]
            for name in culprits
            if ages[name] >= max(timedelta(seconds=TUNING.settled_seconds), stood / 2)
        ),
        recovering=_recovering(workers, status, now) if known else (),
    )


def _transfer_fault(faults: TransferFaults) -> tuple[Reason, str] | None:
    """Return the fault as a condition says it; None while KV moves. Without figures: each change would be a write."""
    if faults.pairs:
        pairs = names_of([f"{prefill} -> {decode}" for prefill, decode in faults.pairs])
        names = names_of([worker.name for worker in faults.culprits])
        restarts = f" Restarted, one at a time and where its role stays served: {names}." if names else ""
        return Reason.KV_TRANSFER_FAILING, (
            f"No KV moves between {pairs} (prefill -> decode). Requests go around them.{restarts} See whether the "
            f"decode Pods reach port {PORT_NIXL} of the prefill Pods (or spec.pools[].ports.nixl; NetworkPolicy, RDMA "
            "devices, UCX_TLS, attention backend), and fulcrum_worker_kv_failed_transfers_total."
        )
    if faults.recovering:
        return Reason.KV_TRANSFER_FAILING, (
            f"KV did not move between workers. It is watched whether it does now with {names_of([*faults.recovering])}."
        )
    return None


def _recovering(workers: Sequence[ObservedWorker], status: InferenceClusterStatus, now: datetime) -> tuple[str, ...]:
    """Return workers that are new, or drain for a restart: the fault is over when they have settled."""
    unsettled = sorted(
        worker.name
        for worker in workers
        if worker.restart_asked
        or worker.ready_since is None
        or now - worker.ready_since < timedelta(seconds=TUNING.settled_seconds)
    )
    missing = sum(role.desired for role in status.roles.values()) > len(workers)
    return (*unsettled, "a new worker") if missing else tuple(unsettled)


def _blamed(report: PairsReport, pairs: set[tuple[str, str]]) -> frozenset[str]:
    """Return the workers that work with no peer, and fail with several or with their only one."""
    sure = [
        pair
        for pair in report.failing
        if pair.failures >= TUNING.sure_failures and (pair.prefill, pair.decode) in pairs
    ]
    # Both sides of each pair: a worker in its role, and with how many other peers it works.
    pulls = [
        (((Role.PREFILL, pair.prefill), pair.prefill_works), ((Role.DECODE, pair.decode), pair.decode_works))
        for pair in sure
    ]
    failing = Counter(side for pull in pulls for side, _ in pull)
    return frozenset(
        side[1]
        for pull in pulls
        for (side, works), (peer, peer_works) in (pull, pull[::-1])
        if not works and (failing[side] > 1 or peer_works or failing[peer] == 1)
    )


def _worker_fault(found: Mapping[Reason, list[ObservedWorker]], start_timeout: str) -> tuple[Reason, str] | None:
    reason = next((reason for reason in _MESSAGES if reason in found), None)
    if reason is None:
        return None
    return reason, _message(reason, sorted(found[reason], key=lambda worker: worker.name), start_timeout)


def is_late(worker: ObservedWorker, start_timeout_seconds: float, now: datetime, *, factor: float = 1.0) -> bool:
    """Whether a worker has not been ready for `factor` times `start_timeout_seconds`."""
    if worker.ready or worker.unready_since is None:
        return False
    longest = timedelta(seconds=factor * start_timeout_seconds + TUNING.deadline_margin_seconds)
    return now - worker.unready_since > longest


def _fault_of(worker: ObservedWorker, start_timeout_seconds: float, now: datetime) -> Reason | None:
    """Return why the worker will not serve before something is done about it; None where it can yet."""
    if worker.ready and not worker.lost and worker.waiting_reason is None and worker.unschedulable is None:
        return None  # most workers, of thousands
    stalled = worker.termination is not None and worker.termination.exit_code == EXIT_ENGINE_STALLED
    # The agent gives up a start that makes no progress; one that makes progress may take several times as long.
    factor = LONGEST_START_FACTOR if worker.load is not None and worker.load.starting else 1.0
    holds = {
        Reason.GPU_FAILED: worker.failed_device is not None and not worker.deleting,
        Reason.ENGINE_FAILED: worker.engine_failed and not stalled,
        Reason.ENGINE_STALLED: worker.engine_failed,
        Reason.IMAGE_PULL_FAILED: worker.live and worker.waiting_reason in IMAGE_PULL_REASONS,
        Reason.CONTAINER_NOT_CREATED: worker.live and worker.waiting_reason in CONTAINER_REASONS,
        Reason.NODE_LOST: worker.lost,
        Reason.WORKER_UNSCHEDULABLE: worker.live and worker.unschedulable is not None,
        Reason.PROGRESS_DEADLINE_EXCEEDED: worker.live and is_late(worker, start_timeout_seconds, now, factor=factor),
    }
    return next((reason for reason, applies in holds.items() if applies), None)


_MESSAGES: Final[Mapping[Reason, str]] = {
    Reason.GPU_FAILED: (
        "A GPU of node {nodes} failed under {pods} ({device}). New workers go to other nodes where they find room: see "
        "status.failedGpus, drain the node, and repair or replace the GPU."
    ),
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


def _message(reason: Reason, workers: list[ObservedWorker], start_timeout: str) -> str:
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
        device=first.failed_device.what if first.failed_device is not None else "",
        kubelet=f"{first.waiting_reason}: {kubelet}." if kubelet else f"{first.waiting_reason}.",
        scheduler=(first.unschedulable or "").rstrip("."),
        nodes=", ".join(sorted({worker.node for worker in workers if worker.node})),
        start_timeout=start_timeout,
    )


def _ended(worker: ObservedWorker) -> str:
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


def _pool_fault(workers: Iterable[ObservedWorker], spec: InferenceClusterSpec) -> tuple[Reason, str] | None:
    """Return what is wrong with the KV pool; None while it works. Without figures: each change would be a write."""
    failing: dict[str, list[str]] = {}
    for worker in workers:
        offload = worker.load.offload if worker.load is not None else None
        if offload is not None and offload.pool is not None and offload.pool.problem is not None:
            failing.setdefault(offload.pool.problem, []).append(worker.name)
    claim = spec.engine.kv_cache.pool_claim
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
