"""Requests over one and two legs, retries, and what a client sees of failures."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.conftest import Answered, Engine, MakeSite, Seen, Site, eventually

from fulcrum.api.gateway import GatewayLimits
from fulcrum.api.names import Role
from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import Tiers
from fulcrum.routing import prefill_left_seconds
from fulcrum.routing.tuning import TUNING

HOST = Tiers(host_tokens=1e6, host_link=TransferCost(base_seconds=0.0, seconds_per_token=1e-6))
BODY = {"model": "m", "prompt": "x", "max_tokens": 3}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def p(name: str = "p", **options: Any) -> Engine:
    return Engine(name, Role.PREFILL, **options)


def d(name: str = "d", **options: Any) -> Engine:
    return Engine(name, Role.DECODE, **options)


def text_of(answer: Answered) -> str:
    return "".join(
        json.loads(line.removeprefix("data: "))["choices"][0]["text"]
        for line in answer.body.decode().splitlines()
        if line.startswith('data: {"choices"')
    )


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", BODY), ("/v1/chat/completions", CHAT)])
async def test_two_legs_share_an_id_and_hand_over_the_kv(make_site: MakeSite, path: str, body: dict[str, Any]) -> None:
    site = await make_site(p(), d())
    answer = await site.post(body, path, "X-Request-Id: my-id.1\r\nAuthorization: Bearer secret\r\n")
    assert answer.status == 200
    assert answer.json()["choices"][0]["text"] == "d d d "
    assert answer.headers["x-request-id"] == "my-id.1"
    assert answer.headers["x-fulcrum-path"] == "p,d"
    (prefill,), (decode,) = site.engines["p"].seen, site.engines["d"].seen
    assert (prefill.leg, decode.leg) == ("prefill", "decode")
    assert (prefill.path, decode.path) == (path, path)
    assert prefill.body["max_tokens"] == 1
    assert prefill.headers["x-request-id"] == decode.headers["x-request-id"] == "my-id.1"
    assert "authorization" not in prefill.headers
    kv = decode.body.pop("kv_transfer_params")
    assert kv["from"] == "p"
    assert decode.body == body


async def test_what_moving_kv_costs_is_learnt_from_streams(make_site: MakeSite) -> None:
    """A pull that takes 0.3 s. Of an answer that comes as one nothing is seen, nor where nothing is pulled."""
    loop = asyncio.get_running_loop()
    asked: list[float] = []

    async def pulls(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        asked.append(loop.time())
        await asyncio.sleep(0.3)
        return False

    site = await make_site(p(facts={"pool": "a"}), d(facts={"pool": "b"}, behave=pulls))
    transfers = site.gateway.registry.cluster.transfers
    assert (await site.post(BODY)).status == 200
    assert transfers.learnt == {}
    for _ in range(3):
        assert (await site.post({**BODY, "stream": True})).status == 200
    (rate,) = transfers.report()
    assert (rate.prefill_pool, rate.decode_pool, rate.transfers) == ("a", "b", 3)
    # A prompt of 7 tokens.
    assert 0.2 < rate.base_seconds + 7 * rate.seconds_per_token < loop.time() - asked[1]
    assert site.gateway.prewarmer.report().rates == (rate,)


@pytest.mark.parametrize("tiers", [None, HOST, replace(HOST, front=True)])
async def test_an_engine_that_can_compute_fronts_is_told_what_is_left_for_the_prefill(
    make_site: MakeSite, tiers: Tiers | None
) -> None:
    site = await make_site(p(), d(), Engine("m", Role.MIXED), slo_seconds=(2.0, 1.0))
    for name in ("p", "d", "m"):
        site.gateway.registry.cluster.workers.set_tiers(name, tiers)
    told = tiers is not None and tiers.front
    for body, header, most in (
        (BODY, "", 2.0),
        (BODY, "x-llm-d-slo-ttft-ms: 700\r\n", 0.7),
        ({**BODY, "n": 2}, "", 2.0),
    ):
        assert (await site.post(body, headers=header)).status == 200
        for engine in site.engines.values():
            for seen in engine.seen:
                kv = seen.body.get("kv_transfer_params") or {}
                assert ("ttft_seconds" in kv) == (told and seen.leg != "decode"), (engine.name, seen)
                if "ttft_seconds" in kv:
                    within = round(prefill_left_seconds(most, 0.0), 3)
                    assert within - 0.5 < kv["ttft_seconds"] <= within
                    assert round(kv["ttft_seconds"], 3) == kv["ttft_seconds"]
            engine.seen.clear()


async def test_a_strange_request_id_is_replaced(make_site: MakeSite) -> None:
    site = await make_site(p(), d())
    answer = await site.post(BODY, headers="X-Request-Id: a b\r\n")
    assert answer.headers["x-request-id"] == site.engines["p"].seen[0].headers["x-request-id"]
    assert len(answer.headers["x-request-id"]) == 32


async def test_stream_passes_through(make_site: MakeSite) -> None:
    site = await make_site(p(), d(tokens=200))
    client = await site.connect()
    for _ in range(3):
        client.post({**BODY, "stream": True})
        answer = await client.answer()
        assert answer.status == 200
        assert answer.complete
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert text_of(answer) == "".join(f"d{number} " for number in range(200))
        assert answer.body.endswith(b"data: [DONE]\n\n")
    assert site.engines["p"].connections == site.engines["d"].connections == 1
    assert site.engines["p"].seen[0].body["stream"] is False


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("engines", "body", "path"),
    [
        ([Engine("m", Role.MIXED)], BODY, "m"),
        ([Engine("d", Role.DECODE)], BODY, "d"),
        ([Engine("p", Role.PREFILL)], BODY, "p"),
        ([Engine("p", Role.PREFILL), Engine("d", Role.DECODE)], {**BODY, "n": 2}, "d"),
        ([Engine("p", Role.PREFILL), Engine("d", Role.DECODE)], {**BODY, "prompt": ["a", "b"]}, "d"),
    ],
)
async def test_one_leg(
    make_site: MakeSite, engines: list[Engine], body: dict[str, Any], path: str, stream: bool
) -> None:
    engines = [Engine(engine.name, engine.role) for engine in engines]
    site = await make_site(*engines)
    answer = await site.post({**body, "stream": stream})
    assert answer.status == 200
    assert answer.headers["x-fulcrum-path"] == path
    assert [seen.leg for engine in engines for seen in engine.seen] == ["whole"]


async def test_one_token_is_one_token(make_site: MakeSite) -> None:
    site = await make_site(p(), d())
    assert (await site.post({**BODY, "max_tokens": 1})).json()["choices"][0]["text"] == "d "


async def test_prefill_without_transfer_parameters_still_decodes(make_site: MakeSite) -> None:
    async def no_kv(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.whole(seen, writer, kv_transfer_params=None)
        return True

    site = await make_site(p(behave=no_kv), d())
    assert (await site.post(BODY)).status == 200
    assert "kv_transfer_params" not in site.engines["d"].seen[0].body
    assert await site.metric('fulcrum_gateway_legs_total{leg="prefill",outcome="no_kv"}') == 1


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_4xx_of_an_engine_is_passed_on_and_not_retried(make_site: MakeSite, leg: str, stream: bool) -> None:
    async def refuse(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.send(writer, 400, {"error": {"message": "too long", "code": 400}})
        return True

    site = await make_site(p(behave=refuse if leg == "prefill" else None), d(behave=refuse), p("p2"), d("d2"))
    for name in ("p2", "d2"):
        site.gateway.registry.remove(name, "test")
    answer = await site.post({**BODY, "stream": stream})
    assert (answer.status, answer.json()["error"]["message"]) == (400, "too long")
    assert len(site.engines["p"].seen) + len(site.engines["d"].seen) == (1 if leg == "prefill" else 2)


async def reset(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return True


async def fail_500(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await engine.send(writer, 500, {"error": {"message": "boom"}})
    return True


async def garbage(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
    return True


async def half_body(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.transport.close()
    return True


async def head_only(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await engine.head(writer)
    writer.transport.close()
    return True


async def error_event_first(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await engine.head(writer)
    await engine.event(writer, '{"error": {"message": "x", "code": 500}}')
    writer.write(b"0\r\n\r\n")
    return True


BROKEN = [reset, fail_500, garbage, half_body, head_only, error_event_first]


@pytest.mark.parametrize("behave", BROKEN)
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("stream", [False, True])
async def test_failure_before_the_first_byte_is_retried_elsewhere(
    make_site: MakeSite, behave: Any, role: Role, stream: bool
) -> None:
    if behave is error_event_first and not (stream and role is Role.DECODE):
        return
    bad = Engine("bad", role, behave=behave)
    site = await make_site(bad, p(), d())
    site.gateway.registry.workers.sort(key=lambda worker: worker.name != "bad")
    for _ in range(4):
        answer = await site.post({**BODY, "stream": stream})
        assert answer.status == 200
        assert answer.complete
        text = text_of(answer) if stream else answer.json()["choices"][0]["text"]
        assert text == ("d0 d1 d2 " if stream else "d d d ")
    assert bad.seen
    assert await site.metric("fulcrum_gateway_retries_total") >= 1
    if role is Role.DECODE:
        # The KV of the first prefill may have gone with the decode worker: each attempt prefills anew.
        assert len(site.engines["p"].seen) == 4 + len(bad.seen)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_worker_that_was_never_reached_costs_no_second_prefill(
    make_site: MakeSite, stream: bool
) -> None:
    gone = d("gone")
    site = await make_site(p(), Engine("p2", Role.PREFILL), gone, d())
    await gone.stop()
    for _ in range(6):
        answer = await site.post({**BODY, "stream": stream})
        assert answer.status == 200
        assert answer.complete
        # The one that holds the KV is the one that it is pulled from.
        pulled = site.engines["d"].seen[-1].body["kv_transfer_params"]["from"]
        assert answer.headers["x-fulcrum-path"] == f"{pulled},d"
    assert await site.metric('fulcrum_gateway_legs_total{leg="decode",outcome="connect"}') >= 1
    assert await site.metric('fulcrum_gateway_legs_total{leg="prefill",outcome="held"}') >= 1
    assert len(site.engines["p"].seen) + len(site.engines["p2"].seen) == 6


async def test_a_prefill_that_is_held_no_longer_is_done_again(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fulcrum.gateway.dispatch.held_prefill.USABLE_SECONDS", 0.0)
    gone = d("gone")
    site = await make_site(p(), gone, d())
    await gone.stop()
    for _ in range(4):
        assert (await site.post(BODY)).status == 200
    failed = await site.metric('fulcrum_gateway_legs_total{leg="decode",outcome="connect"}')
    assert failed >= 1
    assert len(site.engines["p"].seen) == 4 + failed


async def test_a_dead_worker_is_avoided_for_a_moment(make_site: MakeSite) -> None:
    site = await make_site(p(), d("dead"), d())
    await site.engines["dead"].stop()
    began = time.monotonic()
    for _ in range(10):
        assert (await site.post(BODY)).status == 200
    moments = (time.monotonic() - began) / TUNING.first_pause_seconds
    assert await site.metric('fulcrum_gateway_legs_total{leg="decode",outcome="connect"}') <= 2 + moments


async def test_an_empty_role_is_served_in_one_leg(make_site: MakeSite) -> None:
    site = await make_site(p(), d())
    await site.engines["p"].stop()
    answer = await site.post(BODY)
    assert (answer.status, answer.headers["x-fulcrum-path"]) == (200, "d")


@pytest.mark.parametrize("stream", [False, True])
async def test_when_everyone_fails_the_error_is_clean(make_site: MakeSite, stream: bool) -> None:
    site = await make_site(p(behave=reset), d(behave=fail_500))
    answer = await site.post({**BODY, "stream": stream})
    assert answer.status == 502
    assert answer.headers["retry-after"]
    assert answer.headers["x-fulcrum-rejected"] == "UpstreamFailed"
    assert answer.json()["error"]["code"] == "upstream_failed"


async def test_nobody_there(make_site: MakeSite) -> None:
    site = await make_site()
    answer = await site.post(BODY)
    assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (503, "NoWorker")
    assert answer.headers["retry-after"]
    assert (await site.get("/ready")).status == 200


async def test_a_stream_that_breaks_ends_with_an_error_and_no_last_chunk(make_site: MakeSite) -> None:
    async def break_off(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.head(writer)
        await engine.event(writer, '{"choices": [{"text": "a"}]}')
        writer.write(b"20\r\ndata: {half an ev")
        await writer.drain()
        writer.transport.close()
        return True

    site = await make_site(p(), d(behave=break_off))
    answer = await site.post({**BODY, "stream": True})
    assert answer.status == 200
    assert not answer.complete
    events = [event for event in answer.body.decode().split("\n\n") if event]
    assert events[0] == 'data: {"choices": [{"text": "a"}]}'
    error = json.loads(events[1].removeprefix("data: "))["error"]
    assert (error["code"], error["retry_after_seconds"]) == ("upstream_failed", 1)
    assert len(events) == 2


async def test_stale_connections_are_replaced_unseen(make_site: MakeSite) -> None:
    site = await make_site(p(), d())
    for _ in range(3):
        assert (await site.post(BODY)).status == 200
        for engine in site.engines.values():
            for writer in list(engine.writers):
                writer.transport.abort()
    assert await site.metric("fulcrum_gateway_retries_total") == 0


async def hang(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(60)
    return True


async def hang_in_stream(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await engine.head(writer)
    await engine.event(writer, '{"choices": [{"text": "a"}]}')
    await asyncio.sleep(60)
    return True


@pytest.mark.parametrize(
    ("engine", "stream"), [(p(behave=hang), False), (d(behave=hang), False), (d(behave=hang_in_stream), True)]
)
async def test_a_client_that_leaves_cancels_the_leg(make_site: MakeSite, engine: Engine, stream: bool) -> None:
    hanging = Engine(engine.name, engine.role, behave=engine.behave)
    other = d() if engine.role is Role.PREFILL else p()
    site = await make_site(hanging, other)
    client = await site.connect()
    client.post({**BODY, "stream": stream})
    await eventually(lambda: bool(hanging.seen))
    if stream:
        await client.read_head()
    client.close()
    await eventually(lambda: hanging.gone == 1)
    await eventually(lambda: all(worker.in_flight == 0 for worker in site.gateway.registry.workers))
    assert await site.metric('fulcrum_gateway_requests_total{code="499"}') == 1


async def test_a_request_that_takes_too_long_is_a_504(make_site: MakeSite) -> None:
    limits = GatewayLimits(request_timeout_seconds=0.4)
    site = await make_site(d(behave=hang), limits=limits)
    answer = await site.post(BODY)
    assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (504, "TimedOut")
    await eventually(lambda: site.engines["d"].gone == 1)


async def test_a_stream_that_takes_too_long_breaks_off(make_site: MakeSite) -> None:
    site = await make_site(d(behave=hang_in_stream), limits=GatewayLimits(request_timeout_seconds=2.0))
    answer = await site.post({**BODY, "stream": True})
    assert not answer.complete
    assert b"timed_out" in answer.body


async def test_a_prefill_worker_that_hangs_is_left(make_site: MakeSite) -> None:
    site = await make_site(p(behave=hang), d(), limits=GatewayLimits(request_timeout_seconds=5.0))
    answer = await site.post(BODY)
    assert (answer.status, answer.headers["x-fulcrum-path"]) == (200, "d")


async def test_a_slow_client_slows_the_engine_and_not_the_gateway(make_site: MakeSite) -> None:
    sent = 0

    async def flood(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        nonlocal sent
        await engine.head(writer)
        for _ in range(2000):
            await engine.event(writer, "x" * 16_000)
            sent += 1
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    site = await make_site(d(behave=flood))
    client = await site.connect()
    client.post({**BODY, "stream": True})
    await client.read_head()
    last = -1
    while last != sent:  # until the engine is stopped by back-pressure
        last = sent
        await asyncio.sleep(0.2)
    assert sent < 1900
    (connection,) = [each for each in site.gateway.connections if not each.idle]
    assert connection._transport is not None
    assert connection._transport.get_write_buffer_size() < 4 * 1024 * 1024
    count = 0
    while await client.read_chunk():
        count += 1
    assert count == 2001


async def test_least_loaded_worker_gets_the_request(make_site: MakeSite) -> None:
    site: Site = await make_site(d("d1", behave=hang), d("d2", behave=hang), d("d3", behave=hang))
    for _ in range(9):
        (await site.connect()).post(BODY)
    await eventually(lambda: sum(len(engine.seen) for engine in site.engines.values()) == 9)
    assert [len(engine.seen) for engine in site.engines.values()] == [3, 3, 3]
