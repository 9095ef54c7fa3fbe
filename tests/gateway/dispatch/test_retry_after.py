"""`Retry-After` (RFC 9110, 10.2.3) and the milliseconds beside it that OpenAI's clients read."""

from __future__ import annotations

from http import HTTPStatus
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.reasons import Reason
from fulcrum.gateway.errors import RequestError, rejected


def headers(seconds: float | None) -> dict[str, str]:
    lines = rejected(Reason.QUEUE_FULL, seconds).headers().decode().split("\r\n")
    return dict(line.split(": ") for line in lines if line)


@pytest.mark.parametrize(
    ("seconds", "whole", "milliseconds"),
    [
        (0.0, "1", None), (0.0001, "1", "1"), (0.3, "1", "300"), (1.0, "1", None), (1.0001, "2", "1001"),
        (59.5, "60", "59500"), (60.0, "60", None), (-1.0, "1", None), (inf, "3600", None), (1e300, "3600", None),
    ],
)  # fmt: skip
def test_whole_seconds_and_exact_milliseconds(seconds: float, whole: str, milliseconds: str | None) -> None:
    found = headers(seconds)
    assert (found["retry-after"], found.get("retry-after-ms")) == (whole, milliseconds)
    assert found["x-fulcrum-rejected"] == "QueueFull"


def test_none_where_nothing_is_known() -> None:
    assert "retry-after" not in headers(None)
    assert RequestError(HTTPStatus.BAD_REQUEST, "x").headers() == b""


@given(st.floats(0.0, 3600.0))
def test_never_too_early(seconds: float) -> None:
    found = headers(seconds)
    assert int(found["retry-after"]) == max(ceil(seconds), 1)
    if "retry-after-ms" in found:
        assert seconds * 1000 <= int(found["retry-after-ms"]) <= int(found["retry-after"]) * 1000
        assert int(found["retry-after-ms"]) >= 1 or seconds == 0
