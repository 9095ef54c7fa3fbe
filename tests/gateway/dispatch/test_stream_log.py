"""What is kept of a stream, and what is read out of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fulcrum.gateway.dispatch import stream_log as stream_log_module
from fulcrum.gateway.dispatch.continuation import Continuation
from fulcrum.gateway.dispatch.stream_ends import read_end
from fulcrum.gateway.dispatch.stream_log import StreamLog, StreamLogBudget, without_prompt_ids
from fulcrum.gateway.http.framing import chunk, payload

DONE = chunk(b"data: [DONE]\n\n")
LAST = b"0\r\n\r\n"


def event(**fields: Any) -> bytes:
    base = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "m"}
    return chunk(b"data: " + json.dumps({**base, **fields}, separators=(",", ":")).encode() + b"\n\n")


def token(text: str, *ids: int, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": None, "token_ids": list(ids), **more}])


def kept(*pieces: bytes) -> StreamLog:
    sent = StreamLog(StreamLogBudget())
    sent.pieces = list(pieces)
    sent.read()
    return sent


def test_tokens_and_text_are_read() -> None:
    sent = kept(token("a", 1), token("", 2) + token(" bc", 3, 4), chunk(b": still here\n\n"))
    assert (list(sent.ids), sent.chars, sent.tail(0), sent.tail(1)) == ([1, 2, 3, 4], 4, "a bc", " bc")
    assert list(sent.marks) == [(0, 0, 1, 0), (1, 1, 1, 0), (2, 1, 1, 0), (4, 4, 2, 0)]
    assert (sent.event_id, sent.created, sent.model) == ("cmpl-1", 5, "m")
    assert (sent.finish_reason, sent.done, sent.why_not) == (None, False, "")


def test_the_end_is_read() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    sent = kept(token("a", 1, finish_reason="length"), event(choices=[], usage=usage), DONE + LAST)
    assert (sent.finish_reason, sent.usage_sent, sent.done) == ("length", True, True)
    assert sent.usage is not None
    assert sent.usage.prompt_tokens == 3


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (event(choices=[{"index": 0, "delta": {"reasoning": "hm"}, "token_ids": [1]}]), "more in it"),
        (event(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "token_ids": [1]}]), "more in it"),
        (event(choices=[{"index": 1, "text": "x", "token_ids": [1]}]), "several parts"),
        (event(choices=[{"index": 0, "text": "x", "token_ids": None}]), "does not tell"),
        (chunk(b"data: {nonsense}\n\n"), "cannot be read"),
        (chunk(b"data: {"), "cuts events"),
    ],
)
def test_what_cannot_be_resumed_says_why(piece: bytes, why: str) -> None:
    assert why in kept(piece).why_not


def test_too_long_a_stream_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_log_module, "MAX_TOKENS", 3)
    assert kept(token("ab", 1, 2)).why_not == ""
    assert "too long" in kept(token("abcd", 1, 2, 3, 4)).why_not


def test_memory_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_log_module, "TOTAL_BYTES", 10 * stream_log_module.ROOM_BYTES)
    budget = StreamLogBudget()
    streams = [StreamLog(budget) for _ in range(5)]
    assert budget.room_bytes() == stream_log_module.ROOM_BYTES
    streams += [StreamLog(budget) for _ in range(15)]
    assert budget.room_bytes() == stream_log_module.ROOM_BYTES // 2
    streams += [StreamLog(budget) for _ in range(1000)]
    assert budget.room_bytes() == stream_log_module.LEAST_ROOM_BYTES
    for stream in streams:
        stream.close()
    assert budget.open == 0


def test_a_full_stream_becomes_tokens() -> None:
    sent = StreamLog(StreamLogBudget())
    most = 0
    for number in range(5000):
        piece = token("x", number)
        sent.room -= len(piece)
        if sent.room < 0:
            piece = sent.make_room(piece)
        sent.pieces.append(piece)
        most = max(most, sum(map(len, sent.pieces)))
    assert most <= stream_log_module.ROOM_BYTES + 1000
    sent.read()
    assert list(sent.ids) == list(range(5000))
    assert sent.chars == 5000
    assert sent.tail(4990) == "x" * 10
    assert sent.tail(0) is None  # that was long ago


def test_the_prompts_ids_are_taken_out_of_the_first_chunk_only() -> None:
    first = event(choices=[{"index": 0, "text": "]", "prompt_token_ids": [1, 2], "token_ids": [3]}])
    rest = token("a", 1) + DONE + LAST
    without = without_prompt_ids(first + rest)
    assert without.endswith(rest)
    (choice,) = json.loads(payload(without).split(b"\n\n")[0][6:])["choices"]
    assert choice == {"index": 0, "text": "]", "prompt_token_ids": None, "token_ids": [3]}
    for piece in (rest, event(choices=[], prompt_token_ids=None), chunk(b": x\n\n"), LAST):
        assert without_prompt_ids(piece) == piece


def good_part(chunks: bytes) -> bytes | None:
    piece = read_end(chunks, hides_usage=False)
    assert piece.failed or piece.shown is chunks
    return payload(piece.shown) if piece.failed else None


def test_errors_are_seen() -> None:
    error = chunk(b'data: {"error":{"message":"x","code":500}}\n\n')
    quoted = token('data: {"error":{"message":"x","code":500}}', 1)
    assert good_part(error) == b""
    assert good_part(quoted) is None
    assert good_part(LAST) is None
    assert good_part(token("a", 1) + error) == payload(token("a", 1)), "joined with a token, and not at the end"
    assert good_part(token("a", 1) + quoted + DONE + LAST) is None
    assert good_part(token("a", 1) + error + DONE + LAST) == payload(token("a", 1))
    assert good_part(error + DONE + LAST) == b""
    refused = chunk(b'data: {"error":{"message":"x","code":400}}\n\n')
    assert good_part(token("a", 1) + refused + DONE + LAST) is None
    aborted = token("", finish_reason="abort")
    assert good_part(token("a", 1) + aborted + DONE + LAST) == payload(token("a", 1))


class Written:
    """What a continuation writes."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def write_events(self, events: bytes) -> None:
        self.events += [json.loads(each.removeprefix(b"data: ")) for each in events.split(b"\n\n") if each]


def test_ids_that_are_made_again_do_not_reach_the_client_twice() -> None:
    sent = kept(token("a", 1), token("bcd", 2, 3, 4))
    sent.rewind(1, 1)
    written = Written()
    rest = Continuation(
        written,  # type: ignore[arg-type]  (all of a reply that is used here)
        sent, chat=False, again="bcd", prompt_tokens=1, wants_usage=False, wants_every_usage=False,
        began=lambda: None,
    )  # fmt: skip
    rest.stream_bytes(token("bc", 2, 3) + token("de", 4, 5) + token("f", 6))
    made = [(each["choices"][0]["text"], each["choices"][0]["token_ids"]) for each in written.events]
    assert made == [("", []), ("e", [5]), ("f", [6])]
    assert list(sent.ids) == [1, 2, 3, 4, 5, 6]
