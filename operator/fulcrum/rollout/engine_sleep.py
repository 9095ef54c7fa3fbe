"""Sleep at depth Engines: Pods stay, and vLLM's sleep mode gives back the memory of their GPUs.

Gateways send nothing to a worker that drains. So a worker drains first, then its agent is told to put the engine to
sleep; at a wake the engine is woken first, then the worker gets its role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec, SleepState, SleepStatus
from fulcrum.api.worker import EngineSleepState
from fulcrum.decide.snapshot import ObservedWorker
from fulcrum.decide.tuning import TUNING
from fulcrum.rollout.actions import Action, TellSleep
from fulcrum.rollout.step_context import StepContext, drain


def sleepers(spec: InferenceClusterSpec, workers: Iterable[ObservedWorker]) -> tuple[ObservedWorker, ...]:
    """Return the workers whose Pods stay while the cluster sleeps."""
    pools = {pool.name for pool in spec.pools}
    if not spec.balance.engine_sleep_level:
        return ()
    return tuple(worker for worker in workers if worker.live and not worker.stale and worker.pool in pools)


def all_asleep(spec: InferenceClusterSpec, workers: Sequence[ObservedWorker], was: SleepStatus) -> bool:
    """Tell whether each worker that is there sleeps. One that does not answer does what it did before."""
    staying = {worker.uid for worker in sleepers(spec, workers)}
    before = was.state == SleepState.ASLEEP
    return all(
        worker.uid in staying
        and worker.role is Role.DRAINING
        and (before if worker.load is None else worker.load.sleep == EngineSleepState.ASLEEP)
        for worker in workers
    )


def may_rest(context: StepContext, worker: ObservedWorker) -> bool:
    """Tell whether the engine of a draining worker may not be awake: it gets no role before it is known to be."""
    if worker.load is None:
        return context.spec.balance.engine_sleep_level > 0
    return worker.load.rests


def sleep_engines(context: StepContext) -> Iterator[Action]:
    """Drain the workers that stay, and put their engines to sleep once they have nothing left; wake all others."""
    level = context.spec.balance.engine_sleep_level
    staying = {worker.uid for worker in context.assignment.sleepers}
    for worker in context.workers:
        if worker.deleting or worker.agent is None:
            continue
        if worker.uid not in staying:
            if worker.load is not None and worker.load.rests:
                yield _tell(worker, 0, Reason.WAKING)
        elif worker.role is not Role.DRAINING or worker.draining_since is None:
            if worker.ready:
                yield drain(worker, Reason.FELL_ASLEEP)
        elif _drained(context, worker):
            yield _tell(worker, level, Reason.FELL_ASLEEP)


def _drained(context: StepContext, worker: ObservedWorker) -> bool:
    if worker.load is None or worker.draining_since is None or worker.load.sleep != EngineSleepState.AWAKE:
        return False
    # Gateways see a new label within 100 ms; before that an idle worker may still be given a request.
    settled = (context.now - worker.draining_since).total_seconds() >= TUNING.tick_seconds
    return worker.load.idle and settled


def _tell(worker: ObservedWorker, level: int, reason: Reason) -> TellSleep:
    return TellSleep(name=worker.name, uid=worker.uid, epoch=worker.role_epoch, level=level, reason=reason)
