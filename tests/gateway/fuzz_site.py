"""A gateway that lives through all examples of a fuzz test, and what must be left of it: nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Client, Engine, Site, eventually

from fulcrum.api.gateway import GatewayConfig, GatewayLimits
from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, ClassMatch, QosClass
from fulcrum.gateway.app import Gateway
from fulcrum.gateway.config import Settings
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.http.connection import ClientConnection
from fulcrum.gateway.http.response import Response

Run = Callable[[Callable[[Site], Coroutine[Any, Any, None]]], None]
MAX_BODY_BYTES = 4096
MAX_HEADER_BYTES = 8192


@contextmanager
def fuzzed(keys: Path | None = None) -> Iterator[Run]:
    """Runs coroutines against a gateway with two engines whose speed is known, and three classes."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        agent = Agent(report())
        engines = {"p": Engine("p", Role.PREFILL), "d": Engine("d", Role.DECODE)}

        async def start() -> Gateway:
            await agent.start()
            for engine in engines.values():
                engine.facts["agent_port"] = agent.port
                await engine.start()
            classes = (
                QosClass(name="gold", priority=9, match=ClassMatch(header="x-tier", value="gold")),
                QosClass(name="silver", priority=5, match=ClassMatch(header="x-tier", value="silver")),
                QosClass(name="rest", priority=1),
            )
            gateway = Gateway(
                Settings(
                    config=GatewayConfig(
                        cluster="c", served_name="m", model="m", slo_ttft_seconds=5.0, slo_tpot_seconds=1.0,
                        limits=GatewayLimits(max_body_bytes=MAX_BODY_BYTES, max_header_bytes=MAX_HEADER_BYTES),
                        admission=Admission(classes=classes), max_model_len=4096,
                        api_keys_directory=None if keys is None else str(keys),
                    ),
                    host="127.0.0.1", port=0, prewarm=False, lame_duck_seconds=0,
                    static_workers=tuple(engine.record() for engine in engines.values()),
                ),
                asyncio.get_running_loop(),
            )  # fmt: skip
            await gateway.start()
            await eventually(lambda: all(worker.ranks[0].state.engine.known for worker in gateway.registry.workers))
            return gateway

        async def stop() -> None:
            await site.gateway.stop()
            for engine in engines.values():
                await engine.stop()
            await agent.stop()

        site = Site(runner.run(start()), engines)
        yield lambda test: runner.run(test(site))
        runner.run(nothing_left(site))
        runner.run(stop())


async def statuses(
    site: Site, pieces: list[bytes], *, first_seconds: float = 0.2, wait_seconds: float = 0.05
) -> list[int]:
    """Status codes of all answers to what is sent, until the gateway closes or nothing more comes.

    Where an answer must come, `first_seconds` is long: a busy machine is no silent gateway.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port)
    client = Client(reader, writer)
    seen: list[int] = []
    try:
        for piece in pieces:
            client.send(piece)
            await asyncio.sleep(0)
        while True:
            async with asyncio.timeout(wait_seconds if seen else first_seconds):
                seen.append((await client.answer()).status)
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        pass
    except RuntimeError:  # uvloop's, when the gateway has closed before all was sent
        assert writer.transport.is_closing()
    finally:
        client.close()
    return seen


async def nothing_left(site: Site) -> None:
    """No connection, request, task or count outlives what caused it."""
    gateway = site.gateway
    await eventually(lambda: not gateway.connections)
    workers = gateway.registry.workers
    await eventually(lambda: all(worker.in_flight == 0 for worker in workers))
    await eventually(lambda: not gateway._inference._attempts._under_way)
    assert all(worker.ranks[0].state.in_flight == 0 for worker in gateway.registry.workers)
    assert all(worker.ranks[0].state.prompts.queued_tokens == 0 for worker in gateway.registry.workers)
    assert len(gateway.slow_readers) == 0
    assert (len(gateway.bodies), gateway.bodies.total_bytes) == (0, 0)
    gc.collect()
    held = [kind.__name__ for one in gc.get_objects() if (kind := type(one)) in (ClientConnection, Response, Exchange)]
    assert held == []
    ours = [task for task in asyncio.all_tasks() if "ClientConnection" in repr(task.get_coro())]
    assert ours == []
