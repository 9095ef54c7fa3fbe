"""What clients read of an error, by its status and reason."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from fulcrum.api.reasons import Reason
from fulcrum.gateway.api_formats.error_object import error_object
from fulcrum.gateway.errors import RequestError, bad_request, engine_error, rejected, shutting_down, unauthorized


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (bad_request("x", param="n"), "invalid_request_error"),
        (unauthorized(), "invalid_request_error"),
        (RequestError(HTTPStatus.TOO_MANY_REQUESTS, "Too much at once on one connection."), "invalid_request_error"),
        (rejected(Reason.QUEUE_FULL, 2.5), "rate_limit_error"),
        (engine_error(), "server_error"),
        (shutting_down(), "server_error"),
    ],
)
def test_the_type_follows_from_status_and_reason(error: RequestError, kind: str) -> None:
    read = json.loads(error_object(error, in_stream=False))
    assert read == {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def test_an_event_says_when_to_try_again() -> None:
    read = json.loads(error_object(rejected(Reason.QUEUE_FULL, 2.5), in_stream=True))
    assert read["error"]["retry_after_seconds"] == 2.5
