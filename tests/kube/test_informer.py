"""The local copy of a collection stays right when watches break, versions expire and own writes overtake events.

The API is scripted: a real server cannot be made to send these orders on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest
from tests.machine import deadline_seconds

from fulcrum.kube import Api, ApiError
from fulcrum.kube.informer import Informer
from fulcrum_local.controllers.resources import PODS, Json


def pod(name: str, version: int, uid: str = "u", **metadata: Any) -> Json:
    stamps = {"resourceVersion": str(version), "creationTimestamp": "2026-11-21T03:00:00Z"}
    return {"metadata": {"name": name, "namespace": "n", "uid": f"{uid}-{name}", **stamps, **metadata}}


class Script:
    """An API server that answers each list in turn, and sends the events that the test puts into its queue."""

    def __init__(self, *lists: tuple[int, list[Json]]) -> None:
        self.lists = list(lists)
        self.events = asyncio.Queue[tuple[str, Json] | ApiError]()
        self.watched_from: list[str] = []

    async def request(self, method: str, path: str, **_: object) -> bytes:
        version, items = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return msgspec.json.encode({"metadata": {"resourceVersion": str(version)}, "items": items})

    async def stream(self, path: str, params: dict[str, str], **_: object) -> AsyncIterator[bytes]:
        self.watched_from.append(params["resourceVersion"])
        yield b""
        while True:
            event = await self.events.get()
            if isinstance(event, ApiError):
                raise event
            yield msgspec.json.encode({"type": event[0], "object": event[1]}) + b"\n"


@contextlib.asynccontextmanager
async def running(script: Script) -> AsyncIterator[tuple[Informer, list[tuple[str, str]]]]:
    informer = Informer(cast("Api", script), PODS)
    notes: list[tuple[str, str]] = []

    def note(old: Json | None, new: Json | None) -> None:
        what = "gone" if new is None else "new" if old is None else "changed"
        notes.append((what, (new or old or {})["metadata"]["name"]))

    informer.subscribe(note)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), deadline_seconds(10))
    try:
        yield informer, notes
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Any) -> None:
    async with asyncio.timeout(deadline_seconds(10)):
        while not condition():  # noqa: ASYNC110 - polls what has no event
            await asyncio.sleep(0.005)


async def test_a_new_list_tells_what_vanished_while_the_version_was_gone() -> None:
    script = Script((5, [pod("a", 4), pod("b", 5)]), (9, [pod("b", 5), pod("c", 8)]))
    async with running(script) as (informer, notes):
        script.events.put_nowait(ApiError(410, "Expired", "too old resource version"))
        await until(lambda: len(script.watched_from) == 2)
        assert {each["metadata"]["name"] for each in informer} == {"b", "c"}
        assert notes == [("new", "a"), ("new", "b"), ("gone", "a"), ("new", "c")]
        assert script.watched_from == ["5", "9"]


async def test_objects_know_what_they_are() -> None:
    async with running(Script((5, [pod("a", 4)]))) as (informer, _):
        assert {(each["apiVersion"], each["kind"]) for each in informer} == {("v1", "Pod")}


async def test_what_was_written_is_there_before_the_watch_tells() -> None:
    script = Script((5, []))
    async with running(script) as (informer, notes):
        informer.record(pod("a", 7))
        assert informer.get(("n", "a")) is not None
        script.events.put_nowait(("ADDED", pod("a", 7)))
        script.events.put_nowait(("MODIFIED", pod("b", 8)))
        await until(lambda: informer.get(("n", "b")))
        assert notes == [("new", "a"), ("new", "b")]


async def test_an_answer_that_comes_after_the_deletion_brings_nothing_back() -> None:
    script = Script((5, []))
    async with running(script) as (informer, notes):
        script.events.put_nowait(("ADDED", pod("a", 7)))
        script.events.put_nowait(("DELETED", pod("a", 8)))
        await until(lambda: ("gone", "a") in notes)
        informer.record(pod("a", 7))
        assert informer.get(("n", "a")) is None


async def test_a_deleted_object_counts_as_terminating_at_once() -> None:
    script = Script((5, [pod("a", 4)]))
    async with running(script) as (informer, _):
        informer.record_deletion(("n", "a"), "another")
        found = informer.get(("n", "a"))
        assert found is not None
        assert "deletionTimestamp" not in found["metadata"]
        informer.record_deletion(("n", "a"), "u-a")
        script.events.put_nowait(("MODIFIED", pod("a", 4)))
        script.events.put_nowait(("ADDED", pod("b", 6)))
        await until(lambda: informer.get(("n", "b")))
        found = informer.get(("n", "a"))
        assert found is not None
        assert "deletionTimestamp" in found["metadata"]


async def test_a_successor_of_the_same_name_is_another_object() -> None:
    script = Script((5, [pod("a", 4)]))
    async with running(script) as (informer, notes):
        informer.record(pod("a", 7, uid="second"))
        script.events.put_nowait(("DELETED", pod("a", 6)))
        script.events.put_nowait(("ADDED", pod("b", 8)))
        await until(lambda: informer.get(("n", "b")))
        found = informer.get(("n", "a"))
        assert found is not None
        assert found["metadata"]["uid"] == "second-a"
        assert notes == [("new", "a"), ("gone", "a"), ("new", "a"), ("new", "b")]


async def test_refusals_before_and_after_a_server_was_away_are_not_one_that_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script((5, [pod("a", 4)]))
    monkeypatch.setattr("fulcrum.kube.watch._LONGEST_DELAY_SECONDS", 0.02)
    monkeypatch.setattr("fulcrum.kube.informer.LASTING_SECONDS", 0.5)
    informer = Informer(cast("Api", script), PODS, optional=True)
    gone: list[Json] = []
    informer.subscribe(lambda old, new: gone.append(old) if old is not None and new is None else None)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), deadline_seconds(10))
    loading = ApiError(403, "Forbidden", "roles are not loaded")
    read, began = script.request, asyncio.get_running_loop().time()

    async def starts(*_: object, **__: object) -> bytes:
        if asyncio.get_running_loop().time() - began < 0.7:
            raise ApiError(500, "InternalError", "starting")
        script.request = read  # type: ignore[method-assign]
        raise loading

    script.request = starts  # type: ignore[method-assign]
    script.events.put_nowait(loading)
    await until(lambda: len(script.watched_from) == 2)
    assert gone == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_was_read_is_missing_only_when_the_refusal_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script((5, [pod("a", 4)]))
    monkeypatch.setattr("fulcrum.kube.watch._LONGEST_DELAY_SECONDS", 0.02)
    informer = Informer(cast("Api", script), PODS, optional=True)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), deadline_seconds(10))
    refusing = script.request
    refused = 0

    async def refuse(*_: object, **__: object) -> bytes:
        nonlocal refused
        refused += 1
        raise ApiError(403, "Forbidden", "roles are not loaded")

    script.request = refuse  # type: ignore[method-assign]
    script.events.put_nowait(ApiError(403, "Forbidden", "roles are not loaded"))
    await until(lambda: refused > 2)
    assert (informer.missing, informer.get(("n", "a")) is None) == (False, False)
    script.request = refusing  # type: ignore[method-assign]
    await until(lambda: len(script.watched_from) == 2)
    monkeypatch.setattr("fulcrum.kube.informer.LASTING_SECONDS", 0.05)
    script.request = refuse  # type: ignore[method-assign]
    script.events.put_nowait(ApiError(404, "NotFound", "the CRD is gone"))
    await until(lambda: informer.missing)
    assert informer.get(("n", "a")) is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
