"""The most that was asked of each role, of the load's history."""

from __future__ import annotations

import math

import pytest
from tests.decide.loads import series

from fulcrum.decide.peak import Busiest, Peak, peak_of

N = math.nan


@pytest.mark.parametrize(
    ("rate", "stabilization_seconds", "expected"),
    [
        ([1.0, 5.0, 2.0], 120, 5.0),
        ([1.0, 5.0, 2.0], 60, 2.0),
        ([9.0, 5.0, 2.0], 90, 5.0),
        ([1.0, 5.0, 2.0], 180, 5.0),
        ([1.0, 5.0, 2.0], 181, None),
        ([1.0, N, 2.0], 120, None),
        ([N, 5.0, 2.0], 120, 5.0),
        ([1.0], 0, 0.0),
        ([N], 0, 0.0),
    ],
)
def test_the_highest_rate(rate: list[float], stabilization_seconds: float, expected: float | None) -> None:
    nothing = [N] * len(rate)
    found = peak_of(series(rate, nothing, nothing), stabilization_seconds)
    assert (None if found is None else found.rate) == expected


def test_each_role_has_its_own_busiest_interval() -> None:
    found = peak_of(series([5.0, 2.0, 4.0, 1.0], [N, 1000, 300, 900], [90, N, 200, 700]), 240)
    assert found == Peak(rate=5.0, prompts=Busiest(rate=2.0, tokens=1000), outputs=Busiest(rate=4.0, tokens=200))


def test_lengths_that_nobody_measured_are_unknown() -> None:
    found = peak_of(series([5.0, 2.0], [N, N], [10, 20]), 120)
    assert found == Peak(rate=5.0, prompts=Busiest(rate=5.0, tokens=None), outputs=Busiest(rate=5.0, tokens=10))
