"""Lines of an input file: one request each, checked before the batch begins. OpenAI's form of both kinds of lines."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Raw

from fulcrum.api.batch import BatchLimits
from fulcrum.batch.objects import LineError

_MOST_ERRORS: Final = 100
"""Errors of one file that are told."""
_LONGEST_ID: Final = 512


class RequestLine(msgspec.Struct, frozen=True):
    """One request."""

    custom_id: str
    method: str
    url: str
    body: Raw


class _Body(msgspec.Struct):
    model: str
    stream: bool | None = None


_decoder: Final = msgspec.json.Decoder(RequestLine)
_body_decoder: Final = msgspec.json.Decoder(_Body)


def read_lines(file: BinaryIO, max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Numbers and text of the lines that are not blank. One that is too long is cut off at a byte more than it may."""
    number = 0
    while raw := file.readline(max_line_bytes + 1):
        number += 1
        if raw.strip():
            yield number, raw
        while len(raw) > max_line_bytes and not raw.endswith(b"\n"):
            raw = file.readline(max_line_bytes + 1)
            if not raw:
                return


def decode(raw: bytes) -> RequestLine:
    """A line that was checked."""
    return _decoder.decode(raw)


def check_file(path: Path, endpoint: str, limits: BatchLimits) -> tuple[int, tuple[LineError, ...]]:
    """How many requests a file has, and what is wrong with it. Raises OSError. Takes a second for 50,000 lines."""
    errors: list[LineError] = []
    seen: set[str] = set()
    total = 0
    with path.open("rb") as file:
        for number, raw in read_lines(file, limits.max_line_bytes):
            total += 1
            if total > limits.max_lines:
                message = f"The file has more than {limits.max_lines} requests: split it."
                return total, (LineError(code="too_many_requests", message=message),)
            error = _check(raw, number, endpoint, seen, limits.max_line_bytes)
            if error is not None:
                errors.append(error)
                if len(errors) >= _MOST_ERRORS:
                    break
    if not total:
        errors.append(
            LineError(code="empty_file", message="The file has no requests: write one JSON object on each line.")
        )
    return total, tuple(errors)


def _check(raw: bytes, number: int, endpoint: str, seen: set[str], max_line_bytes: int) -> LineError | None:
    """The first thing that is wrong with a line."""
    problem = next(_problems(raw, endpoint, seen, max_line_bytes), None)
    if problem is None:
        return None
    code, message, param = problem
    return LineError(code=code, message=message, line=number, param=param)


def _problems(raw: bytes, endpoint: str, seen: set[str], max_line_bytes: int) -> Iterator[tuple[str, str, str | None]]:
    """Code, message and field of what is wrong. What follows one of them may be wrong because of it."""
    if len(raw) > max_line_bytes:
        yield "line_too_long", f"The line is longer than {max_line_bytes} bytes, the most that the gateway takes.", None
    try:
        line = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        yield "invalid_request_line", f"Want custom_id, method, url and body: {error}.", None
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield "invalid_json_line", "The line is not valid JSON.", None
        return
    if not 0 < len(line.custom_id) <= _LONGEST_ID:
        yield "invalid_custom_id", f"Give each line a custom_id of 1 to {_LONGEST_ID} characters.", "custom_id"
    if line.custom_id in seen:
        yield "duplicate_custom_id", "An earlier line has the same custom_id: give each its own.", "custom_id"
    seen.add(line.custom_id)
    if line.method != "POST":
        yield "invalid_method", "The method must be POST.", "method"
    if line.url != endpoint:
        yield "mismatched_endpoint", f"The url must be the endpoint of the batch, {endpoint}.", "url"
    try:
        body = _body_decoder.decode(line.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield "invalid_body", f"The body must be an object with the name of a model: {error}.", "body"
        return
    if body.stream:
        yield "stream_not_allowed", "The answers of a batch are not streamed: leave `stream` out.", "body.stream"


def answered(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """A result line: the gateway's answer, as it was."""
    try:
        shown = Raw(msgspec.json.format(body, indent=-1))  # on one line
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        shown = Raw(msgspec.json.encode({"error": {"message": body[:1000].decode(errors="replace")}}))
    return _result(custom_id, {"status_code": status, "request_id": request_id, "body": shown}, None)


def unanswered(custom_id: str, code: str, message: str) -> bytes:
    """A result line of a request that has no answer."""
    return _result(custom_id, None, {"code": code, "message": message})


def _result(custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    fields = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(fields)
