"""The page and its stream over HTTP: two routes that only read."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import re
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Final

from aiohttp import web

from fulcrum.dashboard.board import Board, TooManyPagesError

PAGE_PATH: Final = "/dashboard"
STREAM_PATH: Final = "/dashboard/events"
WRITE_SECONDS: Final = 20.0
"""A browser that takes nothing for so long is gone, or asleep: it opens a new stream when it wakes up."""
_RETRY_MILLISECONDS: Final = 2000
_LONGEST_KEY: Final = 63 + 1 + 253
"""Characters of a namespace, a slash and an object's name."""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(board: Board, *, hosts: frozenset[str] | None = None) -> list[web.RouteDef]:
    """Return the routes of the page. With `hosts`, a request that names another host (DNS rebinding) gets a 403."""

    def guarded(handler: _Handler) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            if hosts is not None and _host_of(request) not in hosts:
                return web.Response(status=403, text="This address is not served here.\n", headers=_HEADERS)
            return await handler(request)

        return handle

    async def events(request: web.Request) -> web.StreamResponse:
        return await _stream(board, request)

    return [web.get(PAGE_PATH, guarded(_page)), web.get(STREAM_PATH, guarded(events), allow_head=False)]


@functools.cache
def page() -> tuple[str, str]:
    """Return the page and its Content-Security-Policy, which allows this script and this style and nothing else."""
    html = resources.files("fulcrum.dashboard").joinpath("page.html").read_text(encoding="utf-8")
    hashes = {
        tag: " ".join(f"'sha256-{_digest(text)}'" for text in re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL))
        for tag in ("script", "style")
    }
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _host_of(request: web.Request) -> str:
    return re.sub(r":\d+$", "", request.host).strip("[]")


async def _page(_: web.Request) -> web.Response:
    html, policy = page()
    headers = {**_HEADERS, "Content-Security-Policy": policy}
    return web.Response(text=html, content_type="text/html", charset="utf-8", headers=headers)


async def _stream(board: Board, request: web.Request) -> web.StreamResponse:
    key = request.query.get("cluster", "")
    if len(key) > _LONGEST_KEY:
        return _refused("There is no cluster with such a long name.", status=400)
    if not board.has_source():
        return _refused(board.waiting)
    try:
        with board.open(key) as shown:
            response = web.StreamResponse(
                headers={**_HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
            )
            await response.prepare(request)
            await response.write(b"retry: %d\n\n" % _RETRY_MILLISECONDS)
            while board.has_source():
                news = await board.news(shown)
                async with asyncio.timeout(WRITE_SECONDS):
                    await response.write(news)
            return response
    except TooManyPagesError:
        return _refused("Too many pages are open. Close one, or try again later.")
    except (ConnectionError, TimeoutError):
        return response


def _refused(why: str, *, status: int = 503) -> web.Response:
    return web.json_response({"why": why}, status=status, headers={**_HEADERS, "Retry-After": "2"})
