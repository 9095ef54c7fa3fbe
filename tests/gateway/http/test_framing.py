"""Chunked bodies are passed on chunk by whole chunk, however the bytes arrive."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.gateway.http.framing import LAST_CHUNK, ChunkedBody, FramingError, chunk, payload

bodies = st.lists(st.binary(min_size=1, max_size=300), max_size=12)


@given(bodies, st.lists(st.integers(0, 2000), max_size=10), st.sampled_from([b"", b"x-trailer: 1\r\n"]))
def test_any_split_gives_the_same_bytes_and_whole_chunks(pieces: list[bytes], cuts: list[int], trailer: bytes) -> None:
    wire = b"".join(chunk(piece) for piece in pieces) + b"0\r\n" + trailer + b"\r\n"
    passed = b"".join(chunk(piece) for piece in pieces) + LAST_CHUNK
    ends = {sum(len(chunk(piece)) for piece in pieces[:count]) for count in range(len(pieces) + 1)} | {len(passed)}
    body = ChunkedBody()
    out = b""
    at = sorted({0, len(wire), *(cut % len(wire) for cut in cuts)})
    for start, stop in itertools.pairwise(at):
        out += body.feed(wire[start:stop])
        assert len(out) in ends
    assert body.ended
    assert not body.surplus
    assert out == passed
    assert body.chunks == len(pieces)
    assert payload(out) == b"".join(pieces)


def test_bytes_after_the_end_are_not_passed_on() -> None:
    body = ChunkedBody()
    assert body.feed(b"1\r\na\r\n0\r\n\r\nHTTP/1.1 200") == b"1\r\na\r\n0\r\n\r\n"
    assert body.surplus
    later = ChunkedBody()
    later.feed(b"0\r\n\r\n")
    assert later.feed(b"x") == b""
    assert later.surplus


def test_chunk_extensions_are_not_passed_on() -> None:
    assert ChunkedBody().feed(b"1;a=b\r\nx\r\n1\r\ny\r\n") == b"1\r\nx\r\n1\r\ny\r\n"
    assert ChunkedBody().feed(b"1 \t\r\nx\r\n0;a\r\nb: c\r\n\r\n") == b"1\r\nx\r\n0\r\n\r\n"
    assert payload(b"1;a=b\r\nx\r\n") == b"x"


@pytest.mark.parametrize(
    "wire", [b"+1\r\na\r\n", b"0x1\r\na\r\n", b"1_0\r\n", b"\r\n", b"1\r\nabc", b"f" * 20 + b"\r\n", b"1" * 400]
)
def test_bad_framing_is_noticed(wire: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkedBody().feed(wire)


@given(st.binary(max_size=100))
def test_any_bytes_are_framed_or_refused(wire: bytes) -> None:
    body = ChunkedBody()
    with contextlib.suppress(FramingError):
        out = body.feed(wire)
        assert payload(out) in wire
        assert b";" not in out.partition(b"\r\n")[0]
