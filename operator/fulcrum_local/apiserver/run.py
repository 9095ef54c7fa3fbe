"""Start, serve and stop: the process of `fulcrum apiserver`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from fulcrum_local.apiserver.authentication import Authenticator
from fulcrum_local.apiserver.authorization import Authorizer
from fulcrum_local.apiserver.bootstrap import bootstrap
from fulcrum_local.apiserver.builtin_kinds import BUILTIN_KINDS
from fulcrum_local.apiserver.certificates import serving_certificate, write_kubeconfig
from fulcrum_local.apiserver.chaos import Chaos
from fulcrum_local.apiserver.definitions import serve_definitions
from fulcrum_local.apiserver.deleting import Deleter
from fulcrum_local.apiserver.expiry import expire_events
from fulcrum_local.apiserver.finalizing import Finalizing
from fulcrum_local.apiserver.kinds import Registry
from fulcrum_local.apiserver.lifecycles import Lifecycles
from fulcrum_local.apiserver.metrics import Metrics
from fulcrum_local.apiserver.pod_subresources import PodSubresources
from fulcrum_local.apiserver.resources import Resources
from fulcrum_local.apiserver.reviews import Reviews
from fulcrum_local.apiserver.scale import Scales
from fulcrum_local.apiserver.server import ApiServer
from fulcrum_local.apiserver.store import Store
from fulcrum_local.apiserver.strategies import Strategies
from fulcrum_local.apiserver.writing import Writer

logger = logging.getLogger(__name__)
_RECURSIONS: Final = 6_000
"""Python's recursion limit: objects of 1,000 levels, over each of which functions of ours recurse a few times. The
stack of a thread (8 MiB) holds it."""
_SHUTDOWN_SECONDS: Final = 1.0
"""How long answers that are under way may take when the server stops."""
_TAKEN_SECONDS: Final = 5.0
"""How long the last run's port is waited for."""


class AlreadyRunningError(RuntimeError):
    """Another API server uses the state folder."""


class PortTakenError(RuntimeError):
    """Another process has the port; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where the server keeps its state and where it listens; port 0 picks the port of the last run, or a free one."""

    state_dir: Path
    bind: str = "127.0.0.1"
    port: int = 0
    kubeconfig_out: Path | None = None
    service_range: str = "127.78.0.0/16"
    chaos_seed: int | None = None


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise AlreadyRunningError(f"another API server uses {state_dir}") from None
    try:
        yield
    finally:
        os.close(handle)


def _listen(options: Options) -> socket.socket:
    """The listening socket; with port 0 that of the last run's port, which kubeconfigs name. Errors: PortTakenError."""
    remembered = options.state_dir / "port"
    if options.port or not remembered.exists():
        try:
            listener = _bound(options.bind, options.port)
        except OSError as error:
            text = f"cannot listen on {options.bind}:{options.port} ({error.strerror}): choose another --port or --bind"
            raise PortTakenError(text) from error
    else:
        listener = _bound_soon(options.bind, int(remembered.read_text()), remembered)
    remembered.write_text(str(listener.getsockname()[1]))
    return listener


def _bound_soon(address: str, port: int, remembered: Path) -> socket.socket:
    """The socket, even if an outgoing connection has the port at the moment."""
    deadline = time.monotonic() + _TAKEN_SECONDS
    while True:
        try:
            return _bound(address, port)
        except OSError as error:
            if time.monotonic() > deadline:
                text = (
                    f"cannot listen on {address}:{port}, the port of the last run ({error.strerror}). End what uses it "
                    f"or remove {remembered} to get another one: kubeconfigs that name the old one are stale then"
                )
                raise PortTakenError(text) from error
            time.sleep(0.1)


def _bound(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener


@contextlib.asynccontextmanager
async def serving(options: Options) -> AsyncIterator[str]:
    """Serve inside the context; yields the URL. Raises AlreadyRunningError, PortTakenError."""
    with _locked(options.state_dir), _listen(options) as listener:
        port = listener.getsockname()[1]
        url = f"https://{options.bind}:{port}"
        certificate = serving_certificate(options.state_dir, (options.bind,))
        authority = certificate.authority.read_bytes()
        store = Store(options.state_dir / "state.db")
        registry = Registry(BUILTIN_KINDS)
        bootstrap(store, authority)
        authenticator, authorizer, metrics = Authenticator(options.state_dir, store), Authorizer(store), Metrics()
        lifecycles = Lifecycles(store, registry, authorizer, options.service_range)
        writer, deleter = Writer(store, Strategies(), lifecycles), Deleter(store)
        chaos = None if options.chaos_seed is None else Chaos(options.chaos_seed)
        resources = Resources(store, writer, deleter, metrics, chaos)
        serve_definitions(store, registry, resources.end_watches)
        pods = PodSubresources(store, writer, deleter, authenticator.kubelet_token)
        api = ApiServer(
            registry=registry,
            authenticator=authenticator,
            authorizer=authorizer,
            metrics=metrics,
            resources=resources,
            reviews=Reviews(store, authenticator, authorizer),
            pods=pods,
            scales=Scales(store, writer),
            address=f"{options.bind}:{port}",
            chaos=chaos,
        )
        runner = web.ServerRunner(
            web.Server(api.handle, handler_cancellation=True, access_log=None), shutdown_timeout=_SHUTDOWN_SECONDS
        )
        await runner.setup()
        site = web.SockSite(runner, listener, ssl_context=certificate.context(), backlog=512)
        background = [
            asyncio.create_task(Finalizing(store, registry, deleter).run()),
            asyncio.create_task(expire_events(store)),
        ]
        if chaos is not None:
            logger.warning("apiserver_chaos seed=%d: errors and broken watches are on purpose", options.chaos_seed)
            background.append(asyncio.create_task(chaos.compact(store)))
        try:
            await site.start()
            if options.kubeconfig_out is not None:
                write_kubeconfig(options.kubeconfig_out, url=url, authority=authority, token=authenticator.admin_token)
            logger.info("apiserver_ready url=%s state_dir=%s", url, options.state_dir)
            yield url
        finally:
            for task in background:
                task.cancel()
            await site.stop()
            resources.stop()
            await pods.close()
            await runner.cleanup()
            store.close()
            logger.info("apiserver_stopped url=%s", url)


async def run(options: Options) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    # Objects that a real server accepts are nested deeper than Python goes along by itself.
    sys.setrecursionlimit(_RECURSIONS)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(options):
        await stop.wait()
