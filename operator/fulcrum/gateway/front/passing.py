"""An answer of a cluster's gateway on its way to the client, byte for byte. Compiled (hatch_build.py)."""

from __future__ import annotations

import re
from typing import Final

from fulcrum.gateway.http.response import Response
from fulcrum.gateway.http.upstream_answer import Answer, StreamSource

_PASSED: Final = re.compile(rb"\r\n((?:x-fulcrum-|retry-after|www-authenticate:|allow:)[^\r\n]*)", re.IGNORECASE)
"""Headers of an answer that a client is to read, beside those of its framing."""
_WAIT: Final = re.compile(rb"\r\nretry-after(-ms)?:[ \t]*([0-9]{1,9})[ \t]*(?=\r\n|$)", re.IGNORECASE)
_ERROR: Final = re.compile(rb'(?:^|\n)(?:data: \{"error"|event: error\n)')
"""An error event of OpenAI's older APIs, or of a stream of named events."""
_END_BYTES: Final = 4096
"""Bytes at the end of a stream in which an error event of the cluster is looked for."""


def passed_lines(head: bytes) -> bytes:
    """Header lines of an answer for the client, each ended by CRLF."""
    return b"".join([line + b"\r\n" for line in _PASSED.findall(head)])


def wait_seconds(answer: Answer) -> float | None:
    """When an answer says to come again; None: it does not."""
    waits = [float(number) / (1000 if millis else 1) for millis, number in _WAIT.findall(answer.head)]
    return min(waits) if waits else None


class Passing:
    """Takes a stream (`StreamSink`)."""

    __slots__ = ("_end", "_response", "cluster_line")

    def __init__(self, response: Response, cluster_line: bytes) -> None:
        self._response = response
        self._end = b""
        self.cluster_line = cluster_line
        """Header line that names the cluster."""

    @property
    def done(self) -> bool:
        """As `StreamSink`."""
        return self._response.done

    @property
    def told_error(self) -> bool:
        """The client has read from the cluster itself why its stream ends."""
        return _ERROR.search(self._end[-_END_BYTES:]) is not None

    def holds(self, first_chunks: bytes) -> bool:
        """As `StreamSink`: the cluster has held back what is to be held back."""
        return False

    def fails_at_once(self, first_chunks: bytes) -> bool:
        """As `StreamSink`: the cluster has tried its other workers already."""
        return False

    def stream_begin(self, source: StreamSource) -> None:
        """As `StreamSink`."""
        self._response.path_headers = self.cluster_line + passed_lines(source.head)
        self._response.stream_begin(source)

    def stream_bytes(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        self._end = chunks
        self._response.write_chunks(chunks)

    def stream_last(self, chunks: bytes) -> None:
        """As `StreamSink`."""
        self._response.done = self._response.ended = True
        self._response.write_chunks(chunks)
