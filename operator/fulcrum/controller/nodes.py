"""Pods whose node is gone: no kubelet will ever report their end, so they would keep their place and their name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import Kube
from fulcrum.kube import ApiError, Resource

NODE: Final = Resource(api_version="v1", kind="Node", plural="nodes", namespaced=False)

GONE_SECONDS: Final = 15.0
"""How long a Node object must have been absent: one that is registered again within it was only restarted."""
OVERDUE: Final = timedelta(seconds=30)
"""How long after the end of its grace period a Pod may still be reported as there: clocks differ, kubelets are busy."""
READS_AT_ONCE: Final = 50
"""Nodes that are read at a time: 500 of them within a second."""
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
        self._gone_since: dict[str, float] = {}

    async def lost(self, pods: Iterable[Manifest], now: datetime) -> frozenset[str]:
        """Return the uids of Pods that will not end by themselves because their node does not answer any more."""
        in_trouble = [
            (pod, node) for pod in pods if (node := (pod.get("spec") or {}).get("nodeName")) and not _is_ready(pod)
        ]
        states = await self._states_of({node for _, node in in_trouble})
        return frozenset(
            pod["metadata"]["uid"] for pod, node in in_trouble if self._is_lost(pod, node, states[node], now)
        )

    def _is_lost(self, pod: Manifest, node: str, state: NodeState, now: datetime) -> bool:
        if state is NodeState.GONE:
            return self._clock() - self._gone_since[node] >= GONE_SECONDS
        if state is NodeState.READY:
            return False  # its kubelet will say when the Pod has ended
        due = pod["metadata"].get("deletionTimestamp")
        return due is not None and now - datetime.fromisoformat(due) > OVERDUE

    async def _states_of(self, nodes: set[str]) -> dict[str, NodeState]:
        """What is known of nodes; those that were not read of late are read now, several at a time."""
        at = self._clock()
        self._states = {name: entry for name, entry in self._states.items() if at - entry[0] < FRESH_SECONDS}
        found = {name: self._states[name][1] for name in nodes & self._states.keys()}
        unread = sorted(nodes - found.keys())
        for first in range(0, len(unread), READS_AT_ONCE):
            names = unread[first : first + READS_AT_ONCE]
            for name, state in zip(names, await asyncio.gather(*map(self._read, names)), strict=True):
                found[name] = state
                self._states[name] = (at, state)
                if state is NodeState.GONE:
                    self._gone_since.setdefault(name, at)
                else:
                    self._gone_since.pop(name, None)
        return found

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
