"""The HTTP edge: limits, malformed input, pipelining, routes, shutdown."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.gateway.conftest import Engine, MakeSite, Seen, eventually
from tests.machine import deadline_seconds

from fulcrum.api.gateway import GatewayLimits
from fulcrum.api.names import Role

BODY = {"model": "m", "prompt": "x", "max_tokens": 3}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
DATA = json.dumps(BODY).encode()


def m(**options: object) -> Engine:
    return Engine("m", Role.MIXED, **options)  # type: ignore[arg-type]


async def hang(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(60)
    return True


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /health HTTP/2.0\r\nHost: g\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: g\r\nX : y\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: g\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 40_000 + b" HTTP/1.1\r\nHost: g\r\n\r\n", 431),
        # Smuggling.
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (POST + b"Content-Length: -5\r\n\r\nhello", 400),
        (POST + b"Content-Length: +5\r\n\r\nhello", 400),
        (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400),
        # Bodies.
        (POST + b"Content-Length: 9000000\r\n\r\n", 413),
        (POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
        (POST + b"Expect: the-unexpected\r\nContent-Length: 2\r\n\r\n", 417),
        (b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415),
        (POST + b"Content-Length: 2\r\n\r\n{]", 400),
        (POST + b"\r\n", 400),
        # Routes.
        (b"GET /nothing HTTP/1.1\r\nHost: g\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nHost: g\r\n\r\n", 404),
        (b"GET * HTTP/1.1\r\nHost: g\r\n\r\n", 404),
        (b"GET /v1/completions HTTP/1.1\r\nHost: g\r\n\r\n", 405),
        (b"DELETE /v1/models HTTP/1.1\r\nHost: g\r\n\r\n", 405),
        (b"CONNECT g:80 HTTP/1.1\r\nHost: g\r\n\r\n", 404),
        (b"GET /v1/models/other HTTP/1.1\r\nHost: g\r\n\r\n", 404),
        (b"OPTIONS /v1/completions HTTP/1.1\r\nHost: g\r\n\r\n", 200),
        (b"GET /health?verbose=1 HTTP/1.1\r\nHost: g\r\n\r\n", 200),
        (b"GET http://g/health HTTP/1.1\r\nHost: g\r\n\r\n", 200),
        (b"GET /health HTTP/1.0\r\n\r\n", 200),
    ],
)
async def test_every_answer_is_proper_and_the_gateway_goes_on(make_site: MakeSite, wire: bytes, status: int) -> None:
    site = await make_site(m())
    client = await site.connect()
    client.send(wire)
    answer = await client.answer()
    assert answer.status == status
    if status >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    if status == 405:
        assert "OPTIONS" in answer.headers["allow"]
    assert answer.headers["x-request-id"]
    assert (await site.post(BODY)).status == 200


async def test_head_has_no_body(make_site: MakeSite) -> None:
    site = await make_site(m())
    client = await site.connect()
    client.get("/health", "HEAD")
    client.get("/health")
    head = await client.answer(head=True)
    assert (head.status, head.headers["content-length"]) == (200, "3")
    assert (await client.answer()).body == b"ok\n"


async def test_models_and_readiness(make_site: MakeSite) -> None:
    site = await make_site(m())
    (card,) = (await site.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["root"]) == ("m", "model", "org/m")
    assert (await site.get("/v1/models/m")).json() == card
    assert (await site.get("/ready")).status == 200
    site.gateway.registry.remove("m", "test")
    not_ready = await site.get("/ready")
    assert (not_ready.status, not_ready.body) == (200, b"ready\n"), "503 with Retry-After beats a refused connection"
    assert (await site.post({"model": "m", "prompt": "x"})).headers["retry-after"]


async def test_bodies_may_come_in_chunks_and_in_pieces(make_site: MakeSite) -> None:
    site = await make_site(m())
    client = await site.connect()
    wire = POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + DATA[:5] + b"\r\n%x\r\n" % len(DATA[5:]) + DATA[5:]
    wire += b"\r\n0\r\nX-Trailer: 1\r\n\r\n"
    for index in range(len(wire)):
        client.send(wire[index : index + 1])
        await asyncio.sleep(0)
    assert (await client.answer()).status == 200
    assert site.engines["m"].seen[0].body == BODY


async def test_a_body_of_8_mebibytes_passes_and_a_larger_one_does_not(make_site: MakeSite) -> None:
    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE))
    limit = site.gateway.limits.max_body_bytes
    prompt = "x" * (limit - len(DATA))
    assert (await site.post({**BODY, "prompt": prompt})).status == 200
    assert site.engines["d"].seen[0].body["prompt"] == prompt
    client = await site.connect()
    client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(9):
        client.send(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
    assert (await client.answer()).status == 413


async def test_expect_100_continue(make_site: MakeSite) -> None:
    site = await make_site(m())
    client = await site.connect()
    client.send(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(DATA))
    assert (await client.answer()).status == 100
    client.send(DATA)
    assert (await client.answer()).status == 200


async def test_pipelined_requests_are_answered_in_order(make_site: MakeSite) -> None:
    site = await make_site(m())
    client = await site.connect()
    for number in range(20):
        if number % 3:
            client.get("/health")
        else:
            client.post({**BODY, "stream": number % 2 == 0}, headers=f"X-Request-Id: n{number}\r\n")
    client.send(b"BAD\r\n\r\n")
    for number in range(20):
        answer = await client.answer()
        assert answer.status == 200
        if not number % 3:
            assert answer.headers["x-request-id"] == f"n{number}"
    assert (await client.answer()).status == 400
    assert await client.reader.read() == b""


async def test_http_10_gets_no_chunks(make_site: MakeSite) -> None:
    site = await make_site(m())
    client = await site.connect()
    client.post({**BODY, "stream": True}, version="1.0", headers="Connection: keep-alive\r\n")
    answer = await client.answer()
    assert "transfer-encoding" not in answer.headers
    assert answer.body.startswith(b"data: ")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    client = await site.connect()
    for _ in range(2):
        client.post(BODY, version="1.0", headers="Connection: keep-alive\r\n")
        answer = await client.answer()
        assert answer.headers["connection"] == "keep-alive"


async def test_connection_close_is_honoured(make_site: MakeSite) -> None:
    site = await make_site(m())
    client = await site.connect()
    client.post(BODY, headers="Connection: close\r\n")
    assert (await client.answer()).headers["connection"] == "close"
    assert await client.reader.read() == b""


@pytest.mark.parametrize("coding", ["length", "chunked"])
async def test_an_offer_to_upgrade_is_ignored(make_site: MakeSite, coding: str) -> None:
    site = await make_site(m())
    client = await site.connect()
    for _ in range(2):
        head = POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        if coding == "length":
            wire = head + b"Content-Length: %d\r\n\r\n" % len(DATA) + DATA
        else:
            wire = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(DATA) + DATA + b"\r\n0\r\n\r\n"
        client.send(wire[:-7])
        await asyncio.sleep(0.02)
        client.send(wire[-7:])
        assert (await client.answer()).status == 200
    client.send(b"GET /health HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    client.get("/health")
    assert [(await client.answer()).status for _ in range(2)] == [200, 200]
    assert [seen.body for seen in site.engines["m"].seen] == [BODY, BODY]


@pytest.mark.parametrize("part", [b"POST /v1/comp", POST + b"Content-Length: 50\r\n\r\n{"])
async def test_a_request_that_does_not_arrive_is_a_408(make_site: MakeSite, part: bytes) -> None:
    site = await make_site(m(), limits=GatewayLimits(header_timeout_seconds=0.2, body_timeout_seconds=0.2))
    client = await site.connect()
    client.send(part)
    assert (await client.answer()).status == 408
    await eventually(lambda: not site.gateway.connections)


async def test_dripping_headers_do_not_extend_the_time(make_site: MakeSite) -> None:
    site = await make_site(m(), limits=GatewayLimits(header_timeout_seconds=0.3))
    client = await site.connect()
    client.send(b"GET /health HTTP/1.1\r\n")
    reading = asyncio.ensure_future(client.answer())
    while not reading.done():
        client.send(b"X: y\r\n")
        await asyncio.sleep(0.02)
    assert (await reading).status == 408


async def test_idle_connections_are_closed(make_site: MakeSite) -> None:
    site = await make_site(m(), limits=GatewayLimits(idle_timeout_seconds=0.2))
    client = await site.connect()
    client.get("/health")
    assert (await client.answer()).status == 200
    await eventually(lambda: not site.gateway.connections)


async def test_headers_without_an_end_are_bounded(make_site: MakeSite) -> None:
    site = await make_site(m(), limits=GatewayLimits(max_header_bytes=1000))
    client = await site.connect()
    client.send(b"GET /health HTTP/1.1\r\nHost: g\r\nX: ")
    for _ in range(30):
        client.send(b"y" * 100)
        await asyncio.sleep(0.005)
    assert (await client.answer()).status == 431


async def test_too_many_connections_are_told_so(make_site: MakeSite) -> None:
    async def never(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(60)
        return True

    site = await make_site(m(behave=never), max_connections=2)
    for _ in range(2):
        (await site.connect()).post(BODY)
    await eventually(lambda: len(site.engines["m"].seen) == 2)
    answer = await (await site.connect()).answer()
    assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (503, "Overloaded")


async def test_the_error_arrives_though_the_client_is_still_sending(make_site: MakeSite) -> None:
    site = await make_site(m())
    client = await site.connect()
    client.send(POST + b"Content-Length: 20000000\r\n\r\n")
    for _ in range(20):
        client.send(b"x" * 1_000_000)
    assert (await client.answer()).status == 413


async def test_shutdown_finishes_streams_and_takes_no_more(make_site: MakeSite) -> None:
    go_on = asyncio.Event()

    async def wait_in_stream(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await engine.head(writer)
        await engine.event(writer, '{"choices": [{"text": "a"}]}')
        await go_on.wait()
        await engine.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    site = await make_site(m(behave=wait_in_stream), lame_duck_seconds=2.0, grace_seconds=60.0)
    idle, busy = await site.connect(), await site.connect()
    busy.post({**BODY, "stream": True})
    await busy.read_head()
    stopping = asyncio.ensure_future(site.gateway.stop())
    await asyncio.sleep(0)
    late = await site.get("/ready")  # the lame duck still answers
    assert (late.status, late.body, late.headers["connection"]) == (503, b"shutting down\n", "close")
    assert await idle.reader.read() == b""
    with pytest.raises(OSError, match=r"refused|Connect"):
        await site.connect()
    assert not stopping.done()
    go_on.set()
    received = b""
    while chunk := await busy.read_chunk():
        received += chunk
    assert received.endswith(b"data: [DONE]\n\n")
    await asyncio.wait_for(stopping, deadline_seconds(60))


@pytest.mark.parametrize("stream", [False, True])
async def test_after_the_grace_period_the_rest_is_told(make_site: MakeSite, stream: bool) -> None:
    async def stall(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if stream:
            await engine.head(writer)
            await engine.event(writer, '{"choices": [{"text": "a"}]}')
        await asyncio.sleep(60)
        return True

    site = await make_site(m(behave=stall), grace_seconds=1.0)
    client = await site.connect()
    client.post({**BODY, "stream": stream})
    await eventually(lambda: bool(site.engines["m"].seen))
    if stream:
        assert (await client.read_head())[0] == 200
        assert await client.read_chunk() == b'data: {"choices": [{"text": "a"}]}\n\n'
    stopping = asyncio.ensure_future(site.gateway.stop())
    if stream:
        rest = await client.reader.read()
        assert b"shutting_down" in rest
        assert not rest.endswith(b"0\r\n\r\n")
    else:
        answer = await client.answer()
        assert (answer.status, answer.complete) == (503, True)
        assert b"shutting_down" in answer.body
    await asyncio.wait_for(stopping, deadline_seconds(60))


async def test_metrics_are_prometheus_text(make_site: MakeSite) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE))
    await site.post(BODY)
    await site.post({**BODY, "stream": True})
    await site.post({**BODY, "model": "other"})
    text = await site.page()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    requests = {
        (sample.labels["route"], sample.labels["code"]): sample.value
        for sample in families["fulcrum_gateway_requests"].samples
    }
    assert requests["/v1/completions", "200"] == 2
    assert requests["/v1/completions", "404"] == 1
    for name in ("time_to_first_token_seconds", "time_per_output_token_seconds"):
        assert await site.metric(f"fulcrum_gateway_{name}_count") == 2
    assert await site.metric("fulcrum_gateway_prompt_tokens_sum") == 14
    assert 'fulcrum_gateway_worker_in_flight{fulcrum_cluster="c",' in text


async def test_a_request_whose_task_dies_ends_its_connection(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client would wait for the request's whole deadline."""
    site = await make_site(Engine("m", Role.MIXED))

    async def die(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(site.gateway, "serve", die)
    client = await site.connect()
    client.post(BODY)
    async with asyncio.timeout(deadline_seconds(30)):
        assert await client.reader.read() == b""
