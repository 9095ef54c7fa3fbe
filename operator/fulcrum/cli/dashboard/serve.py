"""Serving the dashboard until the process is told to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import click
from aiohttp import web

from fulcrum.cli.connect import api_of
from fulcrum.cli.dashboard.gather import KubeSource
from fulcrum.dashboard import PAGE_PATH, Board, routes
from fulcrum.telemetry import Agents, ScrapeSource

_LOCAL_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class PortTakenError(Exception):
    """The address cannot be listened on; the message says which."""


async def serve(host: str, port: int, namespace: str | None, *, url_file: Path | None, kubeconfig: str | None) -> None:
    """Serve until SIGTERM or SIGINT. Errors: ConfigError, PortTakenError."""
    api = api_of(kubeconfig)
    board = Board(origin="Kubernetes API", waiting="The Kubernetes API has not answered yet.")
    app = web.Application()
    app.add_routes([*routes(board, hosts=_hosts(host)), web.get("/", _to_page)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        await api.connect()
        source = KubeSource(
            api,
            await stack.enter_async_context(Agents()),
            await stack.enter_async_context(ScrapeSource()),
            namespace,
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        url = f"http://{_in_url(host)}:{await _listen(runner, host, port, url_file)}{PAGE_PATH}"
        await asyncio.to_thread(_write, url_file, url)
        click.echo(f"Dashboard  {url}")
        await _until_signalled(source, board)


async def _until_signalled(source: KubeSource, board: Board) -> None:
    async def show() -> None:
        await source.synced()
        board.source = source
        await board.run()

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks = [asyncio.create_task(work, name=name) for name, work in (("source", source.run()), ("show", show()))]
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
