"""Streams, byte by byte."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.replay.outcome import Outcome
from fulcrum.replay.transcript import Transcript

CHAT = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\r\n\r\n'
    b": a comment\r\n\r\n"
    b'data: {"choices":[{"delta":{"content":"Par"},"finish_reason":null}]}\r\n\r\n'
    b'data: {"choices":[{"delta":{"content":"is"},"finish_reason":"stop"}]}\r\n\r\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\r\n\r\n'
    b"data: [DONE]\r\n\r\n"
)


def read(stream: bytes, cuts: list[int]) -> Transcript:
    transcript = Transcript()
    edges = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        transcript.feed(stream[start:end], float(number + 1))
    return transcript


@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_cuts_in_the_stream_change_nothing(cuts: list[int]) -> None:
    transcript = read(CHAT, cuts)
    assert transcript.verdict(3) == (Outcome.OK, "")
    assert transcript.text == "Paris"
    assert transcript.output_tokens == 3


@given(end=st.integers(0, len(CHAT) - len(b"]\r\n\r\n")))
def test_a_stream_that_ends_early_is_lost(end: int) -> None:
    transcript = Transcript()
    transcript.feed(CHAT[:end], 1.0)
    assert transcript.verdict(None)[0] is Outcome.LOST


def test_the_role_alone_is_no_token() -> None:
    transcript = Transcript()
    transcript.feed(CHAT[: CHAT.index(b": a comment")], 1.0)
    assert transcript.first_token_seconds is None


@pytest.mark.parametrize(
    ("stream", "outcome"),
    [
        (b'data: {"error":{"message":"worker gone"}}\n\n', Outcome.FAILED),
        # An error after tokens is clean too: the client knows that the answer is not whole.
        (b'data: {"choices":[{"text":"a"}]}\n\ndata: {"error":{}}\n\ndata: [DONE]\n\n', Outcome.FAILED),
        (b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\n', Outcome.LOST),
        (b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n', Outcome.OK),
        (b'data: {"choices":"none"}\n\ndata: [DONE]\n\n', Outcome.LOST),
        (b"", Outcome.LOST),
    ],
)
def test_verdict(stream: bytes, outcome: Outcome) -> None:
    transcript = Transcript()
    transcript.feed(stream, 1.0)
    assert transcript.verdict(None)[0] is outcome
