"""Errors as OpenAI clients read them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from typing import Final

import msgspec

from fulcrum.gateway.errors import RequestError

_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500


def error_object(error: RequestError, *, in_stream: bool) -> bytes:
    """The JSON of `error`. In a stream it also says when to try again: there are no headers any more to say so."""
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
