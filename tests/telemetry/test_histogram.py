"""Quantiles and spread from buckets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.gateway.metrics.class_metrics import TOKENS
from fulcrum.telemetry.histogram import quantile, squared_variation

INF = math.inf


@pytest.mark.parametrize(
    ("buckets", "fraction", "expected"),
    [
        ({}, 0.5, None),
        ({1.0: 0.0, INF: 0.0}, 0.5, None),
        ({1.0: 5.0}, 0.5, None),  # without +Inf nobody knows the total
        ({1.0: 10.0, INF: 10.0}, 0.5, 0.5),
        ({1.0: 0.0, 2.0: 10.0, INF: 10.0}, 0.5, 1.5),
        ({1.0: 0.0, 2.0: 10.0, INF: 10.0}, 0.9, 1.9),
        ({1.0: 5.0, 2.0: 10.0, INF: 10.0}, 0.5, 1.0),
        ({1.0: 0.0, 2.0: 0.0, INF: 10.0}, 0.5, 2.0),
        ({1.0: 4.0, 2.0: 3.999, INF: 4.0}, 0.9, 0.9),  # rounded increases go down a little
    ],
)
def test_quantile(buckets: dict[float, float], fraction: float, expected: float | None) -> None:
    assert quantile(buckets, fraction) == (None if expected is None else pytest.approx(expected))


def cumulative(values: list[float], bounds: list[float]) -> dict[float, float]:
    return {bound: float(sum(value <= bound for value in values)) for bound in [*bounds, INF]}


BOUNDS = [float(1 << power) for power in range(12)]


@given(st.lists(st.floats(0.01, 2000), min_size=1, max_size=200), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_stay_in_their_buckets_and_in_order(values: list[float], one: float, two: float) -> None:
    buckets = cumulative(values, BOUNDS)
    low, high = (quantile(buckets, fraction) for fraction in sorted((one, two)))
    assert low is not None
    assert high is not None
    assert 0 <= low <= high <= 2048
    exact = sorted(values)[max(0, math.ceil(one * len(values)) - 1)]
    bound = next(bound for bound in BOUNDS if exact <= bound)
    found = quantile(buckets, one)
    assert found is not None
    assert found <= bound


@pytest.mark.parametrize(
    ("values", "expected", "tolerance"),
    [
        (np.full(1000, 700.0), 0.0, 0.05),
        (np.random.default_rng(1).exponential(300, 20_000), 0.996, 0.05),
        (np.random.default_rng(1).lognormal(5, 1, 20_000), 1.77, 0.09),
    ],
)
def test_spread_is_about_right(values: np.ndarray, expected: float, tolerance: float) -> None:
    found = squared_variation(cumulative(list(values), list(TOKENS)))
    assert found == pytest.approx(expected, abs=tolerance)


@given(st.dictionaries(st.sampled_from([*BOUNDS, INF]), st.floats(0, 1e9)))
def test_spread_is_never_negative_or_nan(buckets: dict[float, float]) -> None:
    found = squared_variation(buckets)
    assert found is None or (found >= 0 and math.isfinite(found))
