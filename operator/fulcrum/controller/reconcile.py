"""One turn of the loop for one cluster: observe, plan, apply."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.names import Role, gateway_name
from fulcrum.api.objects import load_inference_cluster, to_dict
from fulcrum.api.types import InferenceCluster, InferenceClusterStatus
from fulcrum.balance import (
    Action,
    Plan,
    SetRole,
    Snapshot,
    StartDrain,
    TellRole,
    Worker,
    invalid_status,
    plan,
    with_failure,
)
from fulcrum.balance.plan import RESYNC_SECONDS
from fulcrum.controller.apply import Applier, Outcome
from fulcrum.controller.child_sync import ChildSync
from fulcrum.controller.children import Manifest, Owner, children
from fulcrum.controller.events import event_of_action, event_of_state
from fulcrum.controller.kube import EVENT, ApiFailure, Kube
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.observe import Observed, make_snapshot, observe
from fulcrum.telemetry import Agents

logger = logging.getLogger(__name__)

ClusterKey = tuple[str, str]
"""Namespace and name."""


class ReconcileError(Exception):
    """The API server refused some of what was to be done; it is tried again after a pause."""


@dataclass(slots=True)
class _Memory:
    """What is only remembered to save work; with all of it lost the same decisions follow."""

    told: set[tuple[str, int, int]] = field(default_factory=set)
    """(uid, restarts, epoch) that the agent is known to know."""
    verified: tuple[str, int] | None = None
    """(uid, generation) whose children were all compared."""
    verified_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """What one turn has found and decided."""

    owner: Owner
    observed: Observed
    cluster: InferenceCluster
    snapshot: Snapshot
    plan: Plan
    memory: _Memory
    now: datetime


class Reconciler:
    """Brings clusters to what their specs say, one turn at a time."""

    def __init__(
        self,
        kube: Kube,
        agents: Agents,
        metrics: Metrics,
        *,
        identity: str,
        now: Callable[[], datetime],
    ) -> None:
        self._kube = kube
        self._agents = agents
        self._metrics = metrics
        self._identity = identity
        self._now = now
        self._child_sync = ChildSync(kube)
        self._memories: dict[ClusterKey, _Memory] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def reconcile(self, key: ClusterKey) -> float | None:
        """Take one turn; returns seconds until the next, None when the cluster is gone or going."""
        began = time.monotonic()
        result = "failed"
        try:
            after_seconds = await self._reconcile(key)
            result = "ok" if after_seconds is not None else "gone"
        finally:
            self._metrics.reconcile(result, time.monotonic() - began)
            self._metrics.clusters(len(self._memories))
        return after_seconds

    async def _reconcile(self, key: ClusterKey) -> float | None:
        observed = await observe(self._kube, *key)
        if observed is None or "deletionTimestamp" in observed.cluster["metadata"]:
            # What belongs to the cluster goes with it: that is the garbage collector's part.
            self._memories.pop(key, None)
            return None
        memory = self._memories.setdefault(key, _Memory())
        try:
            cluster = load_inference_cluster(observed.cluster)
        except InvalidValueError as error:
            await self._say_invalid(key, observed.cluster, str(error))
            return RESYNC_SECONDS
        owner = Owner(name=key[1], namespace=key[0], uid=cluster.metadata.uid)
        now = self._now()
        snapshot = make_snapshot(observed, cluster, frozenset(memory.told))
        decided = plan(snapshot, now)
        if not any(isinstance(action, SetRole) for action in decided.actions):
            # Flips do not wait for agents; everything that depends on load comes in a turn without flips.
            snapshot = await self._with_loads(snapshot, memory)
            now = self._now()
            decided = plan(snapshot, now)
        turn = _Turn(
            owner=owner, observed=observed, cluster=cluster, snapshot=snapshot, plan=decided, memory=memory, now=now
        )
        return await self._apply(turn)

    async def _apply(self, turn: _Turn) -> float:
        workers = {worker.uid: worker for worker in turn.snapshot.workers}

        def tell(action: Action) -> None:
            """Tell the agent at once, in the background; if it does not hear, a later turn repeats it."""
            if isinstance(action, SetRole | StartDrain | TellRole):
                worker = workers[action.uid]
                role = Role.DRAINING if isinstance(action, StartDrain) else action.role
                self._tell_later(turn.memory, worker, role, action.epoch)

        for action in turn.plan.actions:
            if isinstance(action, TellRole):
                tell(action)
        applier = Applier(self._kube, self._metrics, turn.owner, turn.cluster.spec)
        outcome = await applier.carry_out(turn.plan.actions, now=turn.now, changed=tell)
        failures = list(outcome.failures)
        if not turn.snapshot.paused:
            failures += await self._sync_children(turn)
        await self._post_events(turn, outcome)
        await self._write_status(turn.owner, turn.cluster.status, _final_status(turn, outcome, failures))
        if failures:
            raise ReconcileError("; ".join(failures))
        return turn.plan.requeue_after_seconds

    async def _with_loads(self, snapshot: Snapshot, memory: _Memory) -> Snapshot:
        """Return the snapshot with the load reports that a decision may depend on, and no others."""
        asked = [
            worker
            for worker in snapshot.workers
            if worker.pod_ip is not None
            and not worker.deleting
            and (worker.role is Role.DRAINING or (worker.ready and not worker.role_told))
        ]
        if not asked:
            return snapshot
        loads = await self._agents.loads({worker.name: worker.pod_ip or "" for worker in asked})
        for worker in asked:
            load = loads[worker.name]
            if load is not None and load.role_epoch >= worker.role_epoch:
                memory.told.add((worker.uid, worker.restarts, worker.role_epoch))
        living = {worker.uid for worker in snapshot.workers}
        memory.told = {entry for entry in memory.told if entry[0] in living}
        return snapshot.with_loads(loads, frozenset(memory.told))

    def _tell_later(self, memory: _Memory, worker: Worker, role: Role, epoch: int) -> None:
        async def tell(pod_ip: str) -> None:
            if await self._agents.tell_role(pod_ip, role, epoch):
                memory.told.add((worker.uid, worker.restarts, epoch))

        if worker.pod_ip is not None:
            task = asyncio.create_task(tell(worker.pod_ip), name=f"tell-{worker.name}")
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _sync_children(self, turn: _Turn) -> list[str]:
        """Compare what was read anyway each time, and the rest when the spec changed or after a while."""
        owner, observed, cluster, memory = turn.owner, turn.observed, turn.cluster, turn.memory
        wanted = children(owner, cluster.spec)
        name = gateway_name(owner.name)
        live = {("Deployment", name): observed.deployment, ("Service", name): observed.service}
        version = (cluster.metadata.uid, cluster.metadata.generation)
        due = memory.verified != version or time.monotonic() - memory.verified_at >= RESYNC_SECONDS
        if not due:
            wanted = tuple(child for child in wanted if (child["kind"], child["metadata"]["name"]) in live)
        try:
            for kind, child_name in await self._child_sync.sync(owner.namespace, wanted, live):
                logger.info("child_applied namespace=%s kind=%s name=%s", owner.namespace, kind, child_name)
        except ApiFailure as error:
            return [str(error)]
        if due:
            memory.verified, memory.verified_at = version, time.monotonic()
        return []

    async def _post_events(self, turn: _Turn, outcome: Outcome) -> None:
        events = [event_of_action(turn.owner, done, turn.now, by=self._identity) for done in outcome.done]
        events += [event_of_state(turn.owner, event, turn.now, by=self._identity) for event in turn.plan.events]
        for event in events:
            try:
                await self._kube.create(EVENT, event)
            except ApiFailure as error:
                # An event that cannot be posted is no reason to repeat what it is about.
                logger.warning("event_not_posted cluster=%s event=%s error=%r", turn.owner.name, event["reason"], error)

    async def _write_status(
        self, owner: Owner, standing: InferenceClusterStatus, status: InferenceClusterStatus
    ) -> None:
        if status != standing:
            await self._kube.apply_status(owner.namespace, owner.name, to_dict(status))

    async def _say_invalid(self, key: ClusterKey, document: Manifest, message: str) -> None:
        try:
            standing = msgspec.convert(document.get("status") or {}, InferenceClusterStatus)
        except msgspec.ValidationError:
            standing = InferenceClusterStatus()
        metadata = document["metadata"]
        status = invalid_status(
            message, status=standing, generation=int(metadata.get("generation") or 0), now=self._now()
        )
        logger.warning("spec_invalid namespace=%s cluster=%s error=%s", *key, message)
        owner = Owner(name=key[1], namespace=key[0], uid=metadata["uid"])
        await self._write_status(owner, standing, status)


def _final_status(turn: _Turn, outcome: Outcome, failures: list[str]) -> InferenceClusterStatus:
    """Return the planned status, corrected by what came of the plan."""
    decided = turn.plan
    if failures:
        decided = with_failure(decided, "; ".join(failures), snapshot=turn.snapshot, now=turn.now)
    if outcome.done:
        return decided.status
    return msgspec.structs.replace(decided.status, last_decision=turn.cluster.status.last_decision)
