"""How fast the workers of a cluster are, learnt from their load reports. All of it may be lost: it is learnt again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.api.worker import LoadReport
from fulcrum.capacity.kv import UNKNOWN_TRANSFER, TransferCost
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name
from fulcrum.capacity.online import TRUST, OnlineSpeed
from fulcrum.capacity.pace import Pace, measured_times
from fulcrum.capacity.pool_roofline import known_roofline
from fulcrum.capacity.profile import Profile, profiled_speed
from fulcrum.capacity.rows import rows_between
from fulcrum.capacity.speed import SpeedSource, WorkerSpeed
from fulcrum.capacity.transfers import pool_transfer
from fulcrum.capacity.trust import measured_speed, pool_speed
from fulcrum.decide import ObservedWorker
from fulcrum.rollout import worker_revision

ROW_SECONDS: Final = 10.0
"""Shortest time between the two reports that a row is made from: in a shorter one, one request more or less counts too
much."""
ROWS_AT_ONCE: Final = 8
"""Most rows of a pool that are learned at a time: few are remembered, and each takes time."""
_HIT_MEMORY: Final = 0.9
_NO_PROFILES: Final[Mapping[str, Profile]] = {}


@dataclass(slots=True, kw_only=True)
class _Pool:
    revision: str
    base: WorkerSpeed
    online: OnlineSpeed

    @property
    def speed(self) -> WorkerSpeed:
        return dataclasses.replace(self.base, coefficients=self.online.coefficients)


class _Prior(NamedTuple):
    """What is known of a pool's workers before any of them does."""

    speed: WorkerSpeed | None
    transfer: TransferCost


class PoolSpeeds:
    """The speeds of one cluster's pools."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._reports: dict[str, tuple[float, LoadReport]] = {}
        """By uid: the report that the next row begins at, and when it came."""
        self._rooflines: dict[str, tuple[tuple[str, ModelFacts], _Prior]] = {}
        """By pool, with the revision and the model that they are of."""
        self._paces: dict[str, Pace] = {}
        """By uid."""
        self._measured: dict[str, float] = {}
        """By uid: the pace that the worker measured at its start."""
        self._hit_tokens = 0.0
        self._prompt_tokens = 0.0

    @property
    def prefix_hit(self) -> float | None:
        """Share of prompt tokens that prefix caches answered lately; None while nothing was prefilled."""
        return min(1.0, self._hit_tokens / self._prompt_tokens) if self._prompt_tokens > 0 else None

    def speeds(self) -> dict[str, WorkerSpeed]:
        """Return the speed of the workers of each pool, without the pools of which nothing is known."""
        return {name: pool.speed for name, pool in self._pools.items()}

    def paces(self) -> dict[str, float]:
        """Return how long each worker takes for its work, in times of its pool's speed, by uid.

        From its work where it has done enough, else from its measurement at its start.
        """
        return self._measured | {uid: pace.times for uid, pace in self._paces.items() if pace.known}

    def expect(
        self,
        *,
        cluster: str,
        spec: InferenceClusterSpec,
        profiles: Mapping[str, Profile] = _NO_PROFILES,
        model: ModelFacts | None = None,
    ) -> None:
        """Know what profiles, or model and hardware (a roofline) say, before any worker does.

        `model` is what is known of the model; None: what its name says.
        """
        known = model or facts_of_name(spec.model.name)
        for pool in spec.pools:
            revision = worker_revision(cluster=cluster, spec=spec, pool=pool)
            self._begin(pool.name, revision, self._prior(spec, pool, revision, profiles, known).speed, ())

    def learn(
        self,
        *,
        cluster: str,
        spec: InferenceClusterSpec,
        workers: tuple[ObservedWorker, ...],
        loads: Mapping[str, LoadReport | None],
        at: Mapping[str, float],
        isl_cv2: float,
        profiles: Mapping[str, Profile] = _NO_PROFILES,
        model: ModelFacts | None = None,
    ) -> None:
        """Take in reports, by worker, and when each was made (`at`: any monotonic clock, in seconds)."""
        facts = model or facts_of_name(spec.model.name)
        living = {worker.uid for worker in workers}
        self._reports = {uid: entry for uid, entry in self._reports.items() if uid in living}
        self._paces = {uid: pace for uid, pace in self._paces.items() if uid in living}
        self._measured = {uid: times for uid, times in self._measured.items() if uid in living}
        self._pools = {pool.name: self._pools[pool.name] for pool in spec.pools if pool.name in self._pools}
        for pool in spec.pools:
            revision = worker_revision(cluster=cluster, spec=spec, pool=pool)
            # Workers of an older revision may be slower or faster ones.
            reports = {
                worker: report
                for worker in workers
                if worker.pool == pool.name
                and worker.spec_hash == revision
                and (report := loads.get(worker.name)) is not None
            }
            prior = self._prior(spec, pool, revision, profiles, facts)
            measured = {
                worker.uid: speed
                for worker, report in reports.items()
                if (speed := measured_speed(report, prior=prior.speed, transfer=prior.transfer)) is not None
            }
            known = self._begin(pool.name, revision, prior.speed, tuple(measured.values()))
            if known is not None:
                for uid, speed in measured.items():
                    if (times := measured_times(speed, known.base)) is not None:
                        self._measured[uid] = times
                for worker in self._due(reports, at):
                    known.online = self._follow(known.online, worker, reports[worker], at[worker.name], isl_cv2)

    def _due(self, reports: Mapping[ObservedWorker, LoadReport], at: Mapping[str, float]) -> list[ObservedWorker]:
        """Return the workers whose reports make a row now, the ones that waited longest first."""
        for worker, report in reports.items():
            self._reports.setdefault(worker.uid, (at[worker.name], report))
        due = [worker for worker in reports if at[worker.name] - self._reports[worker.uid][0] >= ROW_SECONDS]
        return sorted(due, key=lambda worker: self._reports[worker.uid][0])[:ROWS_AT_ONCE]

    def _begin(
        self, pool: str, revision: str, prior: WorkerSpeed | None, measured: tuple[WorkerSpeed, ...]
    ) -> _Pool | None:
        """Return what is known of a pool, begun anew when there is a better source than before, or another prior."""
        known = self._pools.get(pool)
        if known is not None and known.revision != revision:
            del self._pools[pool]
            known = None
        base = pool_speed(measured, prior=prior)
        was_measured = known is not None and known.base.source is SpeedSource.MEASURED
        if was_measured and (base is None or base.source is not SpeedSource.MEASURED):
            return known  # no worker reports right now
        if base is None:
            self._pools.pop(pool, None)
            return None
        if known is None or (not was_measured and base.coefficients != known.base.coefficients):
            online = OnlineSpeed.start(base.coefficients, trust=TRUST[base.source])
            known = self._pools[pool] = _Pool(revision=revision, base=base, online=online)
        known.base = base
        return known

    def _follow(
        self, online: OnlineSpeed, worker: ObservedWorker, report: LoadReport, at: float, isl_cv2: float
    ) -> OnlineSpeed:
        before_at, before = self._reports[worker.uid]
        self._reports[worker.uid] = (at, report)
        self._count_hits(before, report)
        found = rows_between(before, report, seconds=at - before_at, isl_cv2=isl_cv2)
        rows = [row for row in found if row is not None]
        of_pool = online.coefficients
        for row in rows:
            self._paces[worker.uid] = self._paces.get(worker.uid, Pace()).after(row, of_pool)
        return online.updated(rows)

    def _count_hits(self, before: LoadReport, after: LoadReport) -> None:
        # What a decode worker is sent comes from its peer, whatever its own cache says.
        if before.work is None or after.work is None or after.role not in (Role.PREFILL, Role.MIXED):
            return
        prompt_tokens = after.work.prompt_tokens - before.work.prompt_tokens
        hit_tokens = after.work.cached_tokens - before.work.cached_tokens
        if prompt_tokens > 0 and 0 <= hit_tokens <= prompt_tokens:
            self._prompt_tokens = _HIT_MEMORY * self._prompt_tokens + prompt_tokens
            self._hit_tokens = _HIT_MEMORY * self._hit_tokens + hit_tokens

    def _prior(
        self,
        spec: InferenceClusterSpec,
        pool: Pool,
        revision: str,
        profiles: Mapping[str, Profile],
        model: ModelFacts,
    ) -> _Prior:
        roofline = self._roofline(spec, pool, revision, model)
        profile = profiles.get(pool.name)
        if profile is None:
            return roofline
        return roofline._replace(speed=profiled_speed(profile, transfer=roofline.transfer))

    def _roofline(self, spec: InferenceClusterSpec, pool: Pool, revision: str, model: ModelFacts) -> _Prior:
        if pool.name not in self._rooflines or self._rooflines[pool.name][0] != (revision, model):
            transfer = pool_transfer(spec, pool, model) or UNKNOWN_TRANSFER
            self._rooflines[pool.name] = ((revision, model), _Prior(known_roofline(spec, pool, model), transfer))
        return self._rooflines[pool.name][1]
