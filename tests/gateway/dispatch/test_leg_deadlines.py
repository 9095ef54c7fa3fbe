"""Workers that hang, or are slower than their like: others take over, in time for the promise."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from tests.gateway.agents import Agent, report
from tests.gateway.conftest import Engine, MakeSite, Seen, Site, eventually
from tests.gateway.dispatch.test_resume import PROMPT, check, cut_all, two_each
from tests.gateway.models import Cut, Model
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, AdmissionPolicy
from fulcrum.gateway.dispatch import leg_deadlines

PROMISE_SECONDS = 6.0
"""A worker is given up after half of it; the other half is for a machine that is busy with other things."""
WHOLE = {**PROMPT, "stream": False}


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    started = await Agent(report()).start()
    yield started
    await started.stop()


async def known_site(make_site: MakeSite, agent: Agent, *engines: Engine, **config: Any) -> Site:
    """A gateway that knows the speed of its workers."""
    for engine in engines:
        engine.facts |= {"agent_port": agent.port, "pool": "x"}
    site = await make_site(*engines, slo_seconds=(PROMISE_SECONDS, 1.0), config=config)
    await eventually(lambda: all(worker.ranks[0].state.engine.known for worker in site.gateway.registry.workers))
    return site


async def hang(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(3600)
    return True


@contextlib.contextmanager
def hanging(*engines: Engine) -> Iterator[None]:
    """What these are asked within it they never answer; what they are asked after it they answer as before."""
    usual = [engine.behave for engine in engines]
    for engine in engines:
        engine.behave = hang
    yield
    for engine, behave in zip(engines, usual, strict=True):
        engine.behave = behave


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_a_worker_that_hangs_is_given_up_within_the_promise(
    make_site: MakeSite, agent: Agent, role: Role
) -> None:
    bad = Model("a-bad", role)
    bad.behave = hang
    site = await known_site(make_site, agent, bad, Model("p", Role.PREFILL), Model("d", Role.DECODE))
    for _ in range(3):
        began = time.monotonic()
        check(await site.post(PROMPT), PROMPT)
        assert time.monotonic() - began < PROMISE_SECONDS
    assert 1 <= len(bad.seen) < 3
    await eventually(lambda: bad.gone == len(bad.seen))  # the engine was told, by the end of its connection
    leg = "prefill" if role is Role.PREFILL else "decode"
    assert await site.metric(f'fulcrum_gateway_legs_total{{leg="{leg}",outcome="stall"}}') >= 1


async def test_a_worker_that_serves_others_is_only_late(make_site: MakeSite, agent: Agent) -> None:
    engines = [Model("m1", Role.MIXED), Model("m2", Role.MIXED)]
    site = await known_site(make_site, agent, *engines)
    registry = site.gateway.registry

    async def late(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        registry.cluster.workers.by_name[engine.name].health.breaker.answers += 1
        return await hang(engine, seen, writer)

    keep = engines[0].behave
    engines[0].behave = engines[1].behave = late
    answer = asyncio.create_task(site.post(PROMPT))
    await eventually(lambda: any(engine.seen for engine in engines))
    engines[0].behave = engines[1].behave = keep
    check(await answer, PROMPT)
    assert not any(worker.suspect for worker in registry.workers)


async def test_an_only_worker_that_was_late_is_asked_again(make_site: MakeSite, agent: Agent) -> None:
    """While another one starts, or is not ready for a moment, nobody else takes the request."""
    only = Model("only", Role.MIXED)
    site = await known_site(make_site, agent, only)
    with hanging(only):
        answer = asyncio.create_task(site.post(PROMPT))
        await eventually(lambda: bool(only.seen))
    check(await answer, PROMPT)
    assert len(only.seen) == 2
    assert await site.metric('fulcrum_gateway_legs_total{leg="whole",outcome="stall"}') == 1


async def test_prompts_that_take_longer_than_thought_are_not_given_up_for_ever(
    make_site: MakeSite, agent: Agent
) -> None:
    """Of what is given up on it is learnt that it takes long."""
    engines = [Model("p", Role.PREFILL), Model("d", Role.DECODE)]
    usual = engines[0].behave

    async def slowly(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(1.0)
        return await usual(engine, seen, writer)

    for engine in engines:
        engine.behave = slowly
        engine.facts |= {"agent_port": agent.port, "pool": "x"}
    site = await make_site(*engines, slo_seconds=(1.2, 1.0))
    await eventually(lambda: all(worker.ranks[0].state.engine.known for worker in site.gateway.registry.workers))
    async with asyncio.timeout(deadline_seconds(60)):
        while not await site.metric('fulcrum_gateway_legs_total{leg="prefill",outcome="answered"}'):
            assert (await site.post(WHOLE)).status == 200
    assert await site.metric('fulcrum_gateway_legs_total{leg="prefill",outcome="stall"}') >= 1


async def test_an_answer_that_is_all_there_before_its_first_token_was_expected_teaches(
    make_site: MakeSite, agent: Agent
) -> None:
    site = await known_site(make_site, agent, Model("m", Role.MIXED))
    worker = site.gateway.registry.workers[0].ranks[0].state
    prompt = {**WHOLE, "prompt": "x" * 800}
    thought_seconds = worker.engine.speed.coefficients.prefill_b
    async with asyncio.timeout(deadline_seconds(60)):
        while worker.engine.speed.coefficients.prefill_b > 0.7 * thought_seconds:
            assert (await site.post(prompt)).status == 200


async def test_patience_is_lost_for_few_requests_only(make_site: MakeSite, agent: Agent) -> None:
    site = await known_site(make_site, agent, Model("m1", Role.MIXED), Model("m2", Role.MIXED))
    waiting = site.gateway._inference._attempts._leg_deadlines
    for _ in range(20):
        waiting.lost()
    for _ in range(19):
        waiting.arrived()
    engine = site.engines["m1"]
    engine.behave = site.engines["m2"].behave = hang
    client = await site.connect()
    client.post(PROMPT)
    await asyncio.sleep(PROMISE_SECONDS)
    assert await site.metric('fulcrum_gateway_legs_total{outcome="stall"}') == 0


@pytest.mark.parametrize("allowed", [10, 0])
async def test_two_workers_that_lose_a_request_do_not_keep_it(
    make_site: MakeSite, agent: Agent, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """Also where no early failover is allowed: it takes longer then, but not until the request's own deadline."""
    monkeypatch.setattr(leg_deadlines, "LOST_SECONDS", 4.0)
    models = [Model(f"m{number}", Role.MIXED) for number in range(3)]
    site = await known_site(make_site, agent, *models)
    site.gateway._inference._attempts._leg_deadlines._left = allowed
    with hanging(*models):
        answer = asyncio.create_task(site.post(PROMPT))
        await eventually(lambda: sum(len(model.seen) for model in models) == 2, seconds=20)
    check(await answer, PROMPT)
    assert await site.metric('fulcrum_gateway_legs_total{leg="whole",outcome="stall"}') == 2


async def test_a_worker_of_unknown_speed_that_loses_a_request_does_not_keep_it(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was started a moment ago has not reported yet."""
    monkeypatch.setattr(leg_deadlines, "LOST_SECONDS", 1.0)
    monkeypatch.setattr(leg_deadlines, "FACTOR", 0.0)
    engines = [Model("m1", Role.MIXED), Model("m2", Role.MIXED)]
    site = await make_site(*engines)
    with hanging(*engines):
        answer = asyncio.create_task(site.post(PROMPT))
        await eventually(lambda: any(engine.seen for engine in engines))
    check(await answer, PROMPT)
    assert await site.metric('fulcrum_gateway_legs_total{leg="whole",outcome="stall"}') == 1


async def test_a_stream_that_stands_still_goes_on_elsewhere(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leg_deadlines, "LEAST_STREAM_SECONDS", 2.0)
    monkeypatch.setattr(leg_deadlines, "STREAM_STEPS", 1.0)
    site, models = await two_each(make_site)
    cut_all(models, Cut(9, "stall"))
    check(await site.post(PROMPT), PROMPT)
    assert await site.metric('fulcrum_gateway_legs_total{leg="decode",outcome="stall"}') == 1


async def test_an_answer_that_comes_as_one_is_waited_for_longer(
    make_site: MakeSite, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leg_deadlines, "LEAST_STREAM_SECONDS", 2.0)
    monkeypatch.setattr(leg_deadlines, "WHOLE_FACTOR", 1.0)
    bad = Model("a-bad", Role.MIXED)
    bad.behave = hang
    site = await known_site(make_site, agent, bad, Model("m", Role.MIXED))
    for _ in range(3):
        assert (await site.post(WHOLE)).status == 200
    assert bad.seen


async def test_an_outlier_is_left_alone(make_site: MakeSite, agent: Agent) -> None:
    async def usual(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.1)  # far more than what this process adds by chance
        return False

    async def slow(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(1.0)
        return False

    engines = [Engine(f"m{number}", Role.MIXED) for number in range(4)]
    for engine in engines:
        engine.behave = usual
    engines[0].behave = slow
    admission = Admission(policy=AdmissionPolicy.PREDICTIVE)  # so that each request teaches
    site = await known_site(make_site, agent, *engines, admission=admission)

    metrics = site.gateway.metrics

    async def several() -> None:
        client = await site.connect()
        async with asyncio.timeout(deadline_seconds(60)):
            while not any(metrics.ejections.values()):
                client.post({"model": "m", "prompt": "x", "max_tokens": 3, "stream": True})
                assert (await client.answer()).status == 200

    await asyncio.gather(*(several() for _ in range(16)))
    assert await site.metric('fulcrum_gateway_ejections_total{role="mixed"}') == 1
    assert await site.metric('fulcrum_gateway_worker_breaker_open{worker="m0"') == 1
    seen = len(engines[0].seen)
    for _ in range(8):
        await site.post(PROMPT)
    assert len(engines[0].seen) == seen


async def test_a_worker_that_left_during_the_prefill_does_not_keep_the_request(
    make_site: MakeSite, agent: Agent
) -> None:
    """It was restarted: no connection to what it was is open when it leaves, and yet one is opened later."""
    prefill, bad = Model("p", Role.PREFILL), Model("bad", Role.DECODE)
    goes_on = asyncio.Event()

    bad.behave = hang
    site = await known_site(make_site, agent, prefill, bad)
    registry = site.gateway.registry
    prefill_itself = prefill.behave

    async def late(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await goes_on.wait()
        return prefill_itself is not None and await prefill_itself(engine, seen, writer)

    prefill.behave = late
    answer = asyncio.create_task(site.post(PROMPT))
    await eventually(lambda: bool(prefill.seen))
    good = Model("good", Role.DECODE, facts={"agent_port": agent.port, "pool": "x"})
    await good.start()
    site.engines["good"] = good
    registry.put(good.record())
    registry.put(msgspec.structs.replace(bad.record(), incarnation="another"))
    registry.sweep(asyncio.get_running_loop().time())
    goes_on.set()
    check(await answer, PROMPT)
    assert len(bad.seen) == 1
