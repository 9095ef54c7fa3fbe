"""A worker that computes is waited for, however long it takes; one that stands still is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Engine, MakeSite, Seen, Site, eventually
from tests.gateway.dispatch.test_leg_deadlines import hanging
from tests.gateway.dispatch.test_resume import PROMPT, check, cut_all
from tests.gateway.models import Cut, Model
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.api.worker import EngineProgress, SpeedCoefficients
from fulcrum.gateway.dispatch import leg_deadlines
from fulcrum.gateway.workers.registry import KnownWorker

PROMISE_SECONDS = deadline_seconds(1.0)
QUICK = SpeedCoefficients(prefill_a=1e-3, prefill_b=0.0, prefill_c=0.0, decode_a=1e-3, decode_b=0.0, decode_c=0.0)
STILL_SECONDS = 1000.0
COMPUTES = EngineProgress(steps=1, tokens=1, still_seconds=0.0)
STANDS = EngineProgress(steps=1, tokens=1, still_seconds=STILL_SECONDS)
OLD = EngineProgress(steps=1, tokens=1)
"""What the agents of earlier releases tell."""
STREAM = PROMPT
WHOLE = {**PROMPT, "stream": False}


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    started = await Agent(b"").start()
    say(started, COMPUTES)
    yield started
    await started.stop()


def say(agent: Agent, progress: EngineProgress | None) -> None:
    """What the engine has done, from now on."""
    agent.body = msgspec.json.encode(report(speed=QUICK, progress=progress))


async def site_of(make_site: MakeSite, agent: Agent, *engines: Engine) -> Site:
    """A gateway that knows what its workers do."""
    for engine in engines:
        engine.facts |= {"agent_port": agent.port, "pool": "x"}
    site = await make_site(*engines, slo_seconds=(PROMISE_SECONDS, 1.0))
    await eventually(lambda: all(worker.ranks[0].state.engine.known for worker in site.gateway.registry.workers))
    return site


async def looked(worker: KnownWorker, times: int) -> None:
    """So often the worker has been overdue, and was found to compute: by a look, or by the reports that come anyway."""
    for _ in range(times):
        before = worker.progress.moved_at
        await eventually(lambda: worker.progress.moved_at > before + PROMISE_SECONDS / 2)  # noqa: B023


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that come as one are overdue as soon as streams are."""
    monkeypatch.setattr(leg_deadlines, "LEAST_STREAM_SECONDS", deadline_seconds(0.5))


LEGS = pytest.mark.parametrize(
    ("body", "leg"),
    [(STREAM, "whole"), (WHOLE, "whole"), (STREAM, "prefill"), (WHOLE, "decode")],
    ids=["stream", "whole", "prefill", "decode"],
)


def two_of(leg: str) -> tuple[list[Model], list[Model]]:
    """Two models that take such legs, and what else is needed."""
    if leg == "whole":
        return [Model(f"m{number}", Role.MIXED) for number in range(2)], []
    here, there = (Role.PREFILL, Role.DECODE) if leg == "prefill" else (Role.DECODE, Role.PREFILL)
    return [Model(f"a{number}", here) for number in range(2)], [Model("b", there)]


@LEGS
async def test_a_worker_that_computes_answers_itself(
    make_site: MakeSite, agent: Agent, body: dict[str, Any], leg: str
) -> None:
    asked, others = two_of(leg)
    site = await site_of(make_site, agent, *asked, *others)
    computed = asyncio.Event()

    async def late(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await computed.wait()
        return await usual[engine.name](engine, seen, writer)

    usual = {engine.name: engine.behave for engine in asked}
    for engine in asked:
        engine.behave = late
    answer = asyncio.create_task(site.post(body))
    await eventually(lambda: any(engine.seen for engine in asked))
    (busy,) = (engine for engine in asked if engine.seen)
    await looked(next(worker for worker in site.gateway.registry.workers if worker.name == busy.name), times=3)
    computed.set()
    answered = await answer
    assert answered.status == 200
    assert sum(len(engine.seen) for engine in asked) == 1
    assert busy.name in answered.headers["x-fulcrum-path"].split(",")
    assert await site.metric('fulcrum_gateway_legs_total{outcome="stall"}') == 0


@LEGS
@pytest.mark.parametrize("progress", [STANDS, OLD, None], ids=["still", "old agent", "unknown"])
async def test_a_worker_that_shows_no_progress_is_given_up(
    make_site: MakeSite, agent: Agent, body: dict[str, Any], leg: str, progress: EngineProgress | None
) -> None:
    asked, others = two_of(leg)
    say(agent, progress)
    site = await site_of(make_site, agent, *asked, *others)
    with hanging(*asked):
        answer = asyncio.create_task(site.post(body))
        await eventually(lambda: any(engine.seen for engine in asked))
        bad = {engine.name for engine in asked if engine.seen}
    assert (await answer).status == 200
    assert sum(len(engine.seen) for engine in asked) == 2
    assert {worker.name for worker in site.gateway.registry.workers if worker.suspect} == bad
    assert await site.metric(f'fulcrum_gateway_legs_total{{leg="{leg}",outcome="stall"}}') == 1


async def test_a_worker_that_stops_to_compute_is_given_up_then(make_site: MakeSite, agent: Agent) -> None:
    engines = [Model("m0", Role.MIXED), Model("m1", Role.MIXED)]
    site = await site_of(make_site, agent, *engines)
    with hanging(*engines):
        answer = asyncio.create_task(site.post(PROMPT))
        await eventually(lambda: any(engine.seen for engine in engines))
        bad = next(engine.name for engine in engines if engine.seen)
        await looked(next(worker for worker in site.gateway.registry.workers if worker.name == bad), times=2)
        assert sum(len(engine.seen) for engine in engines) == 1
    say(agent, STANDS)
    check(await answer, PROMPT)
    assert [worker.name for worker in site.gateway.registry.workers if worker.suspect] == [bad]


async def test_an_agent_that_does_not_answer_excuses_nothing(make_site: MakeSite, agent: Agent) -> None:
    engines = [Model("m0", Role.MIXED), Model("m1", Role.MIXED)]
    site = await site_of(make_site, agent, *engines)
    await agent.stop()
    agent.body = b""  # connections that are open are answered with nothing
    with hanging(*engines):
        answer = asyncio.create_task(site.post(PROMPT))
        await eventually(lambda: any(engine.seen for engine in engines))
    check(await answer, PROMPT)
    assert sum(len(engine.seen) for engine in engines) == 2


async def test_a_request_that_later_ones_overtake_is_given_up_though_its_worker_computes(
    make_site: MakeSite, agent: Agent
) -> None:
    """The engine has lost it, or it waits for something else. The worker is not to blame."""
    only = Model("only", Role.MIXED)
    site = await site_of(make_site, agent, only)
    with hanging(only):
        lost = asyncio.create_task(site.post(PROMPT))
        await eventually(lambda: bool(only.seen))
    later = 0
    while not lost.done():
        check(await site.post(PROMPT), PROMPT)
        later += 1
        await asyncio.sleep(0.02)
    check(await lost, PROMPT)
    assert len(only.seen) == later + 2
    assert not any(worker.suspect for worker in site.gateway.registry.workers)


@pytest.mark.parametrize("progress", [COMPUTES, STANDS], ids=["computes", "stands"])
async def test_a_stream_waits_while_its_worker_computes_other_things(
    make_site: MakeSite, agent: Agent, monkeypatch: pytest.MonkeyPatch, progress: EngineProgress
) -> None:
    monkeypatch.setattr(leg_deadlines, "STREAM_STEPS", 1.0)
    engines = [Model("m0", Role.MIXED), Model("m1", Role.MIXED)]
    site = await site_of(make_site, agent, *engines)
    say(agent, progress)
    cut_all(engines, Cut(9, "stall"))
    answer = asyncio.create_task(site.post(PROMPT))
    await eventually(lambda: any(engine.seen for engine in engines))
    bad = next(engine.name for engine in engines if engine.seen)
    if progress is COMPUTES:
        await looked(next(worker for worker in site.gateway.registry.workers if worker.name == bad), times=2)
        assert sum(len(engine.seen) for engine in engines) == 1
        say(agent, STANDS)
    check(await answer, PROMPT)
    assert await site.metric('fulcrum_gateway_resumes_total{outcome="resumed"}') == 1


async def test_silence_counts_in_steps_of_the_engine(make_site: MakeSite, agent: Agent) -> None:
    """A step cannot be interrupted: an engine that has just made one of a minute may be in another one."""
    say(agent, EngineProgress(steps=1, tokens=1, still_seconds=10.0, longest_step_seconds=60.0))
    site = await site_of(make_site, agent, Model("m", Role.MIXED))
    progress = site.gateway.registry.workers[0].progress
    now = asyncio.get_running_loop().time()

    async def still(at: float) -> bool:
        """As the sweep finds it, once the agent has answered."""
        if progress.still(now - 100.0, 1.0, at):
            return True
        await progress.look()
        return progress.still(now - 100.0, 1.0, at)

    assert not await still(now)
    say(agent, EngineProgress(steps=1, tokens=1, still_seconds=10.0, longest_step_seconds=0.1))
    assert await still(asyncio.get_running_loop().time())
