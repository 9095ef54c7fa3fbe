"""Pairs of workers are tried before users need them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from fulcrum.api.names import Role

from .conftest import Engine, MakeSite, Seen, eventually


def legs(engine: Engine) -> list[str]:
    return [seen.leg for seen in engine.seen if seen.headers["x-request-id"].startswith("prewarm-")]


async def test_every_ordered_pair_is_tried_once(make_site: MakeSite) -> None:
    engines = [Engine("p", Role.PREFILL), Engine("d", Role.DECODE), Engine("m", Role.MIXED)]
    site = await make_site(*engines, prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 6)
    assert all(sorted(legs(engine)) == ["decode"] * 2 + ["prefill"] * 2 for engine in engines)
    assert await site.metric('fulcrum_gateway_prewarms_total{outcome="warm"}') == 6
    assert await site.metric("fulcrum_gateway_prewarms_pending") == 0
    # One leg of each pair carries what the other returned, for a prompt of one token.
    received = [seen.body for seen in engines[1].seen if seen.leg == "decode"]
    assert {body["kv_transfer_params"]["from"] for body in received} == {"p", "m"}
    assert all(len(body["prompt"]) == body["max_tokens"] == 1 for body in received)


async def test_pairs_are_tried_one_after_the_other_and_those_in_use_first(make_site: MakeSite) -> None:
    at_once = most = 0
    order: list[str] = []

    async def slow(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        order.append(f"{seen.leg} {engine.name}")
        await asyncio.sleep(0.01)
        at_once -= 1
        return False

    roles = {"d": Role.DECODE, "m": Role.MIXED, "p": Role.PREFILL}
    site = await make_site(*(Engine(name, role, behave=slow) for name, role in roles.items()), prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 6)
    assert most == 1
    assert order[:2] == ["prefill p", "decode d"]


async def test_a_new_engine_process_is_tried_again_and_a_flip_is_not(make_site: MakeSite) -> None:
    prefill, decode = Engine("p", Role.PREFILL), Engine("d", Role.DECODE)
    site = await make_site(prefill, decode, prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 2)
    assert len(legs(prefill)) == len(legs(decode)) == 2
    record = decode.record()
    site.gateway.view.put(msgspec.structs.replace(record, role=Role.PREFILL, role_epoch=1))
    assert site.gateway.prewarmer.pending == 0
    site.gateway.view.put(msgspec.structs.replace(record, incarnation="another"))
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 4)
    assert len(legs(prefill)) == len(legs(decode)) == 4


async def test_failures_are_tried_again(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.gateway.prewarm._RETRY_SECONDS", 0.01)
    failures = 2

    async def reset_twice(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            writer.transport.abort()
        return failures >= 0

    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE, behave=reset_twice), prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 2)
    assert site.gateway.metrics.prewarms["reset"] == 2
    assert not any(worker.suspect for worker in site.gateway.view.workers)


async def test_a_slow_pair_is_tried_again(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.gateway.prewarm._RETRY_SECONDS", 0.01)
    monkeypatch.setattr("fulcrum.gateway.prewarm._SLOW_SECONDS", 2.0)
    slow = [True]

    async def slow_once(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if seen.leg == "decode" and slow:
            slow.clear()
            await asyncio.sleep(2.1)
        return False

    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE, behave=slow_once), prewarm=True)
    await eventually(lambda: site.gateway.metrics.prewarms["warm"] == 2)
    assert site.gateway.metrics.prewarms["slow"] == 1
