"""The end of a stream is read, however much of the stream comes with it."""

from __future__ import annotations

import pytest

from fulcrum.gateway.dispatch.stream_ends import read_end
from fulcrum.gateway.http.framing import LAST_CHUNK, chunk, payload

TOKEN = b'data: {"choices":[{"index":0,"text":" a","finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}\n\n'
FAILURE = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
ABORTED = b'data: {"choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n'
DONE = b"data: [DONE]\n\n"
COUNTS = [0, 1, 20, 60, 2000]


def packed(*events: bytes, together: int) -> bytes:
    """Events in chunks of `together` events each."""
    return b"".join(chunk(b"".join(events[at : at + together])) for at in range(0, len(events), together))


@pytest.mark.parametrize("together", [1, 2, 5, 5000])
@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("hides_usage", [True, False])
@pytest.mark.parametrize("end", [b"", LAST_CHUNK])
def test_usage_is_read_and_hidden(tokens: int, together: int, hides_usage: bool, end: bytes) -> None:
    wire = packed(*[TOKEN] * tokens, USAGE, DONE, together=together) + end
    piece = read_end(wire, hides_usage=hides_usage)
    assert piece.usage is not None
    assert (piece.usage.prompt_tokens, piece.usage.completion_tokens) == (3, 7)
    assert not piece.failed
    assert payload(piece.shown) == TOKEN * tokens + (b"" if hides_usage else USAGE) + DONE
    assert piece.shown.endswith(end)


@pytest.mark.parametrize("together", [1, 2, 5, 5000])
@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("failure", [FAILURE, ABORTED])
def test_a_failure_ends_what_is_shown(tokens: int, together: int, failure: bytes) -> None:
    wire = packed(*[TOKEN] * tokens, failure, DONE, together=together)
    piece = read_end(wire, hides_usage=True)
    assert piece.failed
    assert payload(piece.shown) == TOKEN * tokens


def test_a_long_event_before_the_end_passes_as_it_is() -> None:
    long = b'data: {"choices":[{"index":0,"text":"' + b"x" * 10_000 + b'","finish_reason":"length"}]}\n\n'
    wire = packed(TOKEN, long, USAGE, DONE, together=1) + LAST_CHUNK
    piece = read_end(wire, hides_usage=True)
    assert piece.shown.startswith(packed(TOKEN, together=1))
    assert payload(piece.shown) == TOKEN + long + DONE
    assert piece.usage is not None
