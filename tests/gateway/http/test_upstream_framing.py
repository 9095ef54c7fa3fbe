"""Answers of engines, and of what stands before them: framed strictly, and events whole however they were cut."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import Engine, MakeSite, Seen

from fulcrum.api.names import Role
from fulcrum.gateway.http.framing import LAST_CHUNK, chunk, payload
from fulcrum.gateway.http.response_head import read_head
from fulcrum.gateway.http.whole_events import WholeEvents

BODY = {"model": "m", "prompt": "x", "max_tokens": 3}
OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"content-type: application/json\r\n"
ANSWER = b'{"choices":[{"text":"stolen"}]}'


def line(text: bytes) -> bytes:
    return text + b"\r\n"


HEADS = {
    "two lengths": OK + JSON + line(b"content-length: 31") + line(b"content-length: 0"),
    "the same length twice": OK + JSON + line(b"content-length: 31") + line(b"Content-Length: 31"),
    "a list of lengths": OK + JSON + line(b"content-length: 31, 31"),
    "a signed length": OK + JSON + line(b"content-length: +31"),
    "a huge length": OK + JSON + line(b"content-length: 99999999999999999999999"),
    "blank before the colon": OK + JSON + line(b"content-length : 31"),
    "length and chunks": OK + JSON + line(b"content-length: 31") + line(b"transfer-encoding: chunked"),
    "another coding": OK + JSON + line(b"transfer-encoding: gzip, chunked"),
    "not just chunked": OK + JSON + line(b"transfer-encoding: xchunked"),
    "chunked twice": OK + JSON + line(b"transfer-encoding: chunked") + line(b"transfer-encoding: chunked"),
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\n" + JSON + line(b"transfer-encoding: chunked"),
    "a folded line": OK + JSON + b"x-a: b\r\n content-length: 0\r\n" + line(b"content-length: 31"),
    "lines ended by LF": OK + JSON + b"x-a: b\ncontent-length: 0\r\n" + line(b"content-length: 31"),
    "a status that is no number": b"HTTP/1.1 2x0 OK\r\n" + JSON + line(b"content-length: 31"),
    "four digits of status": b"HTTP/1.1 2000 OK\r\n" + JSON + line(b"content-length: 31"),
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n",
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + OK + JSON + line(b"content-length: 31"),
}


@pytest.mark.parametrize("case", HEADS)
async def test_a_head_with_two_meanings_is_a_502_and_ends_the_connection(make_site: MakeSite, case: str) -> None:
    async def odd(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        writer.write(HEADS[case] + b"\r\n" + ANSWER + OK + line(b"content-length: 4") + b"\r\nnext")
        await writer.drain()
        return True

    engine = Engine("m", Role.MIXED, behave=odd)
    site = await make_site(engine)
    answer = await site.post(BODY)
    assert answer.status == 502
    assert b"stolen" not in answer.body
    engine.behave = None
    site.gateway.registry.sweep(asyncio.get_running_loop().time() + 60)  # the breaker's pause is over
    assert (await site.post(BODY)).status == 200
    assert engine.connections == 2


def test_plain_heads_are_read() -> None:
    head = read_head(b"HTTP/1.1 200\r\ncontent-length: 5")
    assert (head.status, head.length_bytes, head.chunked, head.keep_alive) == (200, 5, False, True)
    assert read_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked").chunked


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_none_whatever_its_head_says(make_site: MakeSite, status: int) -> None:
    async def empty(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 5\r\n\r\n" % status)
        return True

    site = await make_site(Engine("m", Role.MIXED, behave=empty))
    assert (await site.post(BODY)).status == status


def tokens(*texts: str) -> list[bytes]:
    events = [
        {"id": "c", "choices": [{"index": 0, "text": text, "finish_reason": None, "token_ids": [number]}]}
        for number, text in enumerate(texts)
    ]
    events[-1]["choices"][0]["finish_reason"] = "stop"  # type: ignore[index]
    lines = [json.dumps(each, separators=(",", ":")) for each in events]
    return [f"data: {each}\n\n".encode() for each in [*lines, "[DONE]"]]


def streaming(wire: bytes, *, piece: int = 1 << 16, coding: bytes = b"transfer-encoding: chunked\r\n") -> Any:
    async def behave(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        writer.write(OK + b"content-type: text/event-stream\r\n" + coding + b"\r\n")
        for at in range(0, len(wire), piece):
            writer.write(wire[at : at + piece])
            await writer.drain()
            await asyncio.sleep(0)
        if not coding:
            writer.close()
        return True

    return behave


STREAM = {**BODY, "stream": True}


async def test_chunk_extensions_and_trailers_end_at_the_gateway(make_site: MakeSite) -> None:
    events = tokens("a", "b")
    wire = b"".join(b"%x;smuggle=%b\r\n%b\r\n" % (len(each), b"y" * 9, each) for each in events)
    wire += b"0;x\r\nx-fulcrum-path: evil\r\n\r\n"
    site = await make_site(Engine("m", Role.MIXED, behave=streaming(wire)))
    client = await site.connect()
    client.post(STREAM)
    await client.read_head()
    raw = await client.reader.readuntil(b"0\r\n\r\n")
    assert b"smuggle" not in raw
    assert b"evil" not in raw
    assert payload(raw) == b"".join(events)
    assert raw.endswith(LAST_CHUNK)


@pytest.mark.parametrize("coding", [b"transfer-encoding: chunked\r\n", b""], ids=["chunked", "until close"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("width", [1, 7, 100, 1 << 16])
async def test_events_that_a_proxy_has_cut_are_whole_again(
    make_site: MakeSite, width: int, end: bytes, coding: bytes
) -> None:
    events = tokens("a", "b", "c")
    body = b"".join(events).replace(b"\n", end)
    parts = [body[at : at + width] for at in range(0, len(body), width)]
    wire = b"".join(map(chunk, parts)) + LAST_CHUNK if coding else body
    site = await make_site(Engine("m", Role.MIXED, behave=streaming(wire, piece=width + 5, coding=coding)))
    client = await site.connect()
    client.post(STREAM)
    await client.read_head()
    seen = []
    while part := await client.read_chunk():
        seen.append(part)
    assert b"".join(seen) == b"".join(events)
    assert all(part.endswith(b"\n\n") for part in seen)
    assert await site.metric("fulcrum_gateway_output_tokens_sum") == 3


@pytest.mark.parametrize("width", [3, 1 << 16])
async def test_a_failure_is_seen_wherever_it_stands(make_site: MakeSite, width: int) -> None:
    """It is resumed on another worker: nothing of the failure reaches the client."""
    error = b'data: {"error":{"message":"x","type":"InternalServerError","code":500}}\n\n'
    start = tokens("a ", "b ", "c ")[:2]
    body = b"".join(start) + error + b"data: [DONE]\n\n"
    wire = b"".join(chunk(body[at : at + width]) for at in range(0, len(body), width)) + LAST_CHUNK
    broken = Engine("x", Role.MIXED, behave=streaming(wire))
    site = await make_site(broken)
    answer = await site.post(STREAM)
    text = answer.body.decode()
    assert '"code":500' not in text
    assert "upstream_failed" in text
    assert text.index("a ") < text.index("b ")


@given(st.lists(st.sampled_from([b"data: a", b": ping", b'data: {"b":1}']), max_size=8), st.lists(st.integers(1, 9)))
def test_any_cut_gives_the_same_events(lines: list[bytes], widths: list[int]) -> None:
    body = b"".join(each + b"\n\n" for each in lines)
    whole = WholeEvents()
    out = b""
    at = 0
    for width in itertools.chain(widths, itertools.repeat(5)):
        if at >= len(body):
            break
        out += whole.feed(chunk(body[at : at + width]))
        at += width
    out += whole.feed(b"", last=True)
    assert out == b"".join(chunk(each + b"\n\n") for each in lines) + LAST_CHUNK
    assert whole.events == len(lines)


def test_half_an_event_at_the_end_stays_half() -> None:
    whole = WholeEvents()
    assert whole.feed(chunk(b"data: a\n\ndata: b"), last=True) == chunk(b"data: a\n\n") + chunk(b"data: b") + LAST_CHUNK
