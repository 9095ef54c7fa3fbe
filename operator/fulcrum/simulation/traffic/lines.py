"""Lines and table rows of a trace file, whichever program saved it."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from fulcrum.simulation.traffic.trace import TraceError

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""What spreadsheets put before a text, and what it says of the encoding. Without a mark it is UTF-8."""


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text, their ends as they are. Raises TraceError for what is no UTF-8 and has no mark."""
    with _opened(path) as file:
        try:
            yield from file
        except UnicodeError:
            raise _undecodable(path, file.encoding) from None


def table(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, values of `fields`) of each row of a CSV file with a header. Raises TraceError."""
    rows = csv.reader(lines_of(path), skipinitialspace=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        missing = [field for field in fields if field not in header]
        if missing:
            raise TraceError(path, 1, missing[0], f"no such column; expected {','.join(fields)}, with commas between")
        places = [header.index(field) for field in fields]
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise TraceError(path, rows.line_num, "line", f"expected {len(header)} columns, got {len(row)}")
            yield rows.line_num, [row[place].strip() for place in places]
    except csv.Error as error:
        raise TraceError(path, rows.line_num, "line", f"is no CSV: {error}") from None


def header_of(path: Path) -> list[str]:
    """Return the names of a CSV file's columns. Raises TraceError."""
    try:
        return [name.strip() for name in next(csv.reader(lines_of(path), skipinitialspace=True), [])]
    except csv.Error as error:
        raise TraceError(path, 1, "line", f"is no CSV: {error}") from None


def _opened(path: Path) -> TextIO:
    with path.open("rb") as file:
        begin = file.read(4)
    encoding = next((encoding for mark, encoding in _MARKS if begin.startswith(mark)), "utf-8")
    return path.open(newline="", encoding=encoding)


def _undecodable(path: Path, encoding: str) -> TraceError:
    content, line = path.read_bytes(), 1
    try:
        content.decode(encoding)
    except UnicodeDecodeError as error:
        line += content[: error.start].count(b"\n")
    return TraceError(path, line, "encoding", f"is no {encoding.removesuffix('-sig').upper()} text; save it as UTF-8")
