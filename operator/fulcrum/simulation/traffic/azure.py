"""Azure LLM inference traces (CSV, 2023 and 2024): TIMESTAMP, ContextTokens, GeneratedTokens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fulcrum.simulation.traffic.lines import table
from fulcrum.simulation.traffic.trace import Request, Span, TraceError, positive_int

_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(path: Path) -> Iterator[Request]:
    """Requests in file order; `arrival_seconds` counts from the file's first line. Raises TraceError."""
    first: datetime | None = None
    span = Span(path, "TIMESTAMP")
    for line, (time_text, prompt, output) in table(path, _FIELDS):
        timestamp = _timestamp(path, line, time_text)
        first = first or timestamp
        if (timestamp.tzinfo is None) != (first.tzinfo is None):
            raise TraceError(path, line, "TIMESTAMP", "has a time zone where others have none")
        yield Request(
            arrival_seconds=span.checked(line, (timestamp - first).total_seconds()),
            prompt_tokens=positive_int(path, line, "ContextTokens", prompt),
            output_tokens=positive_int(path, line, "GeneratedTokens", output),
        )


def _timestamp(path: Path, line: int, text: str) -> datetime:
    """`2023-11-16 18:15:46.6805900`, with any number of fraction digits and an optional zone."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(path, line, "TIMESTAMP", f"no time like 2023-11-16 18:15:46.68: {text!r}") from None
