"""How workers of an older revision are replaced: how many at a time, with which extra ones, and when that is halted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from fulcrum.api.types import Pool
from fulcrum.balance.estimate import deviation, served_share
from fulcrum.balance.revision import worker_image, worker_revision
from fulcrum.balance.snapshot import Snapshot, Worker, in_pool

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """Workers beyond the wanted number; decisions about roles and counts are made as if they did not exist."""

    coming: tuple[Worker, ...] = ()
    """Not ready yet; each takes the place of the worker that it `replaces` once it is."""
    superseded: tuple[Worker, ...] = ()
    """Of an older revision; the worker that replaces it is ready."""
    obsolete: tuple[Worker, ...] = ()
    """Of a revision that is no longer wanted, while the worker that they were to replace is still there."""

    @property
    def uids(self) -> frozenset[str]:
        """Uids of all of them."""
        return frozenset(w.uid for group in (self.coming, self.superseded, self.obsolete) for w in group)


def with_revisions(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with `stale` set on workers that were made from another spec, and may be made anew."""
    revisions = {
        pool.name: worker_revision(cluster=snapshot.name, spec=snapshot.spec, pool=pool) for pool in snapshot.spec.pools
    }

    images = {pool.name: worker_image(snapshot.spec, pool) for pool in snapshot.spec.pools}

    def is_stale(worker: Worker) -> bool:
        if worker.spec_hash != revisions.get(worker.pool):
            return True
        image = images[worker.pool]
        return image is not None and worker.release_image not in (None, image)

    def seen(worker: Worker) -> Worker:
        # Of thousands of workers few change: a copy of each would take a tenth of a plan.
        stale = worker.pool not in snapshot.refused and is_stale(worker)
        return worker if stale == worker.stale else replace(worker, stale=stale)

    workers = tuple(map(seen, snapshot.workers))
    return replace(snapshot, workers=workers)


def surge_of(workers: Iterable[Worker]) -> Surge:
    """Find the workers that stand twice for one place."""
    live = {worker.uid: worker for worker in workers if worker.live}
    coming: list[Worker] = []
    superseded: list[Worker] = []
    obsolete: list[Worker] = []
    for worker in live.values():
        replaced = live.get(worker.replaces or "")
        if replaced is None or replaced.pool != worker.pool:
            continue
        if worker.stale:
            obsolete.append(worker)
        elif worker.ready:
            superseded.append(replaced)
        else:
            coming.append(worker)
    return Surge(coming=tuple(coming), superseded=tuple(superseded), obsolete=tuple(obsolete))


def surge_limit(pool: Pool, wanted: int) -> int:
    """Return how many workers beyond `wanted` a pool may have during a rollout, never beyond `workers.max`."""
    return max(0, min(_workers(pool.rollout.max_surge, wanted, up=True), pool.workers.max - wanted))


def unavailable_limit(pool: Pool, wanted: int) -> int:
    """Return how many workers of a pool may be away at a time during a rollout."""
    most = _workers(pool.rollout.max_unavailable, wanted, up=False)
    return most if most or surge_limit(pool, wanted) else 1


def _workers(value: int | str, wanted: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    hundredths = int(value.removesuffix("%")) * wanted
    return -(-hundredths // 100) if up else hundredths // 100


def next_to_replace(stale: Iterable[Worker], serving: Iterable[Worker]) -> list[Worker]:
    """Return stale workers in the order in which they are replaced.

    The newest revision first, because a bad one is to go before a good one; then alternating between roles, so that
    no role loses more of its workers than another; then by ordinal.
    """
    candidates = list(stale)
    newest: dict[str, datetime] = {}
    for worker in candidates:
        newest[worker.spec_hash] = max(newest.get(worker.spec_hash, _LONG_AGO), worker.created or _LONG_AGO)
    have, gone = Counter(worker.role for worker in serving), Counter[object]()
    ordered: list[Worker] = []
    while candidates:
        chosen = max(
            candidates,
            key=lambda w: (newest[w.spec_hash], 1 - gone[w.role] / max(have[w.role], 1), -w.ordinal),
        )
        candidates.remove(chosen)
        gone[chosen.role] += 1
        ordered.append(chosen)
    return ordered


def halted_pools(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the pools whose rollout waits: with workers of the new revision fewer requests are inside the SLO than
    promised.

    Going back to an older revision is never halted, nor is anything while the attainment was not measured.
    """
    traffic = snapshot.measurements.traffic
    promised = snapshot.spec.slo.attainment
    if snapshot.continues_rollout or traffic is None or traffic.attainment is None:
        return ()
    if served_share(traffic) + deviation(traffic, promised) >= promised:
        return ()
    return tuple(pool.name for pool in snapshot.spec.pools if _new_one_serves(in_pool(snapshot.workers, pool.name)))


def _new_one_serves(workers: Iterable[Worker]) -> bool:
    known = [worker for worker in workers if worker.live]
    stale = [worker.created or _LONG_AGO for worker in known if worker.stale]
    wanted = [worker for worker in known if not worker.stale]
    goes_back = bool(stale) and any((worker.created or _LONG_AGO) < min(stale) for worker in wanted)
    return bool(stale) and not goes_back and any(worker.serving for worker in wanted)


def halted_message(pools: Iterable[str], *, cluster: str, generation: int) -> str:
    """Say what is halted, and what to do about it; without figures, which never stand still."""
    names = ", ".join(pools)
    return (
        f"The rollout of pool {names} is halted: fewer requests are inside the SLO than slo.attainment promises while "
        "workers of the new revision serve. It goes on by itself when the promise is kept again. Else correct the spec "
        "(going back is never halted), or go on as it is: kubectl annotate ic "
        f"{cluster} fulcrum.dev/continue-rollout={generation} --overwrite"
    )
