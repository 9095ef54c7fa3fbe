"""The rate of a link is learnt, from a prior, in both directions."""

from __future__ import annotations

import math

import pytest

from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import LinkRate

PRIOR = TransferCost(base_seconds=0.002, seconds_per_token=1e-5)


def test_without_loads_it_is_the_prior() -> None:
    assert LinkRate(PRIOR).predict() == PRIOR


@pytest.mark.parametrize("factor", [20.0, 0.05])
def test_a_changed_link_is_known_after_thirty_loads(factor: float) -> None:
    rate = LinkRate(PRIOR)
    for _ in range(30):
        rate.learn(tokens=2000, seconds=PRIOR.seconds(2000))
    for _ in range(30):
        rate.learn(tokens=1000, seconds=PRIOR.base_seconds + 1000 * PRIOR.seconds_per_token * factor)
    assert rate.predict().seconds_per_token == pytest.approx(PRIOR.seconds_per_token * factor, rel=0.1)


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 1.0), (100, 0.0), (100, math.nan), (100, math.inf), (-5, 1.0)])
def test_what_cannot_be_is_left_out(tokens: int, seconds: float) -> None:
    rate = LinkRate(PRIOR)
    rate.learn(tokens=tokens, seconds=seconds)
    assert rate.predict() == PRIOR
