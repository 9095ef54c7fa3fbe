"""kopf's handlers: which events make a cluster due."""

from __future__ import annotations

from typing import Any

import kopf
import pytest

from fulcrum.controller import handlers
from fulcrum.controller.cluster_watches import ClusterKey
from fulcrum.controller.queue import Wake


class Events:
    """The handler of InferenceClusters, and what it made due."""

    def __init__(self) -> None:
        self.due: list[tuple[ClusterKey, Wake]] = []
        registry = handlers.make_registry(lambda key, wake: self.due.append((key, wake)))
        (self.handler,) = (handler.fn for handler in registry._watching._handlers)

    async def see(self, kind: str | None, *, name: str = "c", **metadata: Any) -> int:
        """Return how often it was made due."""
        before = len(self.due)
        fields = {"name": name, "namespace": "n", "uid": "u", "generation": 1, **metadata}
        await self.handler(type=kind, name=name, namespace="n", meta=kopf.Body({"metadata": fields}).metadata)
        return len(self.due) - before


async def test_a_change_of_the_status_alone_is_left_to_the_caches() -> None:
    events = Events()
    assert await events.see(None, resourceVersion="1")
    assert events.due == [(("n", "c"), Wake.TIMER)]
    assert not await events.see("MODIFIED", resourceVersion="2")
    for change in (
        {"generation": 2},
        {"generation": 2, "annotations": {"fulcrum.dev/paused": "true"}},
        {"generation": 2, "labels": {"team": "a"}},
        {"generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"generation": 2, "uid": "another"},
    ):
        assert await events.see("MODIFIED", resourceVersion="3", **change), change
        assert events.due[-1] == (("n", "c"), Wake.EVENT)
        assert not await events.see("MODIFIED", resourceVersion="4", **change), change
    # One that is made anew with the same name, or of which kopf was never told.
    assert await events.see("DELETED")
    assert await events.see("ADDED")
    assert await events.see("MODIFIED", name="d")


async def test_what_is_remembered_is_bounded_and_costs_a_look_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_MOST_TOLD", 3)
    events = Events()
    for number in range(10):
        assert await events.see("ADDED", name=f"c{number}")
    assert await events.see("MODIFIED", name="c0")
