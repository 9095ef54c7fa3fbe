"""How long an engine has for the prefill of a request."""

from __future__ import annotations

import math

import pytest

from fulcrum_worker.kv.promise import seconds_left


@pytest.mark.parametrize(
    ("params", "left"),
    [
        ({"ttft_seconds": 2.0}, 1.5),
        ({"ttft_seconds": 2, "do_remote_decode": True}, 1.5),
        ({"ttft_seconds": 0.3}, 0.0),
        ({"ttft_seconds": -1.0}, 0.0),
        (None, None),
        ({}, None),
        *(({"ttft_seconds": value}, None) for value in (None, "2", True, math.nan, math.inf, -math.inf, [2.0], {})),
    ],
)
def test_what_is_left_for_a_prefill_half_a_second_later(params: dict[str, object] | None, left: float | None) -> None:
    assert seconds_left(params, waited_seconds=0.5) == left
