"""Errors as OpenAI clients read them: `{"error": {"message", "type", "param", "code"}}` and a retry hint."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from fulcrum.api.reasons import Reason

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"


class RequestError(Exception):
    """An answer that is not 2xx: what the client reads, and the reason that metrics and logs carry."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        reason: Reason | None = None,
        retry_after_seconds: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        self.allow = allow

    def body(self) -> bytes:
        """The JSON error object."""
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        )

    def headers(self) -> bytes:
        """Extra header lines, each ended by CRLF."""
        lines = b""
        if self.retry_after_seconds is not None:
            lines += b"retry-after: %d\r\n" % self.retry_after_seconds
        if self.reason is not None:
            lines += b"x-fulcrum-rejected: " + self.reason.encode() + b"\r\n"
        if self.allow is not None:
            lines += b"allow: " + self.allow.encode() + b"\r\n"
        return lines


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> RequestError:
    """400: the client must change the request."""
    return RequestError(HTTPStatus.BAD_REQUEST, message, param=param, code=code)


def model_not_found(model: str) -> RequestError:
    """404 for a model that this cluster does not serve."""
    shown = model if len(model) <= 200 else model[:200] + "..."
    return RequestError(
        HTTPStatus.NOT_FOUND, f"The model `{shown}` does not exist.", param="model", code="model_not_found"
    )


def no_worker(message: str) -> RequestError:
    """503: no worker can take the request now."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        message,
        kind=SERVER_ERROR,
        code="no_worker",
        reason=Reason.NO_WORKER,
        retry_after_seconds=2,
    )


def overloaded(message: str) -> RequestError:
    """503: this gateway holds as much as it may."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        message,
        kind=SERVER_ERROR,
        code="overloaded",
        reason=Reason.OVERLOADED,
        retry_after_seconds=1,
    )


def upstream_failed(message: str) -> RequestError:
    """502: every attempt on a worker failed."""
    return RequestError(
        HTTPStatus.BAD_GATEWAY,
        message,
        kind=SERVER_ERROR,
        code="upstream_failed",
        reason=Reason.UPSTREAM_FAILED,
        retry_after_seconds=1,
    )


def timed_out() -> RequestError:
    """504: the request took longer than `limits.requestTimeoutSeconds`."""
    return RequestError(
        HTTPStatus.GATEWAY_TIMEOUT,
        "The request took too long and was cancelled.",
        kind=SERVER_ERROR,
        code="timed_out",
        reason=Reason.TIMED_OUT,
        retry_after_seconds=5,
    )


def shutting_down() -> RequestError:
    """503: this gateway is going away; another one, or a retry, will serve."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "This gateway is shutting down.",
        kind=SERVER_ERROR,
        code="shutting_down",
        reason=Reason.SHUTTING_DOWN,
        retry_after_seconds=1,
    )
