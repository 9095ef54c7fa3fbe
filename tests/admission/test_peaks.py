"""The highest since a moment, against a search through everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fulcrum.admission.peaks import Peaks

events = st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.001, 1.0)), max_size=60)


@given(events, st.floats(0.0, 130.0))
def test_it_is_the_highest_of_all_since_then(steps: list[tuple[float, float]], since: float) -> None:
    peaks, seen, now = Peaks(), [], 0.0
    for gap, figure in steps:
        now += gap
        peaks.add(figure, now)
        seen.append((now, figure))
    for moment in (since, *(at for at, _ in seen)):
        assert peaks.since(moment) == max((figure for at, figure in seen if at >= moment), default=0.0)


def test_its_memory_is_bounded() -> None:
    peaks = Peaks()
    for number in range(5000):
        peaks.add(5000.0 - number, float(number))
    assert peaks.since(4999.0) == 1.0
    assert 0.0 < peaks.since(0.0) < 600.0
