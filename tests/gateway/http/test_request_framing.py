"""What a client may do with the framing of its body: trailers, chunks, and requests that hide in requests."""

from __future__ import annotations

import pytest
from tests.gateway.conftest import Engine, MakeSite
from tests.machine import cost_ratio

from fulcrum.api.gateway import GatewayLimits
from fulcrum.api.names import Role
from fulcrum.gateway.errors import RequestError
from fulcrum.gateway.http.request import Request
from fulcrum.gateway.http.request_parser import RequestParser

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n"
PIECE = 64 * 1024


def parsed(wire: bytes, *, kept: frozenset[bytes] = frozenset(), piece: int = PIECE) -> list[Request | RequestError]:
    parser = RequestParser(GatewayLimits(), kept, lambda _path, _headers: None)
    for at in range(0, len(wire), piece):
        parser.feed(wire[at : at + piece])
        if parser.broken:
            break
    return parser.ready


def status_of(ready: list[Request | RequestError]) -> int:
    assert len(ready) == 1
    return ready[0].status if isinstance(ready[0], RequestError) else 200


@pytest.mark.parametrize("unit", [b"x: " + b"a" * 50 * 1024 * 1024, b"x: y\r\n" * 1_000_000], ids=["one", "many"])
def test_trailers_are_bounded_as_headers_are_and_cost_no_more_than_their_bytes(unit: bytes) -> None:
    wire = HEAD + b"\r\n2\r\n{}\r\n0\r\n" + unit + b"\r\n\r\n"
    assert status_of(parsed(wire)) == 431
    assert cost_ratio(lambda: bytes(bytearray(unit)), lambda: parsed(wire)) < 10


def test_trailers_set_no_header() -> None:
    trailers = (
        b"X-Customer-Tier: premium\r\nAuthorization: Bearer stolen\r\nX-Request-Id: mine\r\nContent-Type: text/x\r\n"
    )
    (request,) = parsed(
        HEAD + b"X-Customer-Tier: free\r\n\r\n2\r\n{}\r\n0\r\n" + trailers + b"\r\n",
        kept=frozenset((b"x-customer-tier", b"authorization")),
    )
    assert isinstance(request, Request)
    assert request.headers == {"x-customer-tier": "free"}
    assert request.content_type == b""
    assert request.request_id != b"mine"
    assert request.body == b"{}"


@pytest.mark.parametrize("name", [b"Host", b"Transfer-Encoding", b"Content-Length", b"Expect", b"Content-Encoding"])
def test_a_trailer_says_nothing_about_the_message(name: bytes) -> None:
    ready = parsed(HEAD + b"\r\n2\r\n{}\r\n0\r\n" + name + b": other\r\n\r\n")
    assert status_of(ready) in (200, 400)
    assert all(isinstance(each, RequestError) or each.body == b"{}" for each in ready)


@pytest.mark.parametrize(
    "chunk", [b"1\r\nx\r\n", b"2;e=" + b"a" * 1000 + b"\r\nxx\r\n", b"0000000000000002\r\nxx\r\n"],
    ids=["one byte", "extensions", "zeros"],
)  # fmt: skip
def test_a_body_of_more_framing_than_content_is_refused(chunk: bytes) -> None:
    assert status_of(parsed(HEAD + b"\r\n" + chunk * (2 * 1024 * 1024 // len(chunk)) + b"0\r\n\r\n")) == 431


def test_a_chunked_body_of_small_chunks_is_read_whole_and_takes_its_own_size() -> None:
    text = b"abcdefgh" * 100_000
    wire = b"".join(b"8\r\n%b\r\n" % text[at : at + 8] for at in range(0, len(text), 8))
    (request,) = parsed(HEAD + b"\r\n" + wire + b"0\r\n\r\n", piece=1000)
    assert isinstance(request, Request)
    assert request.body == text


SMUGGLED = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\n"
HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n"
CORPUS = {
    "length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}" + HIDDEN,
    "a list of lengths": b"Content-Length: 2, 2\r\n\r\n{}" + HIDDEN,
    "a signed length": b"Content-Length: +2\r\n\r\n{}" + HIDDEN,
    "a negative length": b"Content-Length: -2\r\n\r\n{}" + HIDDEN,
    "a hexadecimal length": b"Content-Length: 0x2\r\n\r\n{}" + HIDDEN,
    "blank before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "folded coding": b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + HIDDEN,
    "coding that is not chunked": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked and identity": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunk size with sign": b"Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk size with prefix": b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk size too large": b"Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk without its end": b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n" + HIDDEN,
    "chunk line ended by LF": b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n" + HIDDEN,
    "NUL in a header": b"X-A: a\x00b\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "lonely CR in a header": b"X-A: a\rContent-Length: 40\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
}


@pytest.mark.parametrize("case", CORPUS)
@pytest.mark.parametrize("piece", [1, 1 << 16])
def test_no_request_hides_in_another(case: str, piece: int) -> None:
    ready = parsed(SMUGGLED + CORPUS[case], piece=piece)
    assert ready, "refused, not waited for"
    assert isinstance(ready[-1], RequestError)
    assert not any(isinstance(each, Request) and each.target == b"/v1/models" for each in ready)


async def test_a_key_in_a_trailer_opens_nothing(make_site: MakeSite, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "key").write_text("sk-0123456789")
    site = await make_site(Engine("m", Role.MIXED), config={"api_keys_directory": str(tmp_path)})
    client = await site.connect()
    client.send(HEAD + b'\r\n11\r\n{"prompt":"hell"}\r\n0\r\nAuthorization: Bearer sk-0123456789\r\n\r\n')
    assert (await client.answer()).status == 401
