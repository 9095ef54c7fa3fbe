"""Stages from vLLM's log, and what counts as progress of a start."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from itertools import chain, repeat
from pathlib import Path

import pytest
from tests.machine import deadline_seconds

from fulcrum.api.worker import Stage
from fulcrum_worker.start_progress import LEAST_BYTES, SIGNS, Usage, stage_after, usage_of, wait_until_stuck

LOG = (
    "(APIServer pid=7) INFO 11-26 19:00:01 [api_server.py:1] vLLM API server version 0.32.0",
    "(EngineCore pid=9) INFO 11-26 19:00:20 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model=x",
    "(EngineCore pid=9) INFO 11-26 19:00:22 [cpu_model_runner.py:68] Starting to load model x...",
    "a line that no release has had",
    "(EngineCore pid=9) INFO 11-26 19:00:24 [default_loader.py:501] Loading weights took 1.20 seconds",
    "(EngineCore pid=9) INFO 11-26 19:00:25 [kv_cache_utils.py:2327] CPU KV cache size: 8,192 tokens, Maximum ...",
    "(EngineCore pid=9) INFO 11-26 19:00:26 [x.py:1] Starting to load model of the drafter",
)
STAGES = [Stage.IMPORTS, Stage.WEIGHTS, Stage.WEIGHTS, Stage.WEIGHTS, Stage.KV_CACHE, Stage.KV_CACHE, Stage.KV_CACHE]


def test_stages_go_forward_and_unknown_lines_change_nothing() -> None:
    stage, seen = Stage.IMPORTS, []
    for line in LOG:
        stage = stage_after(line, stage)
        seen.append(stage)
    assert seen == STAGES


@pytest.mark.parametrize("sign", [sign for sign, _ in SIGNS])
def test_the_installed_vllm_logs_each_sign(sign: str) -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    folders = ("v1/engine", "v1/worker", "v1/core", "model_executor/model_loader")
    sources = chain.from_iterable((Path(spec.origin).parent / folder).glob("*.py") for folder in folders)
    assert any(sign in source.read_text(encoding="utf-8") for source in sources)


NOW = Usage(new_lines=3, cpu_seconds=5.0, bytes=1000)


@pytest.mark.parametrize(
    ("later", "works"),
    [
        (NOW, False),
        (Usage(new_lines=4, cpu_seconds=5.0, bytes=1000), True),
        (Usage(new_lines=3, cpu_seconds=5.1, bytes=1000), True),
        # An idle thread that polls.
        (Usage(new_lines=3, cpu_seconds=5.01, bytes=1000), False),
        (Usage(new_lines=3, cpu_seconds=5.0, bytes=1000 + LEAST_BYTES), True),
        # A process that ended has taken its figures with it.
        (Usage(new_lines=3, cpu_seconds=1.0, bytes=0), False),
    ],
)
def test_what_is_work(later: Usage, works: bool) -> None:
    assert later.is_work_since(NOW, seconds=2.0) is works


def test_usage_is_of_the_whole_tree() -> None:
    usage = usage_of(os.getpid(), new_lines=7)
    assert usage.new_lines == 7
    assert usage.cpu_seconds > 0
    assert usage.bytes > 0
    assert usage_of(None, new_lines=0) == Usage()


class Clock:
    """A second passes with every look."""

    def __init__(self, usages: list[Usage]) -> None:
        self._usages = chain(usages, repeat(usages[-1]))
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def look(self) -> Usage:
        self.now += 1.0
        return next(self._usages)


@pytest.mark.parametrize(
    ("usages", "said"),
    [
        ([Usage()], "made no progress for 10 s"),
        # Slow weights: half of what counts in each look, over minutes.
        ([Usage(bytes=n * LEAST_BYTES // 2) for n in range(300)], "was not ready after 40 s"),
        ([Usage(cpu_seconds=0.5 * n) for n in range(300)], "was not ready after 40 s"),
        ([Usage(cpu_seconds=0.01 * n) for n in range(300)], "made no progress for 10 s"),
        # A process that had read much has ended; the others go on reading.
        (
            [Usage(bytes=99 * LEAST_BYTES), *(Usage(bytes=n * LEAST_BYTES) for n in range(300))],
            "was not ready after 40 s",
        ),
        ([Usage(new_lines=n) for n in range(5)], "made no progress for 10 s"),
    ],
)
async def test_when_a_start_is_given_up(usages: list[Usage], said: str) -> None:
    clock = Clock(usages)
    waiting = wait_until_stuck(clock.look, timeout_seconds=10, longest_seconds=40, clock=clock, poll_seconds=0)
    assert await asyncio.wait_for(waiting, deadline_seconds(60)) == said


async def test_time_in_which_weights_are_downloaded_does_not_count() -> None:
    """75 looks of which 35 download: the longest start is 40 s without them."""
    clock = Clock([Usage(bytes=n * LEAST_BYTES) for n in range(300)])
    waiting = wait_until_stuck(
        clock.look,
        timeout_seconds=10,
        longest_seconds=40,
        clock=clock,
        poll_seconds=0,
        downloaded=lambda: int(min(clock.now, 36)) * LEAST_BYTES,
    )
    assert await asyncio.wait_for(waiting, deadline_seconds(60)) == "was not ready after 75 s"
