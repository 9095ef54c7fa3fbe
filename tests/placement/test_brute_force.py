"""The search finds what trying every placement finds."""

from __future__ import annotations

import pytest
from tests.placement.brute_force import Setting, best_goodput, settings

from fulcrum.placement.errors import PlacementError
from fulcrum.placement.search import search

EVERY = settings()
SETTINGS = [*EVERY[:4:2], *EVERY[4::4]]
"""Two that the search was once far off on, and some of the drawn ones; `benchmarks/placement.py` tries all twenty."""


@pytest.mark.parametrize("setting", SETTINGS, ids=[each.name for each in SETTINGS])
def test_the_plan_is_within_two_percent_of_the_best_placement(setting: Setting) -> None:
    best, _ = best_goodput(setting.request)
    try:
        plan = search(setting.request)
    except PlacementError:
        assert best == 0.0
        return
    assert plan.goodput >= 0.98 * best
    assert plan.goodput <= plan.flow_rate * (1 + 1e-6), "links and workers carry what is expected of them"
    assert best <= plan.bound * (1 + 1e-6), "the bound is one"


def test_there_are_twenty_and_most_can_be_kept() -> None:
    assert len(EVERY) == 20
    assert sum(best_goodput(each.request)[0] > 0 for each in EVERY[5:8]) >= 2
