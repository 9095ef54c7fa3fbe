"""Pods whose node is gone: no kubelet will ever report their end, so they would keep their place and their name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Final

from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import Kube
from fulcrum.kube import ApiError, Resource
from fulcrum.telemetry.turns import Turns

NODE: Final = Resource(api_version="v1", kind="Node", plural="nodes", namespaced=False)

GONE_SECONDS: Final = 15.0
"""How long a Node object must have been absent: one that is registered again within it was only restarted."""
OVERDUE: Final = timedelta(seconds=30)
"""How long after the end of its grace period a Pod may still be reported as there: clocks differ, kubelets are busy."""
READS_AT_ONCE: Final = 50
"""Nodes that are read at a time, of all clusters together."""
READS_SECONDS: Final = 0.5
"""How long a tick waits for nodes. What is read later counts in the next tick, and gives up no Pod now."""
FRESH_SECONDS: Final = 5.0
"""How often a node is read while a Pod on it is in trouble; nodes of healthy Pods are never read."""


class NodeState(StrEnum):
    READY = "Ready"
    NOT_READY = "NotReady"
    GONE = "Gone"
    UNKNOWN = "Unknown"
    """It cannot be read: the operator has no right to (a namespaced install), or the API server does not answer."""


class Nodes:
    """Reads the nodes of Pods in trouble. What it remembers only delays a decision when it is lost."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._states: dict[str, tuple[float, NodeState]] = {}
        """State of each node, and when it was read."""
        self._turns = Turns(READS_AT_ONCE)
        self._reading: dict[str, asyncio.Task[None]] = {}
        """Reads that are under way, by node."""
        self._gone_since: dict[str, float] = {}

    async def lost(self, pods: Iterable[Manifest], now: datetime) -> frozenset[str]:
        """Return the uids of Pods that will not end by themselves because their node does not answer any more."""
        in_trouble = [
            (pod, node) for pod in pods if (node := (pod.get("spec") or {}).get("nodeName")) and not _is_ready(pod)
        ]
        states = await self._states_of({node for _, node in in_trouble})
        return frozenset(
            pod["metadata"]["uid"]
            for pod, node in in_trouble
            if node in states and self._is_lost(pod, node, states[node], now)
        )

    def _is_lost(self, pod: Manifest, node: str, state: NodeState, now: datetime) -> bool:
        if state is NodeState.GONE:
            return self._clock() - self._gone_since[node] >= GONE_SECONDS
        if state is NodeState.READY:
            return False  # its kubelet will say when the Pod has ended
        due = pod["metadata"].get("deletionTimestamp")
        return due is not None and now - datetime.fromisoformat(due) > OVERDUE

    async def _states_of(self, nodes: set[str]) -> dict[str, NodeState]:
        """Return what is known of nodes. Those that were not read of late are read now, the oldest news first."""
        at = self._clock()
        self._states = {name: entry for name, entry in self._states.items() if at - entry[0] < GONE_SECONDS}
        due = [name for name in nodes if name not in self._states or at - self._states[name][0] >= FRESH_SECONDS]
        due.sort(key=lambda name: self._states[name][0] if name in self._states else float("-inf"))
        caller = object()
        for name in due:
            if name not in self._reading:
                task = asyncio.create_task(self._read_in_turn(caller, name), name=f"node-{name}")
                self._reading[name] = task
                task.add_done_callback(partial(self._was_read, name))
        waiting = [self._reading[name] for name in due]
        if waiting:
            # Those that are late go on: to cut them would cost their connections.
            done, _ = await asyncio.wait(waiting, timeout=READS_SECONDS)
            for error in [error for task in done if (error := task.exception()) is not None]:
                raise error
        return {name: self._states[name][1] for name in nodes if name in self._states}

    def _was_read(self, name: str, task: asyncio.Task[None]) -> None:
        del self._reading[name]
        if not task.cancelled():
            task.exception()  # the tick that waited has it, if it still does

    async def _read_in_turn(self, caller: object, name: str) -> None:
        async with self._turns.of(caller):
            state = await self._read(name)
        at = self._clock()
        self._states[name] = (at, state)
        if state is NodeState.GONE:
            self._gone_since.setdefault(name, at)
        else:
            self._gone_since.pop(name, None)

    async def _read(self, name: str) -> NodeState:
        try:
            node = await self._kube.get(NODE, "", name)
        except ApiError as error:
            if error.code != HTTPStatus.FORBIDDEN:
                raise
            return NodeState.UNKNOWN
        if node is None:
            return NodeState.GONE
        return NodeState.READY if _is_ready(node) else NodeState.NOT_READY


def _is_ready(thing: Manifest) -> bool:
    conditions = (thing.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
