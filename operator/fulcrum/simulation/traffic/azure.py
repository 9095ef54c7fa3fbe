"""Azure LLM inference traces (CSV, 2023 and 2024): TIMESTAMP, ContextTokens, GeneratedTokens."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fulcrum.simulation.traffic.trace import Request, TraceError, positive_int

_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(path: Path) -> Iterator[Request]:
    """Requests in file order; `arrival_seconds` counts from the file's first line. Raises TraceError."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = next(rows, None)
        missing = [field for field in _FIELDS if field not in (header or ())]
        if missing or header is None:
            raise TraceError(path, 1, missing[0], f"no such column; expected {','.join(_FIELDS)}")
        timestamp_at, prompt_at, output_at = (header.index(field) for field in _FIELDS)
        first: datetime | None = None
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise TraceError(path, rows.line_num, "line", f"expected {len(header)} columns, got {len(row)}")
            timestamp = _timestamp(path, rows.line_num, row[timestamp_at])
            first = first or timestamp
            if (timestamp.tzinfo is None) != (first.tzinfo is None):
                raise TraceError(path, rows.line_num, "TIMESTAMP", "has a time zone where others have none")
            yield Request(
                arrival_seconds=(timestamp - first).total_seconds(),
                prompt_tokens=positive_int(path, rows.line_num, "ContextTokens", row[prompt_at]),
                output_tokens=positive_int(path, rows.line_num, "GeneratedTokens", row[output_at]),
            )


def _timestamp(path: Path, line: int, text: str) -> datetime:
    """`2023-11-16 18:15:46.6805900`, with any number of fraction digits and an optional zone."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(path, line, "TIMESTAMP", f"no time like 2023-11-16 18:15:46.68: {text!r}") from None
