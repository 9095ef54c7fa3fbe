"""Errors as clients of each API read them.

OpenAI: `{"error": {"message", "type", "param", "code"}}`. A stream of `/v1/responses` has an event
`error` instead.
Anthropic: `{"type": "error", "error": {"type", "message"}}`, in streams as an event `error`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fulcrum.gateway.api_formats.inference_request import COUNT_TOKENS_PATH, MESSAGES_PATH, RESPONSES_PATH
from fulcrum.gateway.errors import RequestError

_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500
_EVENT: Final = b"event: error\n"
_ANTHROPIC: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Type of an error by its status; of others `invalid_request_error` or `api_error`."""


class ErrorForm:
    """How one API writes its errors."""

    def __init__(self, path: str) -> None:
        self._messages = path in (MESSAGES_PATH, COUNT_TOKENS_PATH)
        self._responses = path == RESPONSES_PATH
        self.event_line = _EVENT if self._messages or self._responses else b""
        """Stands before the data of an event that is an error."""

    def write(self, error: RequestError, events: int | None) -> bytes:
        """The JSON of `error`; `events`: how many the stream has had that it ends, None: it ends none."""
        if self._messages:
            return _anthropic_error(
                error.status.value, error.message, error.retry_after_seconds, in_stream=events is not None
            )
        if self._responses and events:
            event = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
            return msgspec.json.encode({**event, "sequence_number": events})
        return error_object(error, in_stream=events is not None)

    def passed_on(self, status: int, body: bytes) -> bytes:
        """The body of an engine's own error: vLLM does not write all of its errors in the form of the API."""
        if not self._messages:
            return body
        try:
            message = msgspec.json.decode(body, type=_EngineError).error.message
        except (msgspec.DecodeError, RecursionError):
            message = "The engine refused the request."
        return _anthropic_error(status, message, None, in_stream=False)


_FORMS: Final = {path: ErrorForm(path) for path in (MESSAGES_PATH, COUNT_TOKENS_PATH, RESPONSES_PATH)}
_OTHERS: Final = ErrorForm("")


def error_form(path: str) -> ErrorForm:
    """The form of the errors at `path`."""
    return _FORMS.get(path, _OTHERS)


def error_object(error: RequestError, *, in_stream: bool) -> bytes:
    """OpenAI's JSON of `error`. In a stream it also says when to try again: there are no headers any more to say so."""
    fields: dict[str, object] = {
        "message": error.message,
        "type": _type_of(error),
        "param": error.param,
        "code": error.code,
    }
    if in_stream:
        fields["retry_after_seconds"] = error.retry_after_seconds
    return msgspec.json.encode({"error": fields})


def _type_of(error: RequestError) -> str:
    if error.status >= _SERVER_ERRORS:
        return "server_error"
    # Without a reason, the client sent too much at once on one connection.
    return "rate_limit_error" if error.status == _TOO_MANY and error.reason is not None else "invalid_request_error"


def _anthropic_error(status: int, message: str, retry_after_seconds: float | None, *, in_stream: bool) -> bytes:
    kind = _ANTHROPIC.get(status, "api_error" if status >= _SERVER_ERRORS else "invalid_request_error")
    fields: dict[str, object] = {"type": kind, "message": message}
    if in_stream:
        fields["retry_after_seconds"] = retry_after_seconds
    return msgspec.json.encode({"type": "error", "error": fields})


class _EngineErrorFields(msgspec.Struct):
    message: str


class _EngineError(msgspec.Struct):
    error: _EngineErrorFields
