"""The Pods of a simulated cluster: actions of a plan carried out with their delays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fulcrum.api.names import Role, worker_name
from fulcrum.rollout import Action, CreateWorker, DeleteWorker, SetRole, StartDrain
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.timeline import Timeline
from fulcrum.simulation.worker import SimulatedWorker

CLUSTER = "sim"
_SERVING = (Role.PREFILL, Role.DECODE, Role.MIXED)
_DRAIN_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSample:
    """Ready workers per role, and all Pods, from a moment on."""

    seconds: float
    prefill: int
    decode: int
    mixed: int
    pods: int


class Pod:
    """A worker Pod as the API server has it. Fires when that changes."""

    __slots__ = (
        "_fleet", "created_seconds", "deleting", "deleting_since", "draining_from", "draining_since", "epoch", "event",
        "name", "ordinal", "pool", "ranks", "ready_since", "restarts", "role", "role_since", "uid",
    )  # fmt: skip

    def __init__(self, *, fleet: Fleet, pool: PoolModel, ordinal: int, role: Role, uid: str, now: float) -> None:
        self._fleet = fleet
        self.pool = pool
        self.ordinal = ordinal
        self.name = worker_name(CLUSTER, pool.name, ordinal)
        self.uid = uid
        self.role = role
        """The label; that of its `ranks` follows when gateways have seen it."""
        self.epoch = 0
        self.role_since: float | None = None
        self.created_seconds = now
        self.ready_since: float | None = None
        self.draining_since: float | None = None
        self.draining_from: Role | None = None
        self.deleting = False
        self.deleting_since = 0.0
        self.restarts = 0
        self.ranks: tuple[SimulatedWorker, ...] = ()
        """Its engine, or each of its ranks of data parallel; empty until it is ready."""
        self.event = -1

    def fire(self, now: float) -> None:
        """It becomes ready, or its deletion goes on."""
        if self.deleting:
            self._fleet.delete_on(self, now)
        else:
            self._fleet.ready(self, now)


class _Label:
    """A role that gateways have not seen yet."""

    __slots__ = ("_fleet", "_pod", "_role", "event")

    def __init__(self, fleet: Fleet, pod: Pod, role: Role) -> None:
        self._fleet, self._pod, self._role = fleet, pod, role
        self.event = -1

    def fire(self, now: float) -> None:
        self._fleet.seen(self._pod, self._role, now)


class Fleet:
    """All Pods, and the workers that gateways can choose from."""

    def __init__(
        self,
        *,
        cluster: ClusterModel,
        timeline: Timeline,
        make_ranks: Callable[[Pod], tuple[SimulatedWorker, ...]],
        stopped: Callable[[Sequence[SimulatedWorker], float], None],
        changed: Callable[[Pod], None],
    ) -> None:
        self._cluster = cluster
        self._timeline = timeline
        self._make_ranks = make_ranks
        self._stopped = stopped
        self._changed = changed
        self._uids = 0
        self.pods: dict[str, Pod] = {}
        self.workers: list[SimulatedWorker] = []
        """Each rank of those that are ready and not on their way out; draining ones are in it, as in the gateway."""
        self.flips = 0
        self.started = 0
        """Pods that were created after the start."""
        self.gpu_seconds = 0.0
        """Of the Pods that are gone."""
        self.samples: list[FleetSample] = []

    def begin(self, workers: Iterable[tuple[str, Role]]) -> None:
        """Have these (pool, role) ready at second 0."""
        ordinals: dict[str, int] = {}
        for pool, role in workers:
            ordinal = ordinals.get(pool, 0)
            ordinals[pool] = ordinal + 1
            self.ready(self._make_pod(pool, ordinal, role, 0.0), 0.0)

    def apply(self, action: Action, now: float) -> None:
        """Carry out one action; one that no longer applies (another uid, another epoch) is left out."""
        if isinstance(action, CreateWorker):
            if action.name not in self.pods:
                self.started += 1
                pod = self._make_pod(action.pool, action.ordinal, action.role, now)
                self._timeline.plan(now + pod.pool.start_seconds, pod)
                self._sample(now)
            return
        found = self.pods.get(action.name)
        if found is None or found.uid != action.uid or found.deleting:
            return
        if isinstance(action, DeleteWorker):
            self._delete(found, now)
        elif isinstance(action, SetRole) and action.epoch > found.epoch:
            before = found.draining_from if found.role is Role.DRAINING else found.role
            if found.ranks and before is not action.role:
                self.flips += 1
            found.draining_since = found.draining_from = None
            found.role_since = now
            self._label(found, action.role, action.epoch, now)
        elif isinstance(action, StartDrain) and action.epoch > found.epoch:
            found.draining_since, found.draining_from = now, action.from_role
            self._label(found, Role.DRAINING, action.epoch, now)

    def kill(self, name: str, now: float) -> None:
        """The engine of a Pod dies, with all of its ranks; it starts again unless the Pod is on its way out."""
        pod = self.pods.get(name)
        if pod is None or not pod.ranks:
            return
        self._stop_engine(pod, now)
        if pod.deleting or not self._cluster.restart:
            self._remove(pod, now)
        else:
            pod.restarts += 1
            self._timeline.plan(now + pod.pool.start_seconds, pod)
        self._sample(now)

    def ready(self, pod: Pod, now: float) -> None:
        """The engine of a Pod answers."""
        pod.ready_since = now
        pod.ranks = self._make_ranks(pod)
        self.workers.extend(pod.ranks)
        self._changed(pod)
        self._sample(now)

    def seen(self, pod: Pod, role: Role, now: float) -> None:
        """Gateways see a label."""
        if pod.ranks:
            for rank in pod.ranks:
                rank.role = role
            self._changed(pod)
            self._sample(now)

    def delete_on(self, pod: Pod, now: float) -> None:
        """Stop a deleted worker when its work is done, or its time is over."""
        waited_seconds = now - pod.deleting_since
        if pod.ranks:
            idle = all(rank.idle and not rank.in_flight for rank in pod.ranks)
            if not idle and waited_seconds < self._cluster.drain_timeout_seconds:
                self._timeline.plan(now + _DRAIN_POLL_SECONDS, pod)
                return
            self._stop_engine(pod, now)
            self._timeline.plan(now + self._cluster.stop_seconds, pod)
            return
        self._remove(pod, now)

    def gpu_seconds_until(self, now: float) -> float:
        """Return the GPU-seconds of all Pods until now, from creation to removal."""
        alive = sum((now - pod.created_seconds) * pod.pool.gpus_per_worker for pod in self.pods.values())
        return self.gpu_seconds + alive

    def _make_pod(self, pool: str, ordinal: int, role: Role, now: float) -> Pod:
        self._uids += 1
        model = self._cluster.pool(pool)
        pod = Pod(fleet=self, pool=model, ordinal=ordinal, role=role, uid=f"u{self._uids}", now=now)
        self.pods[pod.name] = pod
        return pod

    def _label(self, pod: Pod, role: Role, epoch: int, now: float) -> None:
        pod.role, pod.epoch = role, epoch
        if pod.ranks:
            self._timeline.plan(now + self._cluster.flip_seconds, _Label(self, pod, role))

    def _delete(self, pod: Pod, now: float) -> None:
        pod.deleting, pod.deleting_since = True, now
        for rank in pod.ranks:
            self.workers.remove(rank)
        self._changed(pod)
        self._timeline.plan(now, pod)
        self._sample(now)

    def _stop_engine(self, pod: Pod, now: float) -> None:
        ranks, pod.ranks, pod.ready_since = pod.ranks, (), None
        if ranks:
            for rank in ranks:
                if rank in self.workers:
                    self.workers.remove(rank)
            self._changed(pod)
            self._stopped(ranks, now)

    def _remove(self, pod: Pod, now: float) -> None:
        del self.pods[pod.name]
        self._changed(pod)
        self.gpu_seconds += (now - pod.created_seconds) * pod.pool.gpus_per_worker
        self._sample(now)

    def _sample(self, now: float) -> None:
        roles = [worker.role for worker in self.workers if not worker.dp_rank]
        counts = {role: roles.count(role) for role in _SERVING}
        sample = FleetSample(
            seconds=now,
            prefill=counts[Role.PREFILL],
            decode=counts[Role.DECODE],
            mixed=counts[Role.MIXED],
            pods=len(self.pods),
        )
        if self.samples and self.samples[-1].seconds == now:
            self.samples[-1] = sample
        else:
            self.samples.append(sample)
