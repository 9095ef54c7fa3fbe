"""Whatever comes over the wire, the gateway answers 2xx or 4xx or closes, goes on serving, and keeps nothing of it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.conftest import Client, Site
from tests.gateway.fuzz_site import MAX_BODY_BYTES, MAX_HEADER_BYTES, Run, fuzzed, nothing_left, statuses
from tests.machine import deadline_seconds

DATA = json.dumps({"model": "m", "prompt": "x", "max_tokens": 2}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\n"
JSON = b"Content-Type: application/json\r\n"
VALID = POST + JSON + b"Content-Length: %d\r\n\r\n%b" % (len(DATA), DATA)
LAST = b"GET /health HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n"
KEY = "fuzz-test-key"
PATIENT_SECONDS = deadline_seconds(60)
"""How long to wait where an answer must come."""
COMMON = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with fuzzed() as runs:
        yield runs


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory: Path = tmp_path_factory.mktemp("keys")
    (directory / "one").write_text(KEY)
    (directory / "two").write_text(json.dumps({"key": f"{KEY}-two", "classes": ["silver"]}))
    with fuzzed(directory) as runs:
        yield runs


async def ask(site: Site, wire: bytes) -> int:
    client = Client(*await asyncio.open_connection("127.0.0.1", site.gateway.port))
    client.send(wire)
    status = (await client.answer()).status
    client.close()
    return status


def proper(seen: list[int]) -> bool:
    return all(100 <= status < 500 for status in seen)


# The HTTP edge.


def pieces(wire: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(wire) + 1) for cut in cuts})
    return [wire[begin:end] for begin, end in zip([0, *places], [*places, len(wire)], strict=True)]


FRAGMENTS = st.sampled_from(
    [b"\r\n", b"\n", b"\r", b":", b" ", b"\t", b"\x00", b"\x7f", b"\xff", b"chunked", b"Transfer-Encoding: chunked\r\n",
     b"HTTP/1.0", b"{", b"Upgrade: h2c\r\nConnection: Upgrade\r\n", b"Expect: 100-continue\r\n", b"Host: g\r\n",
     b"Content-Length: 5\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"0\r\n\r\n", b"9" * 30]
)  # fmt: skip


def mutations() -> st.SearchStrategy[bytes]:
    """A valid request with bytes replaced, removed or inserted."""

    def mutate(edits: list[tuple[int, int, bytes]]) -> bytes:
        wire = VALID
        for place, length, insert in edits:
            at = place % (len(wire) + 1)
            wire = wire[:at] + insert + wire[at + length :]
        return wire

    edit = st.tuples(st.integers(0, 300), st.integers(0, 5), FRAGMENTS | st.binary(max_size=5))
    return st.lists(edit, min_size=1, max_size=4).map(mutate)


def chunked(body: bytes, cuts: list[int], extension: bytes, trailer: bytes) -> bytes:
    parts = [part for part in pieces(body, cuts) if part]
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n%b\r\n" % trailer


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request that is well framed, whatever else it is."""
    method = draw(st.sampled_from([b"POST", b"GET", b"OPTIONS", b"DELETE", b"PATCH", b"QUERY", b"CONNECT"]))
    target = draw(
        st.sampled_from(
            [b"/v1/completions", b"/v1/chat/completions", b"/v1/models", b"/v1/models/m", b"/health", b"/",
             b"*", b"http://g/v1/completions", b"/v1/completions?x=1", b"//v1//completions", b"/v1/%63ompletions",
             b"/metrics"]
        )
    )  # fmt: skip
    version = draw(st.sampled_from([b"1.1", b"1.1", b"1.0"]))
    names = st.sampled_from(
        [b"X-Request-Id", b"x-llm-d-slo-ttft-ms", b"x-tier", b"Authorization", b"Accept", b"Connection", b"Cookie"]
    )
    values = st.binary(max_size=20).map(lambda raw: bytes(byte for byte in raw if byte >= 32 and byte != 127))
    values |= st.sampled_from(
        [b"close", b"keep-alive", b"gold", b"1e-320", b"nan", b"-1", b"inf", b"1_0", b" ", b"a, b"]
    )
    headers = draw(st.lists(st.tuples(names, values), max_size=4))
    head = b"%b %b HTTP/%b\r\nHost: g\r\n" % (method, target, version) + JSON * draw(st.integers(0, 1))
    head += b"".join(b"%b: %b\r\n" % header for header in headers)
    body = draw(st.sampled_from([DATA, b"", b"{}"]) | st.binary(max_size=200))
    if draw(st.booleans()) and version == b"1.1" and method != b"CONNECT":
        cuts = draw(st.lists(st.integers(0, 200), max_size=4))
        extension = draw(st.sampled_from([b"", b";a=b", b'; a="b;c"']))
        trailer = draw(st.sampled_from([b"", b"X-T: 1\r\n"]))
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, cuts, extension, trailer)
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@COMMON
@given(wire=st.binary(max_size=400) | mutations(), cuts=st.lists(st.integers(0, 400), max_size=3))
def test_malformed_http(run: Run, wire: bytes, cuts: list[int]) -> None:
    async def check(site: Site) -> None:
        assert proper(await statuses(site, pieces(wire, cuts)))
        assert await ask(site, VALID) == 200

    run(check)


@COMMON
@given(wires=st.lists(requests(), min_size=1, max_size=4), cuts=st.lists(st.integers(0, 2000), max_size=6))
def test_pipelined_requests_in_any_pieces(run: Run, wires: list[bytes], cuts: list[int]) -> None:
    async def check(site: Site) -> None:
        wire = b"".join(wires) + LAST
        seen = await statuses(site, pieces(wire, cuts), first_seconds=PATIENT_SECONDS, wait_seconds=PATIENT_SECONDS)
        assert proper(seen)
        assert len(seen) <= len(wires) + 1
        # Where a request is cut makes no difference to what it is answered with; but who sends on behind a request
        # that ends the connection may lose the last answers.
        at_once = await statuses(site, [wire], first_seconds=PATIENT_SECONDS, wait_seconds=PATIENT_SECONDS)
        ends_early = any(b"close" in one or b"HTTP/1.0" in one for one in wires)
        known = min(len(seen), len(at_once)) if ends_early else None
        assert at_once[:known] == seen[:known]
        assert await ask(site, VALID) == 200

    run(check)


FRAMINGS = st.sampled_from(
    [b"Content-Length: %d", b"Content-Length: 0", b"Content-Length: 1", b"content-length:%d", b"Content-Length: 0x10",
     b"Content-Length: %d, %d", b"Content-Length: +%d", b"Content-Length: -1", b"Content-Length:",
     b"Content-Length : %d", b"Content-Length: 99999999999999999999", b"Content-Length: " + b"9" * 5000,
     b"Content\x00-Length: %d",
     b"Transfer-Encoding: chunked", b"transfer-encoding:chunked", b"Transfer-Encoding: Chunked",
     b"Transfer-Encoding: x", b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: chunked;q=1",
     b"Transfer-Encoding: \x0bchunked",
     b"Transfer-Encoding: identity", b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding : chunked",
     b"X: y\r\n Transfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"]
)  # fmt: skip


@COMMON
@given(framings=st.lists(FRAMINGS, min_size=2, max_size=3), cuts=st.lists(st.integers(0, 400), max_size=2))
def test_nothing_is_smuggled(run: Run, framings: list[bytes], cuts: list[int]) -> None:
    """Two ways to say where a body ends: refused, and what may be another request in it is not answered."""
    hidden = b"GET /openapi.json HTTP/1.1\r\nHost: g\r\n\r\n"
    body = b"%x\r\n%b\r\n0\r\n\r\n%b" % (len(DATA), DATA, hidden)
    lines = [line.replace(b"%d", b"%d" % len(body)) for line in framings]

    async def check(site: Site) -> None:
        wire = POST + JSON + b"\r\n".join(lines) + b"\r\n\r\n" + body
        seen = await statuses(site, pieces(wire, cuts), first_seconds=PATIENT_SECONDS)
        # The same length said twice is no contradiction to the parser, but a list of lengths is to us.
        assert len(seen) == 1
        assert 400 <= seen[0] < 500
        assert await ask(site, VALID) == 200

    run(check)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"X: y\r\n" * 2_000, 431),
        (b"".join(b"X-%d: y\r\n" % number for number in range(2_000)), 431),
        (b"X: " + b"y" * MAX_HEADER_BYTES + b"\r\n", 431),
        (b"y" * 2 * MAX_HEADER_BYTES, 431),
        (b"y" * 2 * MAX_HEADER_BYTES + b": x\r\n", 431),
        (b"Content-Length: %d\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"Content-Length: " + b"9" * 5_000 + b"\r\n", 400),
        (b"Authorization: " + b"x" * (MAX_HEADER_BYTES - 200) + b"\r\nContent-Length: %d\r\n" % len(DATA), 200),
    ],
)
def test_floods_of_headers(run: Run, head: bytes, status: int) -> None:
    async def check(site: Site) -> None:
        for step in (len(head) + 1, 1000):
            wire = POST + JSON + head + b"\r\n" + DATA
            seen = await statuses(
                site, [wire[at : at + step] for at in range(0, len(wire), step)], first_seconds=PATIENT_SECONDS
            )
            # Of what is wrong in two ways either may be said.
            assert seen == [status] or (seen == [400] and status == 431)

    run(check)


@COMMON
@given(
    authorization=st.binary(max_size=40) | st.sampled_from([b"Bearer", b"Bearer " + KEY.encode()[:-1], b"Basic x"]),
    tier=st.sampled_from([b"gold", b"silver", b"rest", b"\xff", b""]),
    path=st.sampled_from([b"/v1/completions", b"http://g/v1/completions", b"/v1/models", b"/v1/x", b"/v1/models/m"]),
)
def test_no_header_is_a_key(guarded: Run, authorization: bytes, tier: bytes, path: bytes) -> None:
    async def check(site: Site) -> None:
        clean = bytes(byte for byte in authorization if byte >= 32 and byte != 127)
        more = b"Authorization: %b\r\nx-tier: %b\r\nContent-Length: %d\r\n\r\n%b" % (clean, tier, len(DATA), DATA)
        wire = b"POST %b HTTP/1.1\r\nHost: g\r\n" % path + JSON + more
        assert await statuses(site, [wire], first_seconds=PATIENT_SECONDS) == [401]
        key = b"Authorization: Bearer %b\r\n" % KEY.encode()
        assert await ask(site, VALID.replace(JSON, JSON + key)) == 200

    guarded(check)


# The JSON edge.

NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**30, 1e308, -0.0])
json_values = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text(max_size=20)
    | st.sampled_from(["m", "x", "\ud800", "\x00", "a" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["prompt", "messages", "model", "stream", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens",
     "echo", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "stream_options", "suffix", "prompt_embeds",
     "priority",
     "tools", "cache_salt", "use_beam_search", "prompt_logprobs", "seed", "temperature", "stop", "return_token_ids"]
)  # fmt: skip


def bodies() -> st.SearchStrategy[bytes]:
    """Bodies that are nearly right: a valid one with some fields of any value, perhaps repeated, perhaps cut."""
    some = st.lists(st.tuples(FIELDS, json_values), max_size=5)

    def write(fields: list[tuple[str, Any]]) -> bytes:
        pairs = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in [("prompt", "x"), *fields]]
        pairs.append('"messages":[{"role":"user","content":"x"}]')
        return ("{" + ",".join(pairs) + "}").encode()

    return some.map(write)


RAW = st.sampled_from(
    [b"", b"null", b"[]", b"{", b"}", b'{"prompt":}', b"\xef\xbb\xbf{}", b'{"prompt":"\xff"}',
     b'{"prompt":"\xed\xa0\x80"}', b'{"prompt":"\\ud800"}', b'{"prompt":"\\uDFFF\\ud83d"}',
     b'{"prompt":"' + b"\x01" + b'"}', b'{"prompt":NaN}',
     b'{"prompt":' + b"[" * 2000 + b"}", b'{"prompt":' + b"[" * 2000 + b"]" * 2000 + b"}",
     b'{"a":' * 800 + b"1" + b"}" * 800, b'{"messages":' + b'[{"content":' * 300 + b"1" + b"}]" * 300 + b"}",
     b'{"prompt":"x","max_tokens":' + b"9" * 3000 + b"}", b'{"prompt":"x","n":1e999}', b'{"prompt":"x","n":-1e999}',
     b'{"prompt":"x","prompt":["y","z"],"n":1,"n":2}', b'{"prompt":"x","stream":true,"stream":false}',
     b'{"prompt":[0.5,1]}', b'{"prompt":[-1]}', b'{"prompt":[[]]}', b'{"prompt":[{}]}', b'{"prompt":["a",1,[2]]}']
)  # fmt: skip
SLO_VALUES = st.sampled_from(
    ["1", "0.5", "5e-324", "1e308", "1e400", "-1", "0", "nan", "inf", "", " ", "1_0", "0x1", "1,2", "\xb2", "x" * 100]
) | st.floats().map(repr)


@settings(COMMON, max_examples=150)
@given(
    body=bodies() | RAW | st.binary(max_size=100),
    path=st.sampled_from(["/v1/completions", "/v1/chat/completions"]),
    slo=st.lists(st.tuples(st.sampled_from(["x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms"]), SLO_VALUES), max_size=2),
    tier=st.sampled_from(["", "gold", "GOLD", "silver", "gold, silver", "\xff"]),
)
def test_malformed_json(run: Run, body: bytes, path: str, slo: list[tuple[str, str]], tier: str) -> None:
    async def check(site: Site) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in [*slo, ("x-tier", tier)])
        head = f"POST {path} HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n{lines}".encode("latin-1")
        client = Client(*await asyncio.open_connection("127.0.0.1", site.gateway.port))
        client.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = await client.answer()
        assert answer.status == 200 or 400 <= answer.status < 500, answer
        assert answer.complete
        if answer.status == 429:
            assert int(answer.headers["retry-after"]) >= 1
        elif answer.status != 200:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        if answer.headers.get("connection") != "close":
            client.send(VALID)
            assert (await client.answer()).status == 200
        client.close()

    run(check)


def test_nothing_is_kept(run: Run) -> None:
    """Memory after many odd requests is what it was after some."""

    def resident_bytes() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    odd = [
        VALID, VALID[:-5], POST + b"\r\n", b"\x00" * 50, POST + JSON + b"Content-Length: 2\r\n\r\n{]",
        VALID.replace(b'"max_tokens": 2', b'"stream": true '), b"GET /openapi.json HTTP/1.1\r\nHost: g\r\n\r\n" * 3,
        POST + JSON + b"Content-Length: 3000\r\n\r\n" + b"x" * 2000, POST + b"X: " + b"y" * 5000,
        POST + JSON + b"Transfer-Encoding: chunked\r\n\r\nfff\r\n" + b"x" * 1000,
    ]  # fmt: skip

    async def rounds(site: Site, count: int) -> None:
        for _ in range(count):
            clients = [Client(*await asyncio.open_connection("127.0.0.1", site.gateway.port)) for _ in odd]
            for client, wire in zip(clients, odd, strict=True):
                client.send(wire)
            await asyncio.sleep(0.002)  # some have been answered by now, some are under way
            for client in clients:
                client.close()
        for engine in site.engines.values():
            engine.seen.clear()
        await nothing_left(site)

    async def check(site: Site) -> None:
        grown_bytes = [1 << 30]
        while grown_bytes[-1] >= 4 * 1024 * 1024 and len(grown_bytes) < 5:  # what is kept would be kept each time
            await rounds(site, 40)
            before = resident_bytes()
            await rounds(site, 120)
            grown_bytes.append(resident_bytes() - before)
        assert grown_bytes[-1] < 4 * 1024 * 1024, grown_bytes
        assert await ask(site, VALID) == 200

    run(check)
