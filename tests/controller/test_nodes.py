"""Which Pods are given up because their node is gone: only those whose end nobody will ever report."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.machine import deadline_seconds

from fulcrum.controller.nodes import FRESH_SECONDS, GONE_SECONDS, OVERDUE, READS_AT_ONCE, Nodes
from fulcrum.kube import ApiError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
NOT_READY = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}


class Api:
    """Answers the one call that is made, with what a table says."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.reads = 0

    async def get(self, resource: Any, namespace: str, name: str) -> Any:
        assert (resource.path((namespace, name)), name) == ("/api/v1/nodes/n1", "n1")
        self.reads += 1
        if isinstance(self.node, Exception):
            raise self.node
        return self.node


def pod(*, due: timedelta | None = None, ready: bool = False, node: str | None = "n1") -> dict[str, Any]:
    metadata: dict[str, Any] = {"uid": "u"}
    if due is not None:
        metadata["deletionTimestamp"] = (NOW + due).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, **(READY if ready else NOT_READY)}


LATE = -OVERDUE - timedelta(seconds=1)
FORBIDDEN = ApiError(403, "Forbidden", "nodes is forbidden")


@pytest.mark.parametrize(
    ("node", "manifest", "lost"),
    [
        (NOT_READY, pod(due=LATE), True),
        (NOT_READY, pod(due=timedelta(seconds=-1)), False),  # its grace is hardly over
        (NOT_READY, pod(due=timedelta(seconds=60)), False),
        (NOT_READY, pod(), False),  # Kubernetes evicts it when its toleration ends
        (READY, pod(due=LATE), False),  # the kubelet lives, and will say so
        (FORBIDDEN, pod(due=LATE), True),  # without rights the Pod alone decides
        (FORBIDDEN, pod(), False),
        (None, pod(node=None), False),  # never scheduled
        (None, pod(ready=True), False),
    ],
)
async def test_a_pod_is_given_up_only_when_nobody_will_report_its_end(
    node: Any, manifest: dict[str, Any], lost: bool
) -> None:
    nodes = Nodes(Api(node))  # type: ignore[arg-type]
    assert await nodes.lost([manifest], NOW) == (frozenset({"u"}) if lost else frozenset())


async def test_a_node_that_is_deleted_is_given_a_moment_to_come_back() -> None:
    at, api = [0.0], Api(None)
    nodes = Nodes(api, clock=lambda: at[0])  # type: ignore[arg-type]
    assert await nodes.lost([pod()], NOW) == frozenset()
    at[0] = GONE_SECONDS
    assert await nodes.lost([pod()], NOW) == frozenset({"u"})
    api.node, at[0] = NOT_READY, 2 * GONE_SECONDS
    assert await nodes.lost([pod()], NOW) == frozenset()
    api.node, at[0] = None, 3 * GONE_SECONDS
    assert await nodes.lost([pod()], NOW) == frozenset()  # gone anew, only just


async def test_nodes_are_read_once_in_a_while_and_only_in_trouble() -> None:
    at, api = [0.0], Api(READY)
    nodes = Nodes(api, clock=lambda: at[0])  # type: ignore[arg-type]
    for _ in range(5):
        assert not await nodes.lost([pod(ready=True), pod(), pod(due=LATE)], NOW)
    assert api.reads == 1
    at[0] = FRESH_SECONDS
    await nodes.lost([pod()], NOW)
    assert api.reads == 2
    await nodes.lost([pod(ready=True)], NOW)
    assert api.reads == 2


async def test_many_nodes_are_read_several_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.controller.nodes.READS_SECONDS", deadline_seconds(10))
    most = under_way = 0

    class Slow:
        async def get(self, *_: Any) -> Any:
            nonlocal most, under_way
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return NOT_READY

    many = [pod(due=LATE, node=f"n{number}") for number in range(500)]
    for number, each in enumerate(many):
        each["metadata"]["uid"] = f"u{number}"
    assert len(await Nodes(Slow()).lost(many, NOW)) == 500  # type: ignore[arg-type]
    assert 10 <= most <= READS_AT_ONCE


async def test_a_tick_waits_for_slow_nodes_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.controller.nodes.READS_SECONDS", 0.1)
    answer = asyncio.Event()

    class Stuck:
        async def get(self, *_: Any) -> Any:
            await answer.wait()
            return NOT_READY

    nodes = Nodes(Stuck())  # type: ignore[arg-type]
    many = [pod(due=LATE, node=f"n{number}") for number in range(2 * READS_AT_ONCE)]
    async with asyncio.timeout(deadline_seconds(10)):
        assert await nodes.lost(many, NOW) == frozenset(), "what was not read gives up no Pod"
        answer.set()
        assert await nodes.lost(many, NOW) == frozenset({"u"})
