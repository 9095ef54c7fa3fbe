"""List-watch: changes and bookmarks in order, a new list that prunes, watches that break, end or fall silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from tests.kube.conftest import Server, event, events, page, pod, status
from tests.machine import deadline_seconds

from fulcrum.kube import Api, Bookmark, Changed, Connected, Event, Interrupted, Json, Listed, follow

PATH = "/api/v1/namespaces/n/pods"


@contextlib.asynccontextmanager
async def following(api: Api, **options: Any) -> AsyncIterator[list[str]]:
    """What `follow` told, in short."""
    told: list[str] = []

    def short(found: Event[Json]) -> str:
        match found:
            case Listed(items=items, version=version):
                return f"listed {','.join(each['metadata']['name'] for each in items)}@{version}"
            case Changed(kind=kind, object=obj, version=version):
                return f"{kind} {obj['metadata']['name']}@{version}"
            case Bookmark(version=version):
                return f"bookmark @{version}"
            case Connected():
                return "connected"
            case Interrupted(error=error):
                return f"interrupted {getattr(error, 'code', 'unreachable')}"

    async def run() -> None:
        async for found in follow(api, PATH, dict[str, Any], **options):
            told.append(short(found))  # noqa: PERF401 - it must be seen while it grows

    task = asyncio.create_task(run())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(told: list[str], last: str) -> None:
    async with asyncio.timeout(deadline_seconds(30)):
        while last not in told:  # noqa: ASYNC110 - polls what has no event
            await asyncio.sleep(0.005)


def watched_from(server: Server) -> list[str]:
    return [query["resourceVersion"] for _, _, query, _ in server.requests if "watch" in query]


async def test_changes_and_bookmarks_in_order_whatever_the_chunks(server: Server, api: Api) -> None:
    hold = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return page(5, pod("a", 4))
        stream = event("ADDED", pod("b", 6)) + event("BOOKMARK", {"metadata": {"resourceVersion": "8"}})
        stream += event("DELETED", pod("a", 9)) + event("MODIFIED", pod("b", 10))
        return await events(request, *(stream[i : i + 37] for i in range(0, len(stream), 37)), hold=hold)

    server.handler = answer
    async with following(api, selectors={"labelSelector": "x"}) as told:
        await until(told, "MODIFIED b@10")
        assert told == ["listed a@5", "connected", "ADDED b@6", "bookmark @8", "DELETED a@9", "MODIFIED b@10"]
        hold.set()
    asked = server.requests[1][2]
    assert asked["allowWatchBookmarks"] == "true"
    assert asked["labelSelector"] == "x"
    assert 1 <= int(asked["timeoutSeconds"]) <= 300


async def test_a_watch_goes_on_from_the_last_bookmark_when_it_breaks(server: Server, api: Api) -> None:
    hold = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return page(5)
        match len(watched_from(server)):
            case 1:
                response = await events(request, event("BOOKMARK", {"metadata": {"resourceVersion": "8"}}))
                assert request.transport is not None
                request.transport.close()
                return response
            case 2:
                return status(429, "TooManyRequests", "later")
            case 3:
                return web.Response(status=500, text="oops")
            case _:
                return await events(request, event("ADDED", pod("b", 9)), hold=hold)

    server.handler = answer
    async with following(api) as told:
        await until(told, "ADDED b@9")
        hold.set()
    assert [each for each in told if each.startswith("listed")] == ["listed @5"]
    assert [each for each in told if each.startswith("interrupted")][-2:] == ["interrupted 429", "interrupted 500"]
    assert watched_from(server) == ["5", "8", "8", "8"]


@pytest.mark.parametrize("in_stream", [True, False])
async def test_a_version_that_is_gone_brings_a_new_list(server: Server, api: Api, in_stream: bool) -> None:
    hold = asyncio.Event()
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            first = not watched_from(server)
            return page(5, pod("a", 4), pod("b", 5)) if first else page(9, pod("b", 5), pod("c", 8))
        if len(watched_from(server)) > 1:
            return await events(request, hold=hold)
        return await events(request, event("ERROR", gone)) if in_stream else status(410, "Expired", "too old")

    server.handler = answer
    async with following(api) as told:
        await until(told, "listed b,c@9")
        hold.set()
    assert "interrupted 410" in told
    assert watched_from(server)[:2] in (["5"], ["5", "9"])


async def test_a_new_list_comes_now_and_then_by_itself(server: Server, api: Api) -> None:
    lists = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if "watch" not in request.query:
            lists += 1
            return page(5, *([pod("lost", 4)] if lists == 1 else []))
        hold = asyncio.Event()
        asyncio.get_running_loop().call_later(float(request.query["timeoutSeconds"]), hold.set)
        return await events(request, hold=hold)

    server.handler = answer
    async with following(api, relist_seconds=0.5) as told:
        await until(told, "listed @5")
    assert told[0] == "listed lost@5"
    assert not [each for each in told if each.startswith("interrupted")]


async def test_a_silent_dead_watch_ends_by_the_deadline(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulcrum.kube.watch._GRACE_SECONDS", 0.2)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await events(request, hold=asyncio.Event()) if "watch" in request.query else page(5)

    server.handler = answer
    async with following(api, relist_seconds=0.5) as told:
        await until(told, "interrupted unreachable")


async def test_a_server_that_ends_each_watch_at_once_is_not_stormed(server: Server, api: Api) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await events(request) if "watch" in request.query else page(5)

    server.handler = answer
    async with following(api):
        await asyncio.sleep(1.5)
    assert len(watched_from(server)) < 12


async def test_an_event_that_cannot_be_read_brings_a_new_list(server: Server, api: Api) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return page(5 + len(watched_from(server)))
        return await events(request, b'{"type": "ADDED", "object": 3}\n')

    server.handler = answer
    async with following(api) as told:
        await until(told, "listed @6")
