"""The rest of a stream, from another worker, in the form in which the client's stream began."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fulcrum.gateway.api_formats.events import DONE, events_of, read_event
from fulcrum.gateway.api_formats.inference_request import Usage
from fulcrum.gateway.api_formats.stream_event import Choice, Logprobs
from fulcrum.gateway.dispatch.client_stream import ClientStream
from fulcrum.gateway.dispatch.stream_ends import begins_with_failure
from fulcrum.gateway.dispatch.stream_log import StreamLog
from fulcrum.gateway.http.framing import LAST_CHUNK, chunk, payload
from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.upstream_answer import Failure, StreamSource


class Continuation:
    """Takes the stream of `/v1/completions` that goes on after the tokens in `stream_log`."""

    __slots__ = (
        "_again", "_began", "_chat", "_every_usage", "_offset", "_prompt_tokens", "_response", "_source",
        "_stream_log", "_usage",
    )  # fmt: skip

    def __init__(
        self,
        response: Response,
        stream_log: StreamLog,
        *,
        chat: bool,
        again: str,
        prompt_tokens: int,
        wants_usage: bool,
        wants_every_usage: bool,
        began: Callable[[], None],
    ) -> None:
        """`again`: text that comes first and that the client has already got."""
        self._response = response
        self._stream_log = stream_log
        self._chat = chat
        self._again = again
        self._offset = stream_log.token_chars
        self._prompt_tokens = prompt_tokens
        self._usage = wants_usage
        self._every_usage = wants_every_usage
        self._began = began
        self._source: StreamSource | None = None

    @property
    def done(self) -> bool:
        """As `StreamSink`."""
        return self._stream_log.done

    def holds(self, first_chunks: bytes) -> bool:
        """As `StreamSink`."""
        return False

    def fails_at_once(self, first_chunks: bytes) -> bool:
        """As `StreamSink`."""
        return begins_with_failure(first_chunks)

    def stream_begin(self, source: StreamSource) -> None:
        """As `StreamSink`; the client's stream has begun long ago."""
        self._source = source
        self._response.stream_goes_on(source)
        self._began()

    def stream_bytes(self, chunks: bytes) -> None:
        """As `StreamSink`: the events, each as the client's stream has them."""
        try:
            read = [event for text in events_of(payload(chunks)) if (event := read_event(text)) is not None]
        except msgspec.DecodeError:
            self._break(Failure.PROTOCOL, "the rest of the stream cannot be read")
            return
        out = []
        for event in read:
            if event.error is not None:
                self._break(Failure.ERROR_STATUS, "the engine failed in the middle of the stream")
                break
            if event.choices:
                choice = event.choices[0]
                if choice.finish_reason == "abort":
                    self._break(Failure.ERROR_STATUS, "the engine gave up the stream")
                    break
                if not self._matches(choice.text or "", last=choice.finish_reason is not None):
                    self._break(Failure.DIVERGED, "the rest of the stream does not fit")
                    self._stream_log.why_not = "another worker went on differently"
                    break
                out.append(self._chosen(choice))
        if out:
            self._response.write_events(b"".join(out))

    def stream_last(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        self.stream_bytes(chunks)
        if self._source is None or self._stream_log.why_not:
            return
        if self._stream_log.finish_reason is None:
            self._break(Failure.TRUNCATED, "the rest of the stream has no end")
        else:
            self.finish()

    def finish(self) -> None:
        """The end of the client's stream, after its last token."""
        stream_log = self._stream_log
        usage = b""
        if self._usage and not stream_log.usage_sent:
            stream_log.usage_sent = True
            usage = self._event([], usage=self._counts())
        self._response.write_end(b"" if stream_log.done else usage + DONE + b"\n\n")
        stream_log.done = True

    def finish_with(self, reason: str) -> None:
        """The end of a stream of which only its end was missing."""
        self._response.write_events(self._chosen(Choice(text="", finish_reason=reason, token_ids=[])))
        self.finish()

    def _matches(self, text: str, *, last: bool) -> bool:
        """Whether `text` is what the client has already got of it."""
        known = self._again[: len(text)]
        self._again = self._again[len(text) :]
        return text.startswith(known) and not (last and self._again)

    def _chosen(self, choice: Choice) -> bytes:
        stream_log = self._stream_log
        ids = choice.token_ids or []
        known = max(stream_log.ids_sent - len(stream_log.ids), 0)  # ids that are made again
        text = stream_log.add(ids, choice.text or "", choice.logprobs)
        stream_log.finish_reason = choice.finish_reason
        out: dict[str, object] = {"index": 0}
        if self._chat:
            out["delta"] = {"content": text}
        else:
            out["text"] = text
        out |= {"logprobs": self._logprobs(choice.logprobs, known), "finish_reason": choice.finish_reason}
        if not self._chat or choice.finish_reason is not None:
            out["stop_reason"] = choice.stop_reason
        if not self._chat:
            out["prompt_token_ids"] = None
        out["token_ids"] = ids[known:]
        return self._event([out], usage=self._counts() if self._every_usage else None)

    def _logprobs(self, made: Logprobs | None, known: int) -> dict[str, object] | None:
        """Those that the client has not yet got; their offsets count from the beginning of the whole answer."""
        if made is None:
            return None
        return {
            "text_offset": [self._offset + offset for offset in made.text_offset[known:]],
            "token_logprobs": made.token_logprobs[known:],
            "tokens": made.tokens[known:],
            "top_logprobs": made.top_logprobs[known:],
        }

    def _event(self, choices: list[dict[str, object]], *, usage: Usage | None) -> bytes:
        stream_log = self._stream_log
        event: dict[str, object] = {
            "id": stream_log.event_id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": stream_log.created,
            "model": stream_log.model,
            "choices": choices,
        }
        if usage is not None:
            event["usage"] = {
                "prompt_tokens": usage.prompt_tokens,
                "total_tokens": (usage.prompt_tokens or 0) + (usage.completion_tokens or 0),
                "completion_tokens": usage.completion_tokens,
            }
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    def _counts(self) -> Usage:
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=len(self._stream_log.ids))

    def _break(self, failure: Failure, message: str) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.fail(failure, message)


class Restart:
    """Takes a stream of the same kind, asked for again from its beginning, when the client has got no token yet.

    A chat begins with an event that says whose turn it is, and that the client has. What follows may be anything.
    """

    __slots__ = ("_began", "_started", "_stream", "_stream_log")

    def __init__(self, stream: ClientStream, stream_log: StreamLog, *, began: Callable[[], None]) -> None:
        self._stream = stream
        self._stream_log = stream_log
        self._began = began
        self._started = False

    @property
    def done(self) -> bool:
        """As `StreamSink`."""
        return self._stream.done

    def holds(self, first_chunks: bytes) -> bool:
        """As `StreamSink`."""
        return False

    def fails_at_once(self, first_chunks: bytes) -> bool:
        """As `StreamSink`."""
        return begins_with_failure(first_chunks)

    def stream_begin(self, source: StreamSource) -> None:
        """As `StreamSink`; the client's stream has begun long ago."""
        self._stream.stream_log = self._stream_log
        self._stream.response.stream_goes_on(source)
        self._began()

    def stream_bytes(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        events = self._events(chunks)
        if events:
            self._stream.stream_bytes(chunk(events))

    def stream_last(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        events = self._events(chunks)
        self._stream.stream_last((chunk(events) if events else b"") + LAST_CHUNK)

    def _events(self, chunks: bytes) -> bytes:
        events = events_of(payload(chunks))
        return b"".join(self._same(event) + b"\n\n" for event in events if not self._is_opening(event))

    def _is_opening(self, event: bytes) -> bool:
        opens = not self._started and b'"role"' in event
        self._started = True
        return opens

    def _same(self, event: bytes) -> bytes:
        stream_log = self._stream_log
        if not stream_log.event_id or not event.startswith(b"data: {"):
            return event
        try:
            fields = msgspec.json.decode(event.removeprefix(b"data: "), type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            return event
        if "error" in fields:
            return event
        own = {"id": stream_log.event_id, "created": stream_log.created, "model": stream_log.model}
        return b"data: " + msgspec.json.encode({**fields, **own})
