"""Why a request is not served: status, message and reason of each error that a client gets."""

from __future__ import annotations

import re
from http import HTTPStatus
from math import ceil
from typing import Final

from fulcrum.api.reasons import Reason

_LONGEST_RETRY_SECONDS: Final = 3600.0
"""Longest `Retry-After`, in seconds: clients take a longer one for never."""
_SHOWN: Final = 200
"""Most characters of a model's name that are repeated."""
_WHY_REJECTED: Final = {
    Reason.TTFT_UNREACHABLE: "The first token would come too late.",
    Reason.TPOT_UNREACHABLE: "The tokens would come too slowly.",
    Reason.KV_EXHAUSTED: "There is no room for the request in the KV cache.",
    Reason.QUEUE_FULL: "The queue is full.",
    Reason.CLASS_SHARE: "The room that is left is kept for other classes.",
    Reason.RATE_LIMITED: "The API key is over its rate limit.",
    Reason.NOTHING_IDLE: "Nothing is idle for a batch request.",
    Reason.PREEMPTED: "The request made way for one of a higher class.",
}

STATUSES: Final = {
    Reason.NO_WORKER: HTTPStatus.SERVICE_UNAVAILABLE,
    Reason.WAKING: HTTPStatus.SERVICE_UNAVAILABLE,
    Reason.OVERLOADED: HTTPStatus.SERVICE_UNAVAILABLE,
    Reason.SHUTTING_DOWN: HTTPStatus.SERVICE_UNAVAILABLE,
    **dict.fromkeys(_WHY_REJECTED, HTTPStatus.TOO_MANY_REQUESTS),
    Reason.NEVER_FITS: HTTPStatus.BAD_REQUEST,
    Reason.UPSTREAM_FAILED: HTTPStatus.BAD_GATEWAY,
    Reason.ENGINE_ERROR: HTTPStatus.INTERNAL_SERVER_ERROR,
    Reason.TIMED_OUT: HTTPStatus.GATEWAY_TIMEOUT,
}
"""Status of an answer by its reason, for each reason that there is."""

_CODES: Final = {reason: re.sub(r"(?<!^)(?=[A-Z])", "_", reason.value).lower() for reason in Reason}


class RequestError(Exception):
    """An answer that is not 2xx: what the client reads, and the reason that metrics and logs carry."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        reason: Reason | None = None,
        retry_after_seconds: float | None = None,
        retry: bool = True,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        """The field of the request that is at fault."""
        self.code = code
        """Name of the error for programs; `param` and `code` are None where there is none."""
        self.reason = reason
        self.retry_after_seconds = (
            None if retry_after_seconds is None else min(max(0.0, retry_after_seconds), _LONGEST_RETRY_SECONDS)
        )
        """Written in whole seconds, rounded up, and in milliseconds beside it where it is not whole."""
        self.retry = retry
        """False: clients that would ask again by the status are told not to (`openai` and `anthropic` obey)."""
        self.allow = allow

    def headers(self) -> bytes:
        """Extra header lines, each ended by CRLF."""
        lines = b""
        if self.retry_after_seconds is not None:
            seconds = self.retry_after_seconds
            lines += b"retry-after: %d\r\n" % max(ceil(seconds), 1)
            if seconds % 1:
                lines += b"retry-after-ms: %d\r\n" % ceil(seconds * 1000)
        if not self.retry:
            lines += b"x-should-retry: false\r\n"
        if self.reason is not None:
            lines += b"x-fulcrum-rejected: " + self.reason.encode() + b"\r\n"
        if self.status is HTTPStatus.UNAUTHORIZED:
            lines += b"www-authenticate: Bearer\r\n"
        if self.allow is not None:
            lines += b"allow: " + self.allow.encode() + b"\r\n"
        return lines


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> RequestError:
    """400: the client must change the request."""
    return RequestError(HTTPStatus.BAD_REQUEST, message, param=param, code=code)


def too_large(limit_bytes: int) -> RequestError:
    """413: the body is longer than a gateway takes."""
    return RequestError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is larger than {limit_bytes} bytes.", code="body_too_large"
    )


def model_not_found(model: str) -> RequestError:
    """404 for a model that this cluster does not serve."""
    shown = model if len(model) <= _SHOWN else model[:_SHOWN] + "..."
    return RequestError(
        HTTPStatus.NOT_FOUND, f"The model `{shown}` does not exist.", param="model", code="model_not_found"
    )


def other_task(path: str, makes: str, task: str) -> RequestError:
    """404: the cluster's model `makes` something else; models of `task` are asked at `path`."""
    return RequestError(
        HTTPStatus.NOT_FOUND,
        f"The model of this cluster makes {makes}, so `{path}` is not served here: "
        f"ask a cluster whose spec.model.task is {task}.",
        code="other_task",
    )


def no_worker(message: str) -> RequestError:
    """503: no worker can take the request now."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        message,
        code="no_worker",
        reason=Reason.NO_WORKER,
        retry_after_seconds=2,
    )


def waking(message: str) -> RequestError:
    """503: workers start, and the request cannot wait for them here, or has waited for too long."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"{message} Retry later.",
        code=_CODES[Reason.WAKING],
        reason=Reason.WAKING,
        retry_after_seconds=10,
    )


def adapter_loading(adapter: str) -> RequestError:
    """503: no worker that could take the request has loaded the adapter yet."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"The adapter `{adapter[:_SHOWN]}` is not loaded on a ready worker yet. Retry later.",
        param="model",
        code="model_loading",
        reason=Reason.NO_WORKER,
        retry_after_seconds=5,
    )


def adapter_broken(adapter: str) -> RequestError:
    """503 that is not worth asking again: every worker has failed to load the adapter, for a reason that stays."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"The adapter `{adapter[:_SHOWN]}` cannot be loaded on any worker until its files or its entry in "
        "spec.adapters are corrected: status.adapters of the InferenceCluster says what is wrong.",
        param="model",
        code="adapter_not_loaded",
        reason=Reason.NO_WORKER,
        retry=False,
    )


def overloaded(message: str) -> RequestError:
    """503: this gateway holds as much as it may."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        message,
        code="overloaded",
        reason=Reason.OVERLOADED,
        retry_after_seconds=1,
    )


def rejected(reason: Reason, retry_after_seconds: float | None, numbers: str = "") -> RequestError:
    """429: it could not be served in time now; `retry_after_seconds` is when it could be.

    `numbers`: what was predicted against what is promised, as a part of a sentence.
    """
    why = _WHY_REJECTED.get(reason, "The cluster is overloaded.")
    return RequestError(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"{why.removesuffix('.')}: {numbers}. Retry later." if numbers else f"{why} Retry later.",
        code=_CODES[reason],
        reason=reason,
        retry_after_seconds=retry_after_seconds,
    )


def unauthorized() -> RequestError:
    """401: no key, or an unknown one."""
    return RequestError(
        HTTPStatus.UNAUTHORIZED,
        "A valid API key is required: `Authorization: Bearer KEY`, or `x-api-key: KEY`.",
        code="invalid_api_key",
    )


def never_fits() -> RequestError:
    """400: no pool takes such a request, however long it waits."""
    return RequestError(
        HTTPStatus.BAD_REQUEST,
        "No pool of workers takes this request: its prompt is too long or too short for all that admit its class.",
        code=_CODES[Reason.NEVER_FITS],
        reason=Reason.NEVER_FITS,
    )


def upstream_failed(message: str) -> RequestError:
    """502: every attempt on a worker failed."""
    return RequestError(
        HTTPStatus.BAD_GATEWAY,
        message,
        code="upstream_failed",
        reason=Reason.UPSTREAM_FAILED,
        retry_after_seconds=1,
    )


def engines_crashed() -> RequestError:
    """502: engines crashed with this request under way; trying it again would not help."""
    return RequestError(
        HTTPStatus.BAD_GATEWAY,
        "Two engines crashed while they served this request. Change it before trying again.",
        code="engines_crashed",
        reason=Reason.UPSTREAM_FAILED,
    )


def engine_error() -> RequestError:
    """500: several engines failed at this request, and serve others."""
    return RequestError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "Each worker that was given this request failed at it, while others are served. Change the request.",
        code="engine_error",
        reason=Reason.ENGINE_ERROR,
    )


def timed_out() -> RequestError:
    """504: the request took longer than `limits.requestTimeoutSeconds`."""
    return RequestError(
        HTTPStatus.GATEWAY_TIMEOUT,
        "The request took too long and was cancelled.",
        code="timed_out",
        reason=Reason.TIMED_OUT,
        retry_after_seconds=5,
    )


def shutting_down() -> RequestError:
    """503: this gateway is going away; another one, or a retry, will serve."""
    return RequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "This gateway is shutting down.",
        code="shutting_down",
        reason=Reason.SHUTTING_DOWN,
        retry_after_seconds=1,
    )
