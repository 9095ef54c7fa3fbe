"""BurstGPT traces (CSV): Timestamp (seconds), Model, Request tokens, Response tokens and more columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from fulcrum.simulation.traffic.trace import Request, TraceError, positive_int

FIELDS = ("Timestamp", "Request tokens", "Response tokens")


def read(path: Path) -> Iterator[Request]:
    """Requests in file order, those that failed (0 response tokens) left out. Raises TraceError."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = next(rows, None) or []
        missing = [field for field in FIELDS if field not in header]
        if missing:
            raise TraceError(path, 1, missing[0], f"no such column; expected {','.join(FIELDS)}")
        timestamp_at, prompt_at, output_at = (header.index(field) for field in FIELDS)
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise TraceError(path, rows.line_num, "line", f"expected {len(header)} columns, got {len(row)}")
            if row[output_at].strip() in ("0", "0.0"):
                continue
            yield Request(
                arrival_seconds=_seconds(path, rows.line_num, row[timestamp_at]),
                prompt_tokens=positive_int(path, rows.line_num, "Request tokens", row[prompt_at]),
                output_tokens=positive_int(path, rows.line_num, "Response tokens", row[output_at]),
            )


def _seconds(path: Path, line: int, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise TraceError(path, line, "Timestamp", f"expected seconds of at least 0, got {text!r}")
    return seconds
