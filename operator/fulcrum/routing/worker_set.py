"""The workers of a cluster as one gateway (or the simulator) knows them: which there are, and which are used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits, overlap
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.kv import Tiers
from fulcrum.routing.affinity import AffinityMemory
from fulcrum.routing.breaker import BreakerState
from fulcrum.routing.engine_speed import UNKNOWN, EngineSpeed
from fulcrum.routing.flight import Flight
from fulcrum.routing.health import WorkerHealth
from fulcrum.routing.lockstep import Lockstep
from fulcrum.routing.outliers import eject_outliers
from fulcrum.routing.pairs import Pair
from fulcrum.routing.pools import PoolRule, RevisionGroup, by_revision
from fulcrum.routing.prefix_room import PrefixRoom
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.worker import WorkerView


class WorkerSet:
    """Workers, sorted for choosing whenever one of them changes."""

    def __init__(
        self,
        *,
        class_names: tuple[str, ...],
        ranks: tuple[int, ...],
        affinity: AffinityMemory,
        units_per_token: float,
    ) -> None:
        self._ranks = ranks
        self._room = PrefixRoom(affinity, units_per_token)
        self.by_name: dict[str, WorkerView] = {}
        """Of a worker with ranks of data parallel, each rank is one."""
        self.of_worker: dict[str, tuple[WorkerView, ...]] = {}
        """The same by name of the worker: its ranks in order, or it alone."""
        self.by_index: dict[int, WorkerView] = {}
        self.revisions: tuple[RevisionGroup, ...] = ()
        """Workers that can get requests."""
        self.fallback_revisions: tuple[RevisionGroup, ...] = ()
        """The same with suspects, when there are any: for requests that no other worker can take."""
        self.broken: frozenset[Pair] = frozenset()
        """Pairs that cannot move KV."""
        self.unpaired: frozenset[str] = frozenset()
        """Prefill workers from which no decode worker of their revision can pull KV."""
        self.prefilling: frozenset[str] = frozenset()
        self.decoding: frozenset[str] = frozenset()
        """Names of those that do this kind of work; the same object until that changes."""
        self._class_names = class_names
        self._engines: dict[str, EngineSpeed] = {}
        """By pool."""
        self._admits: Mapping[str, PoolAdmits | None] = {}
        """By pool, those without workers included; None, or no entry: it takes every request."""
        self._trials = False
        """Some breaker is half open: the next request on its worker is the trial."""
        self._by_node: dict[str, list[WorkerView]] = {}
        """Ranks on each node that has several workers; those of which no node is known are left out."""
        self._joined = 0
        self._in_use: list[WorkerView] = []
        self._many = False
        """More changes follow: sorting waits for the last one."""

    @property
    def idle(self) -> bool:
        """Nothing is on any worker, as far as is known."""
        return all(worker.idle for worker in self.by_name.values())

    @property
    def every_revision(self) -> tuple[RevisionGroup, ...]:
        """All workers in a role, suspects included."""
        return self.fallback_revisions or self.revisions

    def hold(self) -> None:
        """Many changes follow: sort once, when `settle` is called. Sorting looks at all workers."""
        self._many = True

    def settle(self) -> None:
        """The end of `hold`."""
        self._many = False
        self._rebuild()

    def put(
        self,
        name: str,
        role: Role,
        *,
        pool: str = "",
        revision: str = "",
        node: str = "",
        incarnation: str = "",
        data_parallel: int = 1,
    ) -> tuple[WorkerView, ...]:
        """A worker is usable, or changed; another `incarnation` is another process, which knows nothing of the old.

        Returns its ranks of data parallel in order, or it alone.
        """
        views = self.of_worker.get(name, ())
        if views:
            known = views[0]
            facts = known.pool, known.revision, known.node, known.incarnation, len(views)
            if facts != (pool, revision, node, incarnation, data_parallel):
                self._forget(views)
                if len(views) != data_parallel:  # else they keep their places in the order of workers
                    for view in views:
                        del self.by_name[view.name]
                views = ()
            elif known.role is role:
                return views
        if not views:
            health = WorkerHealth()
            joined = []
            for rank in range(data_parallel):
                self._joined += 1
                view = WorkerView(
                    index=self._joined,
                    worker=name,
                    dp_rank=rank if data_parallel > 1 else None,
                    role=role,
                    pool=pool,
                    revision=revision,
                    node=node,
                    incarnation=incarnation,
                    health=health,
                    ranks=self._ranks,
                    engine=self._engines.get(pool, UNKNOWN),
                )
                self.by_name[view.name] = self.by_index[view.index] = view
                self._room.keep(view)
                joined.append(view)
            self.of_worker[name] = views = tuple(joined)
            if data_parallel > 1:
                lockstep = Lockstep([view.prompts for view in views], [view.set_keys for view in views])
                for view in views:
                    view.lockstep = lockstep
        for view in views:
            view.take_role(role)
        self._rebuild()
        return views

    def remove(self, name: str) -> None:
        """A worker gets no more requests; what is under way on it finishes."""
        views = self.of_worker.pop(name, ())
        self._forget(views)
        for view in views:
            del self.by_name[view.name]
        if views:
            self._rebuild()

    def set_pools(self, admits: Mapping[str, PoolAdmits | None]) -> None:
        """All pools, and which requests each takes; one that is not named, or None, takes every one."""
        self._admits = admits
        self._rebuild()

    def set_broken(self, pairs: Iterable[Pair]) -> None:
        """Exactly these pairs cannot move KV: no request is sent over them in two legs."""
        self.broken = frozenset(pairs)
        self._rebuild()

    def set_speed(self, pool: str, speed: WorkerSpeed) -> None:
        """How fast the workers of `pool` are."""
        known = self._engines.get(pool)
        if known is not None and known.speed == speed:
            return
        self._engines[pool] = engine = EngineSpeed(speed)
        for worker in self.by_name.values():
            if worker.pool == pool:
                worker.set_engine(engine)
                self._room.keep(worker)
        self._rebuild()

    def set_tiers(self, name: str, tiers: Tiers | None) -> None:
        """What a worker has below its KV cache, as it reports; None: nothing, or it is not known."""
        views = self.of_worker.get(name, ())
        if views and views[0].tiers != tiers:
            self._room.set_tiers(views, tiers, self.by_name.values())

    def set_adapters(self, name: str, adapters: frozenset[str], broken: frozenset[str] = frozenset()) -> None:
        """LoRA adapters that a worker has loaded, and those that it cannot load."""
        for view in self.of_worker.get(name, ()):
            view.adapters, view.broken_adapters = adapters, broken

    def none_can_load(self, adapter: str) -> bool:
        """Whether every worker has tried to load a LoRA adapter, in vain, and will fail again; without any: no."""
        workers = self.by_name.values()
        return bool(workers) and all(adapter in worker.broken_adapters for worker in workers)

    def may_pair(self, one: WorkerView, other: WorkerView) -> bool:
        """Whether a request can ever go over both: of one revision, and with requests that both pools admit."""
        admits = self._admits
        return (
            one.worker != other.worker
            and one.revision == other.revision
            and overlap(admits.get(one.pool), admits.get(other.pool))
        )

    def any_pool_takes(self, prompt_tokens: float, qos: int) -> bool:
        """Whether any pool takes such a request, once it has a worker to spare."""
        for pool in {*self._admits, *(worker.pool for worker in self.by_name.values())}:
            capacity = self._engines.get(pool, UNKNOWN).kv_capacity
            if PoolRule(self._admits.get(pool), capacity, self._class_names).takes(prompt_tokens, qos):
                return True
        return False

    def busy_neighbours(self, worker: WorkerView) -> int:
        """Other workers on the node of `worker` that have something to do, as far as is known."""
        there = self._by_node.get(worker.node)
        if there is None:
            return 0
        own = worker.worker
        return len({other.worker for other in there if not other.idle and other.worker != own})

    # Health.

    def failed(self, worker: WorkerView, now_seconds: float) -> None:
        """A request failed on `worker` in a way that is the worker's fault."""
        worker.health.failed(now_seconds)
        self._breakers_moved()

    def taken(self, flight: Flight, now_seconds: float) -> None:
        """A request was sent to its workers."""
        if self._trials:
            flight.prefill.health.breaker.taken(now_seconds)
            flight.decode.health.breaker.taken(now_seconds)
            self._breakers_moved()

    def worked(self, worker: WorkerView) -> None:
        """`worker` answered a request."""
        if worker.health.worked():
            self._breakers_moved()

    def tick(self, now_seconds: float) -> list[WorkerView]:
        """Time went by: call it a few times a second. Workers (the first rank of each) that are left alone from now on,
        as outliers.
        """
        first_ranks = [views[0] for views in self.of_worker.values()]
        for worker in first_ranks:
            worker.health.breaker.tick(now_seconds)
        for worker in self.by_name.values():
            if worker.foreign and now_seconds - worker.reported_at > TUNING.memory_seconds:
                worker.set_foreign(now_seconds)
        ejected = eject_outliers(first_ranks, now_seconds)
        self._breakers_moved()
        return ejected

    def _breakers_moved(self) -> None:
        if self._in_use != [worker for worker in self.by_name.values() if worker.health.breaker.available]:
            self._rebuild()

    # What follows from a change.

    def _forget(self, views: Iterable[WorkerView]) -> None:
        for view in views:
            self.by_index.pop(view.index, None)
            self._room.forget(view)

    def _rebuild(self) -> None:
        if self._many:
            return
        workers = self.by_name.values()
        in_use = self._in_use = [worker for worker in workers if worker.health.breaker.available]
        self.revisions = by_revision(in_use, self._admits, self._class_names)
        self.fallback_revisions = ()
        if len(in_use) < len(workers):
            self.fallback_revisions = by_revision(workers, self._admits, self._class_names)
        self._trials = any(worker.health.breaker.state is BreakerState.HALF_OPEN for worker in workers)
        self.unpaired = frozenset(self._unpaired()) if self.broken else frozenset()
        by_node: dict[str, list[WorkerView]] = {}
        for worker in workers:
            if worker.node:
                by_node.setdefault(worker.node, []).append(worker)
        self._by_node = {
            node: there for node, there in by_node.items() if any(view.worker != there[0].worker for view in there)
        }
        prefilling = frozenset(worker.name for worker in workers if worker.role in (Role.PREFILL, Role.MIXED))
        decoding = frozenset(worker.name for worker in workers if worker.role in (Role.DECODE, Role.MIXED))
        if prefilling != self.prefilling:
            self.prefilling = prefilling
        if decoding != self.decoding:
            self.decoding = decoding

    def _unpaired(self) -> Iterator[str]:
        for revision in self.every_revision:
            decodes = [worker.name for pool in revision.decode for worker in pool.workers]
            for pool in revision.prefill:
                for worker in pool.workers:
                    if all((worker.name, decode) in self.broken for decode in decodes):
                        yield worker.name
