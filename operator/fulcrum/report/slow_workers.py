"""Workers on GPUs that are slower than the others of their pool, for people: routing learns it by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from fulcrum.api.status import MAX_SLOW_WORKERS, timestamp
from fulcrum.api.types import Pool, SlowWorker
from fulcrum.capacity.accelerators import CPU
from fulcrum.capacity.pace import slower_than_peers
from fulcrum.decide.snapshot import ObservedWorker


def slow_workers(
    pools: Iterable[Pool],
    workers: Iterable[ObservedWorker],
    paces: Mapping[str, float],
    last: Iterable[SlowWorker],
    now: datetime,
) -> tuple[SlowWorker, ...]:
    """Return the slow workers of all pools on GPUs, the slowest first.

    `paces` are by uid, see `Measurements`; `last` is what the status says. A worker of which nothing is known (the
    operator started anew) stays what it was. Figures stay while they hardly change, because each change is a write.
    Processes on CPUs share cores, which is no fault.
    """
    before = {(each.worker, each.node): each for each in last}
    counted = [worker for worker in workers if _counts(worker)]
    found = []
    for pool in pools:
        if pool.accelerator != CPU.name:
            found += _of_pool([worker for worker in counted if worker.pool == pool.name], paces, before, now)
    return tuple(sorted(found, key=lambda each: (-each.factor, each.worker))[:MAX_SLOW_WORKERS])


def _counts(worker: ObservedWorker) -> bool:
    """Whether the worker is up and of the present revision: others may be slower by what they were made from."""
    return worker.ready and not worker.deleting and not worker.stale and worker.node is not None


def _of_pool(
    alike: Sequence[ObservedWorker],
    paces: Mapping[str, float],
    before: Mapping[tuple[str, str], SlowWorker],
    now: datetime,
) -> list[SlowWorker]:
    times = {worker.name: paces[worker.uid] for worker in alike if worker.uid in paces}
    factors = slower_than_peers(times, {name for name, _ in before})
    slow = []
    for worker in alike:
        stood, node = before.get((worker.name, worker.node or "")), worker.node or ""
        if worker.name not in factors:
            if stood is not None and worker.name not in times:
                slow.append(stood)
            continue
        factor = round(factors[worker.name], 1)
        if stood is not None and abs(factor - stood.factor) <= stood.factor / 4:
            slow.append(stood)
        else:
            since = stood.since if stood is not None else timestamp(now)
            slow.append(SlowWorker(worker=worker.name, node=node, pool=worker.pool, factor=factor, since=since))
    return slow
