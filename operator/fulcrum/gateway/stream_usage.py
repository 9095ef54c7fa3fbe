"""Token counts from the end of a stream whose client asked for them (`stream_options.include_usage`)."""

from __future__ import annotations

from collections import deque
from typing import Final

from fulcrum.gateway.answer import StreamSink, StreamSource
from fulcrum.gateway.body import read_answer
from fulcrum.gateway.framing import payload
from fulcrum.gateway.job import Job, Usage

_LAST_PIECES: Final = 4
"""Usage, `[DONE]` and the last chunk may arrive together or one by one."""


class UsageTail:
    """Passes a stream on and keeps its last pieces."""

    __slots__ = ("_pieces", "_sink")

    def __init__(self, sink: StreamSink) -> None:
        self._sink = sink
        self._pieces: deque[bytes] = deque(maxlen=_LAST_PIECES)

    def stream_begin(self, source: StreamSource) -> None:
        """As `StreamSink`."""
        self._sink.stream_begin(source)

    def stream_bytes(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        self._pieces.append(chunks)
        self._sink.stream_bytes(chunks)

    def stream_last(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        self._pieces.append(chunks)
        self._sink.stream_last(chunks)

    def usage(self) -> Usage | None:
        """Usage of the stream that has passed; None when its last events carry none."""
        for line in reversed(payload(b"".join(self._pieces)).split(b"\n")):
            if line.startswith(b"data: {"):
                answer = read_answer(line.removeprefix(b"data: "))
                if answer is not None and answer.usage is not None:
                    return answer.usage
        return None


def asks_for_usage(job: Job) -> bool:
    """Whether the engine will close this stream with its usage."""
    options = job.fields.get("stream_options")
    return options is not None and b'"include_usage"' in (raw := bytes(options)) and b"true" in raw
