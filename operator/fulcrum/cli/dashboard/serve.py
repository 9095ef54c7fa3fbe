"""Serving the dashboard until the process is told to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import click
from aiohttp import web

from fulcrum.dashboard import PAGE_PATH, Board, routes

_LOCAL_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class PortTakenError(Exception):
    """The address cannot be listened on; the message says which."""


class Shown(Protocol):
    """What is served: a board, and the work that keeps its figures coming until it is cancelled."""

    @property
    def board(self) -> Board: ...

    async def run(self) -> None: ...


async def serve(opened: AbstractAsyncContextManager[Shown], host: str, port: int, *, url_file: Path | None) -> None:
    """Serve what `opened` yields until SIGTERM or SIGINT. Errors: PortTakenError, and those of `opened`."""
    async with opened as shown, _served(shown.board, host) as runner:
        url = f"http://{_in_url(host)}:{await _listen(runner, host, port, url_file)}{PAGE_PATH}"
        await asyncio.to_thread(_write, url_file, url)
        click.echo(f"Dashboard  {url}")
        await _until_signalled(shown)


@asynccontextmanager
async def _served(board: Board, host: str) -> AsyncIterator[web.AppRunner]:
    app = web.Application()
    app.add_routes([*routes(board, hosts=_hosts(host)), web.get("/", _to_page)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()


async def _until_signalled(shown: Shown) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks = [asyncio.create_task(shown.run(), name="shown")]
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        # None of them ends by itself but by a defect, which must not go unseen.
        await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, stopping):
            task.cancel()
        for result in await asyncio.gather(*tasks, stopping, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result


async def _listen(runner: web.AppRunner, host: str, port: int, url_file: Path | None) -> int:
    """Listen, and return the port; where a file will name it, a taken port gives way to a free one."""
    ports = [port] if url_file is None else [port, 0]
    for candidate in ports:
        try:
            await web.TCPSite(runner, host, candidate).start()
        except OSError as error:
            if candidate == ports[-1]:
                raise PortTakenError(f"cannot listen on {host}:{candidate}: {error.strerror or error}") from error
        else:
            break
    found: int = runner.addresses[0][1]
    return found


def _write(url_file: Path | None, url: str) -> None:
    if url_file is not None:
        url_file.write_text(url + "\n", encoding="ascii")


def _hosts(host: str) -> frozenset[str] | None:
    """Return the names that a browser on this machine uses; None where others are to reach the page, too."""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return _LOCAL_NAMES | {host} if is_local else None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _to_page(_: web.Request) -> web.Response:
    raise web.HTTPFound(PAGE_PATH)
