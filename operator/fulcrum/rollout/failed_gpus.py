"""GPUs that failed under workers: named in the status for a while, so that new workers go to other nodes meanwhile.

The status is all that is remembered. It is written before a worker leaves a node, so that its replacement avoids the
node whichever operator makes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from fulcrum.api.device_fault import AVOIDED
from fulcrum.api.status import MAX_FAILED_GPUS, timestamp
from fulcrum.api.types import FailedGpu, InferenceClusterStatus
from fulcrum.decide.snapshot import ObservedWorker


def failed_gpus(
    workers: Iterable[ObservedWorker], status: InferenceClusterStatus, now: datetime
) -> tuple[FailedGpu, ...]:
    """Return the GPUs that failed of late, those of `status` first. A GPU that fails again keeps its first time."""
    named = {(each.node, each.gpu): each for each in status.failed_gpus or () if now - _time(each) < AVOIDED}
    for worker in sorted(workers, key=lambda each: each.name):
        found = _failed_gpu(worker, now)
        if found is not None and now - _time(found) < AVOIDED and len(named) < MAX_FAILED_GPUS:
            named.setdefault((found.node, found.gpu), found)
    return tuple(named.values())


def leaving(workers: Iterable[ObservedWorker], status: InferenceClusterStatus, now: datetime) -> frozenset[str]:
    """Return the uids of workers that go to another node: those that were made before `status` named their GPU.

    A worker that was made later did avoid the node, and no other one had room: it stays, and the kubelet starts it
    again with ever longer pauses.
    """
    named = {(each.node, each.gpu): each.time for each in status.failed_gpus or ()}
    found = ((worker, _failed_gpu(worker, now)) for worker in workers)
    return frozenset(
        worker.uid
        for worker, gpu in found
        if gpu is not None
        and not worker.deleting
        and worker.created is not None
        and (at := named.get((gpu.node, gpu.gpu))) is not None
        and timestamp(worker.created) <= at
    )


def _failed_gpu(worker: ObservedWorker, now: datetime) -> FailedGpu | None:
    fault = worker.failed_device
    if fault is None or worker.node is None or worker.termination is None:
        return None
    at = min(worker.termination.at or now, now)
    if worker.created is not None:  # the clocks of nodes differ
        at = max(at, worker.created)
    return FailedGpu(node=worker.node, gpu=fault.gpu, fault=fault.what, worker=worker.name, time=timestamp(at))


def _time(gpu: FailedGpu) -> datetime:
    return datetime.fromisoformat(gpu.time)
