"""What a client was sent of its stream: enough to go on with it on another worker.

While the stream runs, its raw pieces are only kept (a reference to bytes that exist anyway). They are read when the
worker is lost, or when a stream has filled its room: then they become token ids, four bytes each.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final

import msgspec

from fulcrum.gateway.api_formats.events import DONE, read_event
from fulcrum.gateway.api_formats.inference_request import Usage
from fulcrum.gateway.api_formats.stream_event import Event, Logprobs
from fulcrum.gateway.http.framing import chunk, payload

ROOM_BYTES: Final = 64 * 1024
"""Raw bytes that one stream keeps before they are read."""
LEAST_ROOM_BYTES: Final = 8 * 1024
TOTAL_BYTES: Final = 64 * 1024 * 1024
"""Raw bytes that all streams together keep, as far as that leaves each its least room."""
MAX_TOKENS: Final = 256 * 1024
"""A longer stream is not kept any more and cannot be resumed."""
_KEPT_MARKS: Final = 512
_PROMPT_IDS: Final = b'"prompt_token_ids":['


class StreamLogBudget:
    """Shares out the memory for raw pieces among the streams that are open."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = 0

    def room_bytes(self) -> int:
        """Room of one stream now."""
        return max(LEAST_ROOM_BYTES, min(ROOM_BYTES, TOTAL_BYTES // max(self.open, 1)))


class StreamLog:
    """The stream of one client, from all workers that made a part of it.

    Positions are characters of the answer's text. Text may lag behind tokens: the engine holds back as many characters
    as a stop string could still need (`held_back`), and incomplete UTF-8.
    """

    __slots__ = (
        "_budget", "_cum", "_first", "_origin", "_texts", "_texts_from", "chars", "created", "done", "event_id",
        "finish_reason", "held_back", "hides_prompt", "ids", "ids_sent", "logprobs", "marks", "model", "pieces", "room",
        "token_chars", "usage", "usage_sent", "why_not",
    )  # fmt: skip

    def __init__(self, budget: StreamLogBudget, *, held_back: int = 0, hides_prompt: bool = True) -> None:
        budget.open += 1
        self._budget = budget
        self.pieces: list[bytes] = []
        self.room = 0
        """Bytes that may be kept before `make_room` must be called; none, so that the first piece calls it."""
        self.held_back = held_back
        self.hides_prompt = hides_prompt
        """The client did not ask for the prompt's token ids, which the first event carries."""
        self._first = True
        self._origin = 0
        self._cum = 0
        self._texts: deque[str] = deque()
        self._texts_from = 0
        self.ids = array("i")
        """Tokens of the answer so far."""
        self.ids_sent = 0
        """Of the tokens that are made again: how many ids the client had before."""
        self.marks: deque[tuple[int, int, int, int]] = deque([(0, 0, 1, 0)], maxlen=_KEPT_MARKS)
        """(tokens, characters that they are, tokens of the event, `token_chars`) after each event; the last ones."""
        self.chars = 0
        """Characters that the client was sent."""
        self.logprobs = False
        """The client was sent log probabilities of its tokens."""
        self.token_chars = 0
        """Characters of the tokens' own texts in log probabilities, by which these count their offsets."""
        self.event_id = self.model = ""
        self.created = 0
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.usage_sent = False
        """The client was sent the event that closes a stream with its usage."""
        self.done = False
        """The client was sent the end mark."""
        self.why_not = ""
        """Why the stream cannot be resumed, whatever happens; empty: it can."""

    def make_room(self, chunks: bytes) -> bytes:
        """Called with a piece for which there is no room; hands back the piece as the client shall see it."""
        if self._first:
            self._first = False
            if self.hides_prompt:
                chunks = without_prompt_ids(chunks)
        else:
            self.read()
        self.room = self._budget.room_bytes() if not self.why_not else 1 << 62
        return chunks

    def close(self) -> None:
        """The stream is over."""
        self._budget.open -= 1
        self.pieces = []

    def read(self) -> None:
        """Turn raw pieces into what they mean."""
        pieces, self.pieces = self.pieces, []
        if self.why_not:
            return
        if not pieces:
            return
        body = payload(b"".join(pieces))
        if body and not body.endswith(b"\n\n"):
            self.why_not = "the worker cuts events into pieces"
            return
        try:
            for event in body.split(b"\n\n"):
                if (read := read_event(event)) is not None:
                    self._note(read)
                elif event == DONE:
                    self.done = True
        except msgspec.DecodeError:
            self.why_not = "the worker's events cannot be read"

    def _note(self, event: Event) -> None:
        if not self.event_id:
            self.event_id, self.created, self.model = event.id, event.created, event.model
        choices = event.choices
        if event.usage is not None:
            self.usage = event.usage
            self.usage_sent = not choices
        for choice in choices:
            delta = choice.delta
            if delta is None:
                text = choice.text or ""
            else:
                text = delta.content or ""
                if delta.reasoning is not None or delta.tool_calls is not None:
                    self.why_not = "it has more in it than text"
            if choice.index:
                self.why_not = "it comes in several parts"
            elif choice.token_ids is not None:
                self.add(choice.token_ids, text, choice.logprobs)
            elif text:
                self.why_not = "the worker does not tell its tokens"
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason

    def add(self, ids: list[int], text: str, logprobs: Logprobs | None) -> str:
        """The worker made `ids` and gave out `text`; what of it the client has not yet got."""
        if logprobs is not None:
            self.logprobs = True
            for token in logprobs.tokens:
                self.token_chars += len(token)
        made = self.ids
        made.extend(ids)
        length = len(text)
        self._cum += length
        end = self._origin + self._cum
        # Characters that the tokens are, unless so few that the engine gives none out yet.
        if self._cum or not self.held_back:
            self.marks.append((len(made), end + self.held_back, len(ids), self.token_chars))
        if len(made) > MAX_TOKENS:
            self.why_not = "it is too long"
        fresh = end - self.chars
        if fresh <= 0:
            return ""
        self.chars = end
        if fresh < length:
            text = text[length - fresh :]
        texts = self._texts
        texts.append(text)
        if len(texts) > _KEPT_MARKS:
            self._texts_from += len(texts.popleft())
        return text

    def tail(self, start: int) -> str | None:
        """The text that the client was sent from `start` on; None when that was long ago."""
        if start < self._texts_from:
            return None
        return "".join(self._texts)[start - self._texts_from :]

    def rewind(self, tokens: int, chars: int) -> None:
        """Another worker begins after `tokens` tokens, which are `chars` characters."""
        self.ids_sent = max(self.ids_sent, len(self.ids))
        del self.ids[tokens:]
        kept = [mark for mark in self.marks if mark[0] <= tokens and mark[1] <= chars]
        self.marks = deque(kept or [(tokens, chars, 1, self.token_chars)], maxlen=_KEPT_MARKS)
        self.token_chars = self.marks[-1][3]
        self._origin = chars
        self._cum = 0


def without_prompt_ids(chunks: bytes) -> bytes:
    """The first piece of a stream without the prompt's token ids, which the client did not ask for."""
    # The first event has them, which is the first chunk.
    begin = chunks.index(b"\r\n") + 2
    end = begin + int(chunks[: begin - 2].partition(b";")[0], 16)
    start = chunks.find(_PROMPT_IDS, begin, end)
    if start < 0:
        return chunks
    close = chunks.find(b"]", start, end)
    if close < 0:
        return chunks
    return chunk(chunks[begin : start + len(_PROMPT_IDS) - 1] + b"null" + chunks[close + 1 : end]) + chunks[end + 2 :]
