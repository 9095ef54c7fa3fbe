"""How workers of an older revision are replaced: how many at a time, with which extra ones, and when that is halted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.decide.measurements import deviation, served_share
from fulcrum.decide.snapshot import ObservedWorker
from fulcrum.load.traffic import Traffic

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Workers beyond the wanted number; decisions about roles and counts are made as if they did not exist."""

    halted: frozenset[str] = frozenset()
    """Pools whose workers of an older revision stay for now."""
    coming: tuple[ObservedWorker, ...] = ()
    """Not ready yet; each takes the place of the worker that it `replaces` once it is."""
    leaving: tuple[ObservedWorker, ...] = ()
    """Replaced by a worker that is ready, or a replacement whose own revision is no longer wanted."""
    uids: frozenset[str] = frozenset()
    """Uids of all workers that stand with another one for the same place."""

    @property
    def awaited(self) -> frozenset[str | None]:
        """Uids of the workers whose replacement is on its way."""
        return frozenset(worker.replaces for worker in self.coming)


def rollout_of(
    workers: Iterable[ObservedWorker], spec: InferenceClusterSpec, traffic: Traffic | None, *, continues: bool
) -> Rollout:
    """Find the workers that stand twice for one place, and the pools whose rollout waits.

    `continues`: it goes on whatever the attainment, see `Snapshot.continues_rollout`.
    """
    live = {worker.uid: worker for worker in workers if worker.live}
    halted = frozenset[str]() if continues else _halted_pools(live.values(), spec, traffic)
    coming: list[ObservedWorker] = []
    leaving: list[ObservedWorker] = []
    uids: set[str] = set()
    for worker in live.values():
        replaced = live.get(worker.replaces or "")
        if replaced is None or replaced.pool != worker.pool:
            continue
        beyond = replaced if worker.ready and not worker.stale else worker
        uids.add(beyond.uid)
        if beyond is worker and not worker.stale:
            coming.append(worker)
        elif beyond is worker or worker.pool not in halted or replaced.role is Role.DRAINING:
            leaving.append(beyond)
    return Rollout(halted=halted, coming=tuple(coming), leaving=tuple(leaving), uids=frozenset(uids))


def surge_limit(pool: Pool, wanted: int) -> int:
    """Return how many workers beyond `wanted` a pool may have during a rollout, never beyond `workers.max`."""
    surge = pool.rollout.max_surge
    most = surge if isinstance(surge, int) else -(-_hundredths(surge, wanted) // 100)  # rounded up
    return max(0, min(most, pool.workers.max - wanted))


def unavailable_limit(pool: Pool, wanted: int) -> int:
    """Return how many workers of a pool may be away at a time during a rollout."""
    away = pool.rollout.max_unavailable
    most = away if isinstance(away, int) else _hundredths(away, wanted) // 100
    return most if most or surge_limit(pool, wanted) else 1


def _hundredths(percentage: str, wanted: int) -> int:
    return int(percentage.removesuffix("%")) * wanted


def next_to_replace(stale: Iterable[ObservedWorker], serving: Iterable[ObservedWorker]) -> list[ObservedWorker]:
    """Return stale workers in the order in which they are replaced.

    The newest revision first, because a bad one is to go before a good one; then alternating between roles, so that
    no role loses more of its workers than another; then by ordinal.
    """
    left = list(stale)
    newest: dict[str, datetime] = {}
    for worker in left:
        newest[worker.spec_hash] = max(newest.get(worker.spec_hash, _LONG_AGO), worker.created or _LONG_AGO)
    have, gone = Counter(worker.role for worker in serving), Counter[Role]()
    ordered: list[ObservedWorker] = []
    while left:
        chosen = max(left, key=lambda w: (newest[w.spec_hash], 1 - gone[w.role] / max(have[w.role], 1), -w.ordinal))
        left.remove(chosen)
        gone[chosen.role] += 1
        ordered.append(chosen)
    return ordered


def _halted_pools(
    live: Collection[ObservedWorker], spec: InferenceClusterSpec, traffic: Traffic | None
) -> frozenset[str]:
    """Return the pools whose new workers leave fewer requests inside the SLO than promised: their rollout waits.

    Going back to an older revision is never halted, nor is anything while the attainment was not measured.
    """
    if traffic is None or traffic.attainment is None:
        return frozenset()
    promised = spec.slo.attainment
    changing = frozenset(pool.name for pool in spec.pools if _new_one_serves(live, pool.name))
    kept = served_share(traffic) + deviation(traffic, promised) >= promised
    return frozenset() if kept else changing


def _new_one_serves(workers: Iterable[ObservedWorker], pool: str) -> bool:
    """Report whether a new worker serves, and all new ones are younger than the old ones."""
    known = [(worker, worker.created or _LONG_AGO) for worker in workers if worker.pool == pool]
    new = [(worker, created) for worker, created in known if not worker.stale]
    old_since = min((created for worker, created in known if worker.stale), default=_LONG_AGO)
    going_on = len(new) < len(known) and all(created >= old_since for _, created in new)
    return going_on and any(worker.serving for worker, _ in new)
