"""An engine with work whose figures stand still is found out, and one that is slow, idle or unread is not."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace

import aiohttp
import pytest
from tests.machine import deadline_seconds, eventually
from tests.worker_image.agents import free_address, worker_config
from tests.worker_image.test_agent_life import run

from fulcrum.api.worker import EXIT_ENGINE_STALLED, EngineProgress, SpeedCoefficients
from fulcrum_worker import engine_life
from fulcrum_worker.engine_command import EngineCommand
from fulcrum_worker.engine_metrics import EngineMetrics
from fulcrum_worker.readiness import engine_answers
from fulcrum_worker.stall import (
    LEAST_SECONDS,
    LONGEST_SECONDS,
    UNKNOWN_SPEED_SECONDS,
    stall_seconds,
    wait_until_stalled,
)

SPEED = SpeedCoefficients(prefill_a=0.1, prefill_b=0.001, prefill_c=0.0, decode_a=0.05, decode_b=0.01, decode_c=1e-6)


def metrics(
    *, running: int | None = 1, waiting: int | None = 0, steps: int | None = 5, kv_usage: float = 0.1
) -> EngineMetrics:
    progress = None if steps is None else EngineProgress(steps=steps, tokens=100)
    return EngineMetrics(running=running, waiting=waiting, kv_usage=kv_usage, progress=progress)


@pytest.mark.parametrize(
    ("speed", "budget", "expected"),
    [
        (None, 2048, UNKNOWN_SPEED_SECONDS),
        (SPEED, None, UNKNOWN_SPEED_SECONDS),
        (SPEED, 256, LEAST_SECONDS),
        (SPEED, 8192, 20 * (0.1 + 8.192 + 0.05 + 0.64 + 0.1)),
        (SPEED, 8_192_000, LONGEST_SECONDS),
    ],
)
def test_the_bound_follows_the_longest_step(
    speed: SpeedCoefficients | None, budget: int | None, expected: float
) -> None:
    engine = EngineMetrics(max_batched_tokens=budget, max_batch=64, kv_capacity_tokens=100_000)
    assert stall_seconds(speed, engine) == pytest.approx(expected)


def test_each_rank_has_a_share_of_the_contexts() -> None:
    engine = EngineMetrics(max_batched_tokens=8192, max_batch=64, kv_capacity_tokens=400_000)
    engine = replace(engine, ranks=(EngineMetrics(),) * 4)
    assert stall_seconds(SPEED, engine) == pytest.approx(20 * (0.1 + 8.192 + 0.05 + 0.64 + 0.1))


async def silence(scraped: Callable[[int], EngineMetrics], *, scrapes: int) -> float | None:
    """What `wait_until_stalled` returns over so many scrapes, ten seconds apart; None: it still waits."""
    ticks = itertools.count()
    now = 0.0
    over = asyncio.Event()

    async def scrape() -> EngineMetrics:
        nonlocal now
        number = next(ticks)
        now = 10.0 * number
        if number >= scrapes:
            over.set()
            await asyncio.Event().wait()
        return scraped(number)

    waiting = asyncio.create_task(wait_until_stalled(scrape, SPEED, poll_seconds=0, clock=lambda: now))
    ended = asyncio.create_task(over.wait())
    await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    return None


@pytest.mark.parametrize(
    ("scraped", "stalls"),
    [
        (lambda _: metrics(), True),
        (lambda _: metrics(running=0, waiting=2), True),
        (lambda _: metrics(running=0), False),
        (lambda number: metrics(steps=number), False),
        (lambda number: metrics(kv_usage=number / 100), False),
        (lambda _: metrics(steps=None), False),
        (lambda _: EngineMetrics(), False),
        (lambda number: metrics() if number % 3 else EngineMetrics(), True),
        (lambda number: metrics() if number % 3 else metrics(running=0), False),
    ],
    ids=["running", "waiting", "idle", "steps", "kv", "no counters", "unread", "gaps", "ends between"],
)
async def test_what_counts_as_a_stall(scraped: Callable[[int], EngineMetrics], stalls: bool) -> None:
    found = await silence(scraped, scrapes=60)
    if not stalls:
        assert found is None
        return
    assert found is not None
    bound = UNKNOWN_SPEED_SECONDS
    assert bound <= found <= bound + 30.0


async def _health(session: aiohttp.ClientSession, engine_url: str, _side_channel: object) -> str | None:
    """As the real one, for an engine without a side channel."""
    return None if await engine_answers(session, engine_url) else "not yet"


HANGS = """
import http.server, sys
PAGE = b'vllm:num_requests_running 1\\nvllm:num_requests_waiting 2\\nvllm:prompt_tokens_total 9\\n' \\
       b'vllm:generation_tokens_total 3\\nvllm:iteration_tokens_total_count 3\\n'
class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = PAGE if self.path == '/metrics' else b''
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
print('serving', flush=True)
http.server.ThreadingHTTPServer((sys.argv[1], 8000), Engine).serve_forever()
"""
"""An engine that answers `/health` and does nothing: what is left of vLLM when its engine process hangs."""


async def test_the_agent_ends_and_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("fulcrum_worker.stall.UNKNOWN_SPEED_SECONDS", 1.0)
    monkeypatch.setattr("fulcrum_worker.stall.POLL_SECONDS", 0.1)
    monkeypatch.setattr(engine_life, "not_ready_reason", _health)
    ip = free_address()
    engine = EngineCommand(argv=(sys.executable, "-u", "-c", HANGS, ip), environment={})
    assert await run(worker_config(measure_at_start=False), engine, ip) == EXIT_ENGINE_STALLED
    end = capfd.readouterr().out[-2048:]
    assert "EngineStalled: vLLM made no progress for " in end
    assert "with 1 running and 2 waiting requests; its last lines:\nserving\n" in end


async def test_a_drain_of_an_engine_that_stands_still_ends_long_before_its_timeout(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_life, "not_ready_reason", _health)
    caplog.set_level(logging.INFO)
    ip = free_address()
    engine = EngineCommand(argv=(sys.executable, "-u", "-c", HANGS, ip), environment={})
    config = worker_config(measure_at_start=False, drain_timeout_seconds=deadline_seconds(3600))
    agent = asyncio.create_task(run(config, engine, ip))
    await eventually(lambda: "worker_ready" in caplog.text, what="the worker is ready")
    monkeypatch.setattr("fulcrum_worker.stall.UNKNOWN_SPEED_SECONDS", 1.0)
    monkeypatch.setattr("fulcrum_worker.stall.POLL_SECONDS", 0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await agent == EXIT_ENGINE_STALLED
    assert "drain_begun" in caplog.text
    assert "drain_ended" not in caplog.text
