"""What a gateway does with all of its workers at once takes time in proportion to them."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(900)


def test_four_times_the_workers_take_no_more_than_eight_times_as_long() -> None:
    """Four is linear, sixteen is quadratic. A step below 20 ms says nothing, and hurts nobody."""
    import first_list

    few, many = first_list.seconds(500), first_list.seconds(2000)
    ratios = {name: many[name] / max(few[name], 0.005) for name in many}
    assert max(ratios.values()) < 8, (few, many)
