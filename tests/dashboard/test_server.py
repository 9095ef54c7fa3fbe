"""The page over HTTP: what it allows a browser, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from tests.dashboard.facts import Played, document
from tests.machine import deadline_seconds

from fulcrum.dashboard import Board, ClusterFacts, routes
from fulcrum.dashboard.board import MOST_PAGES
from fulcrum.dashboard.server import page


@pytest.fixture
async def board() -> Board:
    made = Board(origin="test", waiting="Waits for its Lease.")
    made.source = Played(ClusterFacts(document=document()))
    await made.refresh()
    return made


@pytest.fixture
async def url(board: Board) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(routes(board, hosts=frozenset({"127.0.0.1"})))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def test_the_policy_allows_this_script_and_this_style_and_nothing_else(
    url: str, http: aiohttp.ClientSession
) -> None:
    async with http.get(f"{url}/dashboard") as answer:
        html, policy = await answer.text(), answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in policy
    assert "*" not in policy
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"


def test_the_page_is_self_contained_and_never_makes_html_of_figures() -> None:
    html, _ = page()
    outside = set(re.findall(r"https?://[^\s'\"]+", html)) - {"http://www.w3.org/2000/svg"}
    assert outside == set()
    for unsafe in ("innerHTML", "insertAdjacentHTML", "eval(", "document.write", " style=", " onclick="):
        assert unsafe not in html
    assert len(html) < 64_000


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/events"])
async def test_it_only_reads_and_answers_to_its_own_name(url: str, http: aiohttp.ClientSession, path: str) -> None:
    async with http.post(url + path) as answer:
        assert answer.status == 405
    # A page elsewhere whose name was pointed at this machine.
    async with http.get(url + path, headers={"Host": "evil.example:80"}) as answer:
        assert answer.status == 403


async def test_while_there_is_nothing_to_show_it_says_why(url: str, board: Board, http: aiohttp.ClientSession) -> None:
    board.source = None
    async with http.get(f"{url}/dashboard/events") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        assert (await answer.json())["why"] == "Waits for its Lease."
    async with http.get(f"{url}/dashboard") as answer:
        assert answer.status == 200


async def test_streams_are_bounded_and_a_closed_one_makes_room(
    url: str, board: Board, http: aiohttp.ClientSession
) -> None:
    streams = [await http.get(f"{url}/dashboard/events") for _ in range(MOST_PAGES)]
    assert {stream.status for stream in streams} == {200}
    async with http.get(f"{url}/dashboard/events") as answer:
        assert answer.status == 503
        assert "Too many pages" in (await answer.json())["why"]
    streams[0].close()
    for _ in range(200):
        await board.refresh()
        async with http.get(f"{url}/dashboard/events") as answer:
            if answer.status == 200:
                break
    assert answer.status == 200
    for stream in streams:
        stream.close()


async def test_a_browser_that_takes_nothing_is_let_go(url: str, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.dashboard.server.WRITE_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"GET /dashboard/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await reader.readuntil(b"event: hello")
    deadline = time.monotonic() + deadline_seconds(60)
    version = 1
    # A reader that is not read from stops the socket after some megabytes; each tick is a quarter of one.
    while board._pages:
        assert time.monotonic() < deadline
        version += 1
        facts = [
            ClusterFacts(document=document(name=f"c-{n}", version=version, ratio=f"{version}P:1D")) for n in range(1000)
        ]
        board.source = Played(*facts)
        await board.refresh()
        await asyncio.sleep(0)
    writer.close()


async def test_the_stream_is_events_that_no_proxy_keeps(url: str, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{url}/dashboard/events?cluster=ml/chat") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert (answer.headers["Cache-Control"], answer.headers["X-Accel-Buffering"]) == ("no-store", "no")
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert await answer.content.readline() == b"retry: 2000\n"
        assert await answer.content.readline() == b"\n"
        assert await answer.content.readline() == b"event: hello\n"
    async with http.get(f"{url}/dashboard/events?cluster={'x' * 1000}") as answer:
        assert answer.status == 400
