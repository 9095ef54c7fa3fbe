"""Errors as clients get them."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from fulcrum.gateway.errors import RequestError


@pytest.mark.parametrize(
    ("given", "kept"),
    [(2.5, 2.5), (-1.0, 0.0), (1e39, 3600.0), (float("inf"), 3600.0), (float("nan"), 0.0), (None, None)],
)
def test_whatever_is_predicted_a_client_is_told_to_come_back_within_an_hour(
    given: float | None, kept: float | None
) -> None:
    error = RequestError(HTTPStatus.TOO_MANY_REQUESTS, "no", retry_after_seconds=given)
    assert error.retry_after_seconds == kept
    assert (b"retry-after: " in error.headers()) is (kept is not None)
