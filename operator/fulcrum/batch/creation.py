"""Reads `POST /v1/batches`, and says what is wrong with it."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Any, Final

import msgspec

from fulcrum.api.batch import BatchLimits
from fulcrum.api.durations import seconds
from fulcrum.api.errors import InvalidValueError
from fulcrum.api.serving_types import ModelTask
from fulcrum.batch.objects import StoredBatch
from fulcrum.batch.store import Store
from fulcrum.batch.uploads import checked_expiry
from fulcrum.gateway.errors import RequestError, bad_request

ENDPOINTS: Final = {
    ModelTask.GENERATE: ("/v1/chat/completions", "/v1/completions", "/v1/responses"),
    ModelTask.POOLING: ("/v1/embeddings",),
}
"""Endpoints of batches by what the cluster's model does."""
_MOST_UNENDED: Final = 100
_MOST_KEPT: Final = 10_000
"""Batches of one key: those that have not ended, and all that are kept."""
_MIN_WINDOW_SECONDS: Final = 60.0
_MAX_WINDOW_SECONDS: Final = 7 * 86_400.0
_MOST_PAIRS: Final = 16
_LONGEST_NAME: Final = 64
_LONGEST_VALUE: Final = 512


class _ExpiresAfter(msgspec.Struct):
    anchor: str | None = None
    seconds: int | None = None


class _Asked(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    output_expires_after: _ExpiresAfter | None = None


def new_batch(
    body: bytes, owner: str, *, store: Store, task: ModelTask, limits: BatchLimits, now: float
) -> StoredBatch:
    """The batch that a body asks for. Raises RequestError (400, 429)."""
    asked = _read(body)
    file = store.files.get(asked.input_file_id)
    if file is None or file.owner != owner:
        raise bad_request(
            f"There is no file `{asked.input_file_id[:100]}`.", param="input_file_id", code="file_not_found"
        )
    if file.purpose != "batch":
        raise bad_request("The file was not uploaded with the purpose `batch`.", param="input_file_id")
    if asked.endpoint not in ENDPOINTS[task]:
        raise bad_request(
            f"`endpoint` must be one of those that the model of this cluster serves: {', '.join(ENDPOINTS[task])}.",
            param="endpoint",
        )
    _check_metadata(asked.metadata)
    own = [batch for batch in store.batches.values() if batch.owner == owner]
    if len(own) >= _MOST_KEPT or sum(not batch.ended for batch in own) >= _MOST_UNENDED:
        raise RequestError(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"This key has {_MOST_UNENDED} batches that have not ended, or {_MOST_KEPT} in all: wait, or cancel some.",
            code="too_many_batches",
            retry_after_seconds=60,
        )
    after = asked.output_expires_after
    return StoredBatch(
        id=f"batch_{secrets.token_hex(12)}",
        owner=owner,
        endpoint=asked.endpoint,
        input_file_id=file.id,
        completion_window=asked.completion_window,
        created_at=int(now),
        expires_at=int(now + _window_seconds(asked.completion_window)),
        output_file_id=f"file-{secrets.token_hex(12)}",
        error_file_id=f"file-{secrets.token_hex(12)}",
        results_expire_seconds=None
        if after is None
        else int(min(checked_expiry(after.anchor, after.seconds, "output_expires_after"), limits.retention_seconds)),
        metadata=asked.metadata,
    )


def _read(body: bytes) -> _Asked:
    try:
        return msgspec.json.decode(body, type=_Asked)
    except msgspec.ValidationError as error:
        said: Any = str(error)
        raise bad_request(f"The body does not describe a batch: {said}.", param=_param(said)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad_request("The body is not valid JSON.", code="invalid_json") from None


def _param(said: str) -> str | None:
    """The field that an error is about."""
    return next((name for name in _Asked.__struct_fields__ if name in said), None)


def _window_seconds(text: str) -> float:
    try:
        window_seconds = seconds(text)
    except InvalidValueError:
        window_seconds = 0.0
    if not _MIN_WINDOW_SECONDS <= window_seconds <= _MAX_WINDOW_SECONDS:
        raise bad_request(
            "`completion_window` must be a duration of 1m to 168h, such as 24h.", param="completion_window"
        )
    return window_seconds


def _check_metadata(metadata: dict[str, str] | None) -> None:
    pairs = metadata or {}
    if len(pairs) > _MOST_PAIRS or any(
        len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE for name, value in pairs.items()
    ):
        raise bad_request(
            f"`metadata` may have {_MOST_PAIRS} pairs, with names of {_LONGEST_NAME} and values of {_LONGEST_VALUE} "
            "characters.",
            param="metadata",
        )
