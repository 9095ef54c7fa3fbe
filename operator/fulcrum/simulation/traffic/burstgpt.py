"""BurstGPT traces (CSV): Timestamp (seconds), Model, Request tokens, Response tokens and more columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from fulcrum.simulation.traffic.lines import table
from fulcrum.simulation.traffic.trace import Request, Span, TraceError, positive_int

FIELDS = ("Timestamp", "Request tokens", "Response tokens")


def read(path: Path) -> Iterator[Request]:
    """Requests in file order, those that failed (0 response tokens) left out. Raises TraceError."""
    span = Span(path, "Timestamp")
    for line, (timestamp, prompt, output) in table(path, FIELDS):
        if output in ("0", "0.0"):
            continue
        yield Request(
            arrival_seconds=span.checked(line, _seconds(path, line, timestamp)),
            prompt_tokens=positive_int(path, line, "Request tokens", prompt),
            output_tokens=positive_int(path, line, "Response tokens", output),
        )


def _seconds(path: Path, line: int, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise TraceError(path, line, "Timestamp", f"expected seconds of at least 0, got {text!r}")
    return seconds
