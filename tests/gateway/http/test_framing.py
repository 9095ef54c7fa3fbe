"""Chunked bodies are passed on chunk by whole chunk, however the bytes arrive."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.gateway.http.framing import EVENT_END, LAST_CHUNK, ChunkedBody, FramingError, chunk, payload

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


event_chunks = st.one_of(
    st.binary(max_size=60).map(lambda body: body + b"\n\n"),
    st.integers(1950, 2150).map(lambda size: b"x" * size + b"\n\n"),
    st.sampled_from([b"a\n\n\r\nb\n\n", b"a\n\n\r\n3\r\nb\n\n", b"\n\n", b"\n", b"a\n", b"half of an event"]),
)
size_lines = st.sampled_from([b"%x\r\n", b"%X\r\n", b"0%x\r\n", b"%x;a=b\r\n"])


@given(st.lists(st.tuples(size_lines, event_chunks), max_size=20), st.lists(st.integers(0, 4000), max_size=10))
def test_events_are_framed_like_any_bytes(chunks: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    """Chunks of whole events are found faster; it must show in nothing, and where they end must be known."""
    wire = b"".join(line % len(body) + body + b"\r\n" for line, body in chunks) + LAST_CHUNK
    body = ChunkedBody()
    out = b""
    passed = 0
    at = sorted({0, len(wire), *(cut % len(wire) for cut in cuts)})
    for start, stop in itertools.pairwise(at):
        fed = body.feed(wire[start:stop])
        new = [each for _, each in chunks[passed : body.chunks]]
        assert payload(fed) == b"".join(new)
        if fed and not body.cut:
            assert fed.removesuffix(LAST_CHUNK).count(EVENT_END) == len(new), "it ends chunks, and stands nowhere else"
        passed = body.chunks
        out += fed
    assert body.ended
    assert not body.surplus
    assert passed == len(chunks)
    assert payload(out) == b"".join(each for _, each in chunks)
    assert b";" not in out or any(b";" in each for _, each in chunks)


@pytest.mark.parametrize(
    "wire",
    [
        b"9\r\ndata: x\n\n\r\n8\r\ndata: x\n\n\r\n",
        b"9\r\ndata: x\n\n\r\na\r\ndata: x\n\n\r\n0\r\n\r\n",
    ],
    ids=["a size too small", "a size too large"],
)
def test_a_false_size_among_events_is_noticed(wire: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkedBody().feed(wire)


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
