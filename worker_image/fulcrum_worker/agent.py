"""The agent of a worker: its HTTP server, and what runs beside its engine, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

from fulcrum.api.names import ENV_POD_IP
from fulcrum.api.ports import AgentAddress
from fulcrum.api.worker import WorkerConfig
from fulcrum_worker.adapters import AdapterKeeper
from fulcrum_worker.config import BadConfigError, PodIdentity
from fulcrum_worker.engine_access import headers_of
from fulcrum_worker.engine_command import EngineCommand
from fulcrum_worker.engine_files import EngineFiles
from fulcrum_worker.engine_life import EngineLife, Turned
from fulcrum_worker.engine_process import EngineProcess
from fulcrum_worker.engine_sleep import EngineSleep
from fulcrum_worker.engine_start import Roles
from fulcrum_worker.group import read_place, side_channels, wait_for_nodes
from fulcrum_worker.kv.events import KvEvents
from fulcrum_worker.kv.policy import offload_setting, vllm_version
from fulcrum_worker.roles import WorkerRole
from fulcrum_worker.server import make_app
from fulcrum_worker.state import WorkerState

logger = logging.getLogger(__name__)


async def run_agent(
    config: WorkerConfig,
    pod: PodIdentity,
    command: EngineCommand,
    *,
    token: str | None = None,
    key: str | None = None,
    files: EngineFiles | None = None,
    turned: Turned | None = None,
) -> int:
    """Runs the worker until it is told to stop (SIGTERM, SIGINT) or vLLM ends; returns the process's exit code.

    `token` is what the engine asks for, and what the agent asks of callers that would change something. `key` opens
    vLLM's development routes (`engine_access`); None: there are none, and the engine does not sleep. `files` are
    shared with the engine. `turned` gives the command for another role where that takes another engine; None: an engine
    takes every role. Raises BadConfigError for what can only be seen by listening, or by the engine.
    """
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        # The second signal cuts a drain short, for a person at a terminal.
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with aiohttp.ClientSession(headers=headers_of(token)) as session:  # it speaks to its own engine only
        state = WorkerState(
            session=session,
            engine_url=f"http://{pod.url_host}:{config.ports.engine}",
            role=WorkerRole(role=config.role, epoch=config.role_epoch),
            keeps_kv=not config.pools,
            pod_name=pod.name,
            token=token,
            offload=offload_setting(config, vllm_version()),
            speed_file=files.speed if files is not None else None,
            roles=Roles.LIVE if turned is None else Roles.AT_START,
        )
        if config.adapters is not None:
            state.adapters = AdapterKeeper(
                config.adapters,
                session,
                state.engine_url,
                unload_after_seconds=config.drain_timeout_seconds,
                serves=lambda: state.awake,
            )
        if key is not None:
            state.sleep = EngineSleep(
                session,
                state.engine_url,
                key,
                timeout_seconds=config.start_timeout_seconds,
                metrics=state.engine_metrics,
                role=lambda: state.role,
                serves=lambda: state.warm and state.engine_alive,
            )
        place = read_place(config, os.environ)
        channels = side_channels(config, pod.ip, place)
        forming = None if place is None else partial(wait_for_nodes, place, state.miss)
        keeping = None if state.adapters is None else state.adapters.run
        sleeping = None if state.sleep is None else state.sleep.run
        async with (
            _serving(config, pod, state),
            _beside(_hearing(state, files)),
            _beside(forming),
            _beside(keeping),
            _beside(sleeping),
        ):
            engine = EngineProcess(command)
            return await EngineLife(config, state, engine, stop, hurry, channels=channels, turned=turned).run()


@contextlib.asynccontextmanager
async def _serving(config: WorkerConfig, pod: PodIdentity, state: WorkerState) -> AsyncIterator[None]:
    runner = web.AppRunner(make_app(config, state), access_log=None)
    await runner.setup()
    address = AgentAddress(pod.ip, config.ports.agent)
    try:
        try:
            await web.TCPSite(runner, *address).start()
        except OSError as error:
            # On the node's network another program may have the port.
            raise BadConfigError(
                f"{ENV_POD_IP}: cannot listen on {address} (spec.pools[].ports.agent): {error.strerror}"
            ) from None
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _beside(work: Callable[[], Coroutine[Any, Any, None]] | None) -> AsyncIterator[None]:
    """Have something run as long as the worker lives; None: nothing."""
    if work is None:
        yield
        return
    running = asyncio.create_task(work())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _hearing(state: WorkerState, files: EngineFiles | None) -> Callable[[], Coroutine[Any, Any, None]] | None:
    """Following the engine's KV events, where it has tiers."""
    if files is None or state.offload is None:
        return None
    state.kv_events = KvEvents()
    return partial(state.kv_events.follow, files.events)
