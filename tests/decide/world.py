"""A small cluster in memory that carries out plans one action at a time, in any order, with failures."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.types import BalanceMode, InferenceClusterSpec, InferenceClusterStatus
from fulcrum.api.worker import LoadReport
from fulcrum.decide import GatewayState, ObservedWorker, Snapshot, WorkerPhase
from fulcrum.decide.measurements import Measurements
from fulcrum.report import BalancePlan, plan
from fulcrum.rollout import Action, CreateWorker, DeleteWorker, SetRole, StartDrain, TellRole, as_seen, worker_revision

START = datetime(2026, 1, 1, tzinfo=UTC)


def pool(
    name: str = "p",
    *,
    low: int = 0,
    high: int = 4,
    roles: tuple[str, ...] = ("prefill", "decode", "mixed"),
    away: int | str = 1,
    surge: int | str = 0,
) -> dict[str, Any]:
    workers, rollout = {"min": low, "max": high}, {"maxUnavailable": away, "maxSurge": surge}
    return {"name": name, "accelerator": "cpu", "workers": workers, "roles": list(roles), "rollout": rollout}


def make_spec(
    *pools: dict[str, Any],
    ratio: tuple[int, int] | None = None,
    mode: str = "Manual",
    style: str = "Immediate",
    model: str = "m",
    dwell: str = "30s",
    **others: Any,
) -> InferenceClusterSpec:
    balance: dict[str, Any] = {"mode": mode, "flip": {"style": style, "drainTimeout": "60s", "minDwell": dwell}}
    if ratio is not None:
        balance["ratio"] = {"prefill": ratio[0], "decode": ratio[1]}
    document = {"model": {"name": model}, "pools": list(pools) or [pool()], "balance": balance, **others}
    return msgspec.convert(document, InferenceClusterSpec)


def idle_load(worker: ObservedWorker, *, running: int = 0) -> LoadReport:
    return LoadReport(
        role=worker.role,
        role_epoch=worker.role_epoch,
        ready=True,
        draining=False,
        running=running,
        waiting=0,
        kv_held_for_peers=0.0,
    )


class World:
    """Workers by name, and a clock that moves when told."""

    def __init__(self, spec: InferenceClusterSpec) -> None:
        self.spec = spec
        self.now = START
        self.workers: dict[str, ObservedWorker] = {}
        self.taken: frozenset[str] = frozenset()
        """Names of Pods that somebody else has."""
        self.asked: dict[tuple[str, Role], int] = {}
        """What InferenceScales ask for, by pool and role; mode External reads it."""
        self._uids = 0
        self.status = InferenceClusterStatus()
        self.measurements = Measurements()
        """What is known of the load; modes Auto and Observe read it."""

    def revision(self, pool_name: str) -> str:
        chosen = next(p for p in self.spec.pools if p.name == pool_name)
        return worker_revision(cluster="c", spec=self.spec, pool=chosen)

    def snapshot(self, *, paused: bool = False) -> Snapshot:
        return Snapshot(
            name="c",
            generation=1,
            spec=self.spec,
            workers=as_seen(self.workers.values(), cluster="c", spec=self.spec, now=self.now),
            gateway=GatewayState(desired=2, ready=2, cluster_ip="10.0.0.1"),
            paused=paused,
            status=self.status,
            measurements=self.measurements,
            taken_names=self.taken,
            asked=self.asked,
        )

    def plan(self) -> BalancePlan:
        """Plan, and let the status say so, as the controller does; Manual does not read it."""
        decided = plan(self.snapshot(), self.now)
        if self.spec.balance.mode is not BalanceMode.MANUAL:
            self.status = decided.status
        return decided

    def set(self, name: str, **changes: Any) -> None:
        if name in self.workers:
            self.workers[name] = replace(self.workers[name], **changes)

    def do(self, action: Action) -> None:
        """Carry out one action as the API server would: preconditions on the uid, creation only of what is absent."""
        match action:
            case CreateWorker():
                if action.name not in self.workers and action.name not in self.taken:
                    self._uids += 1
                    self.workers[action.name] = ObservedWorker(
                        name=action.name,
                        uid=f"u{self._uids}",
                        pool=action.pool,
                        ordinal=action.ordinal,
                        role=action.role,
                        role_epoch=0,
                        spec_hash=self.revision(action.pool),
                        phase=WorkerPhase.PENDING,
                        ready=False,
                        deleting=False,
                        pod_ip="127.0.0.1",
                        created=self.now,
                        replaces=action.replaces,
                    )
            case SetRole() if self._is(action):
                self.set(
                    action.name,
                    role=action.role,
                    role_epoch=action.epoch,
                    role_since=self.now,
                    draining_since=None,
                    draining_from=None,
                )
            case StartDrain() if self._is(action):
                self.set(
                    action.name,
                    role=Role.DRAINING,
                    role_epoch=action.epoch,
                    draining_since=self.now,
                    draining_from=action.from_role,
                    load=None,
                )
            case DeleteWorker() if self._is(action):
                if action.force:
                    del self.workers[action.name]
                else:
                    self.set(action.name, deleting=True)
            case TellRole():
                pass
            case _:
                pass

    def _is(self, action: SetRole | StartDrain | DeleteWorker) -> bool:
        return action.name in self.workers and self.workers[action.name].uid == action.uid

    # What happens without us.

    def start(self, name: str) -> None:
        if name in self.workers and not self.workers[name].deleting and not self.workers[name].ended:
            since = self.workers[name].ready_since or self.now
            self.set(
                name,
                phase=WorkerPhase.RUNNING,
                started=True,
                ready=True,
                ready_since=since,
                waiting_reason=None,
                role_acknowledged=True,
            )

    def pause(self, name: str) -> None:
        """Its probes are answered late: it serves on, and nobody knows."""
        self.set(name, ready=False, ready_since=None, load=None)

    def crash(self, name: str) -> None:
        self.set(name, started=False, ready=False, ready_since=None, load=None)

    def evict(self, name: str) -> None:
        self.set(name, started=False, ready=False, ready_since=None, phase=WorkerPhase.FAILED, load=None)

    def lose_node(self, name: str) -> None:
        """The node is gone: its end is never reported."""
        self.set(name, ready=False, ready_since=None, load=None, deleting=True, lost=True, node="n")

    def vanish(self, name: str) -> None:
        if name in self.workers and self.workers[name].deleting and not self.workers[name].lost:
            del self.workers[name]

    def report_idle(self, name: str) -> None:
        if name in self.workers:
            self.set(name, load=idle_load(self.workers[name]))

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def settle(self, *, rounds: int = 200) -> int:
        """Let everything go well until the plan is empty; returns the rounds that took."""
        for round_number in range(rounds):
            actions = [a for a in self.plan().actions if not isinstance(a, TellRole)]
            # A plan that only waits for a drain has no actions, either, but is not at its end.
            resting = (w.ready and not w.deleting and w.role is not Role.DRAINING for w in self.workers.values())
            if not actions and all(resting):
                return round_number
            for action in actions:
                self.do(action)
            for name in list(self.workers):
                self.vanish(name)
                self.start(name)
                self.report_idle(name)
            self.pass_time(3)
        msg = f"no end in sight: {self.plan().actions} {self.workers}"
        raise AssertionError(msg)

    def roles(self) -> dict[Role, int]:
        counts: dict[Role, int] = {}
        for worker in self.workers.values():
            counts[worker.role] = counts.get(worker.role, 0) + 1
        return counts
