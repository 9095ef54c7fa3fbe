"""A streamed completion (server-sent events), read as it arrives."""

from __future__ import annotations

from typing import Any

import msgspec

from fulcrum.replay.outcome import Outcome


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


class Transcript:
    """One stream of `/v1/completions` or `/v1/chat/completions`: `feed` it bytes, then ask for the `verdict`."""

    def __init__(self) -> None:
        self.first_token_seconds: float | None = None
        self.last_token_seconds: float | None = None
        self.path = ""
        """As in `Record`."""
        self._rest = b""
        self._text: list[str] = []
        self._chunks = 0
        self._usage_tokens: int | None = None
        self._finish_reason: str | None = None
        self._done = False
        self._error: str | None = None
        self._malformed: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def output_tokens(self) -> int:
        return self._chunks if self._usage_tokens is None else self._usage_tokens

    def feed(self, data: bytes, now_seconds: float) -> None:
        """Takes in bytes as they came off the connection at `now_seconds`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now_seconds)

    def _take(self, payload: bytes, now_seconds: float) -> None:
        if payload == b"[DONE]":
            self._done = True
            return
        try:
            event = _decoder.decode(payload)
        except msgspec.DecodeError as error:
            self._malformed = f"bad event: {error}"
            return
        if event.error is not None:
            self._error = msgspec.json.encode(event.error)[:300].decode(errors="replace")
        if event.usage is not None:
            self._usage_tokens = event.usage.completion_tokens
        for choice in event.choices:
            self._finish_reason = choice.finish_reason or self._finish_reason
            # A chat stream opens with the role alone, which is no token yet.
            piece = choice.text if choice.delta is None else choice.delta.content
            if piece or (piece is not None and choice.delta is None):
                self._text.append(piece)
                self._chunks += 1
                self.first_token_seconds = self.first_token_seconds or now_seconds
                self.last_token_seconds = now_seconds

    def verdict(self, wanted_tokens: int | None) -> tuple[Outcome, str]:
        """What a stream that has ended amounts to, and why; `wanted_tokens` None: any number will do."""
        if self._error is not None:
            return Outcome.FAILED, f"error in the stream: {self._error}"
        problem = self._malformed
        if problem is None and not self._done:
            problem = f"stream ended after {self._chunks} chunks without [DONE]"
        if problem is None and self._finish_reason is None:
            problem = "no finish reason"
        if problem is None and wanted_tokens is not None and self.output_tokens != wanted_tokens:
            problem = f"{self.output_tokens} tokens instead of {wanted_tokens}"
        return (Outcome.OK, "") if problem is None else (Outcome.LOST, problem)
