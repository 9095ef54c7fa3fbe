"""Folding slices into intervals."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fulcrum.forecast.series import LoadSeries
from fulcrum.telemetry.counts import Counts, Key
from fulcrum.telemetry.load_history import LoadHistory, Slice


def counts(arrivals: float, *, isl: float = 100.0, osl: float = 10.0) -> Counts:
    return {
        Key("arrivals_total"): arrivals,
        Key("prompt_tokens_sum"): arrivals * isl,
        Key("prompt_tokens_count"): arrivals,
        Key("output_tokens_sum"): arrivals * osl,
        Key("output_tokens_count"): arrivals,
    }


def piece(start: float, end: float, arrivals: float) -> Slice:
    return Slice(start_seconds=start, end_seconds=end, counts=counts(arrivals))


def filled(*pieces: Slice, **options: float) -> LoadHistory:
    kept = LoadHistory(cells=int(options.get("cells", 1000)), cell_seconds=options.get("cell_seconds", 5.0))
    for each in pieces:
        kept.put(each)
    return kept


def series(kept: LoadHistory, *, interval: float = 60.0, history: float = 3600.0, now: float) -> LoadSeries:
    found = kept.series(interval_seconds=interval, history_seconds=history, now=now)
    assert found is not None
    return found


def test_an_even_flow_has_an_even_rate() -> None:
    kept = filled(*(piece(start, start + 2, 6) for start in range(0, 300, 2)))
    found = series(kept, now=300.5)
    assert (len(found), found.end_seconds, found.interval_seconds) == (5, 300.0, 60.0)
    assert found.rate == pytest.approx([3.0] * 5)
    assert found.isl_tokens == pytest.approx([100.0] * 5)
    assert found.osl_tokens == pytest.approx([10.0] * 5)


def test_zero_is_known_and_has_no_lengths() -> None:
    found = series(filled(*(piece(start, start + 5, 0) for start in range(0, 120, 5))), now=120)
    assert found.rate.tolist() == [0.0, 0.0]
    assert np.isnan(found.isl_tokens).all()


def test_a_gap_is_nan() -> None:
    kept = filled(*(piece(start, start + 5, 5) for start in range(0, 300, 5) if not 60 <= start < 150))
    found = series(kept, now=300)
    assert found.rate[0] == pytest.approx(1.0)
    assert math.isnan(found.rate[1])
    assert found.rate[2:] == pytest.approx([1.0, 1.0, 1.0]), "half of an interval says enough"


def test_it_begins_with_the_first_known_interval_and_ends_before_now() -> None:
    kept = filled(*(piece(start, start + 5, 5) for start in range(1000, 1200, 5)))
    found = series(kept, now=1199.9)
    assert (len(found), found.end_seconds) == (2, 1140.0)
    found = series(kept, now=1290)
    assert found.rate[:3] == pytest.approx([1.0, 1.0, 1.0])
    assert math.isnan(found.rate[3])


@pytest.mark.parametrize("now", [0.0, 10.0, 59.0])
def test_without_a_whole_interval_there_is_no_series(now: float) -> None:
    assert filled().series(interval_seconds=60, history_seconds=600, now=now) is None
    kept = filled(piece(0, 5, 1))
    assert kept.series(interval_seconds=60, history_seconds=600, now=now) is None
    assert kept.series(interval_seconds=60, history_seconds=30, now=1000) is None


def test_old_cells_are_overwritten() -> None:
    kept = filled(*(piece(start, start + 5, 5) for start in range(0, 1000, 5)), cells=24)
    assert len(series(kept, now=1000)) == 1
    kept.put(piece(10_000, 10_005, 5))
    assert kept.series(interval_seconds=60, history_seconds=3600, now=10_000) is None


def test_the_last_seconds_are_cut_out_exactly() -> None:
    kept = filled(piece(0, 10, 10), piece(10, 20, 100))
    found, covered_seconds = kept.recent(window_seconds=15, now=20)
    assert (found[Key("arrivals_total")], covered_seconds) == (105.0, 15.0)
    found, covered_seconds = kept.recent(window_seconds=60, now=25)
    assert (found[Key("arrivals_total")], covered_seconds) == (110.0, 20.0)
    assert kept.recent(window_seconds=5, now=100) == ({}, 0.0)


def test_details_are_kept_for_minutes_only() -> None:
    kept = filled(*(piece(start, start + 5, 5) for start in range(0, 10_000, 5)))
    assert kept.recent(window_seconds=10_000, now=10_000)[1] < 1000
    assert len(series(kept, now=9_000)) == 60


def test_a_thousand_idle_rings_take_no_room_and_a_thousand_busy_ones_less_than_100_mb() -> None:
    tracemalloc.start()
    try:
        rings = [LoadHistory() for _ in range(1000)]
        idle_bytes = tracemalloc.get_traced_memory()[0]
        for kept in rings[:10]:
            kept.put(piece(86400.0, 86402.0, 6))
        busy_bytes = (tracemalloc.get_traced_memory()[0] - idle_bytes) * 100
    finally:
        tracemalloc.stop()
    assert idle_bytes < 5e6
    assert busy_bytes < 100e6


def test_the_detail_of_a_busy_cluster_takes_less_than_1_mb() -> None:
    """A gateway exports more than a hundred counters, and Auto reads them every 2 s."""
    totals = {f'b_{number}"': float(number) for number in range(150)}
    kept = LoadHistory()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for start in range(0, 900, 2):
            # As a page is read: names and numbers are new objects each time.
            read = {Key("".join(name), str(start)[:0]): total * (start + 1.5) for name, total in totals.items()}
            kept.put(Slice(start_seconds=start, end_seconds=start + 2, counts=counts(3.0) | read))
            del read
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 1e6
    found, covered_seconds = kept.recent(window_seconds=100, now=900)
    assert covered_seconds == 100.0
    assert found[Key("arrivals_total")] == pytest.approx(150.0)
    assert found[Key('b_10"')] == pytest.approx(sum(10 * (start + 1.5) for start in range(800, 900, 2)))


def test_counters_that_come_and_go_are_kept_apart() -> None:
    kept = LoadHistory()
    kept.put(Slice(start_seconds=0, end_seconds=2, counts={Key("a"): 1.0, Key("b"): 2.0}))
    kept.put(Slice(start_seconds=2, end_seconds=4, counts={Key("b"): 4.0, Key("a"): 3.0}))
    kept.put(Slice(start_seconds=4, end_seconds=6, counts={Key("b"): 8.0, Key("c"): 5.0}))
    assert kept.recent(window_seconds=6, now=6)[0] == {Key("a"): 4.0, Key("b"): 14.0, Key("c"): 5.0}
    assert kept.recent(window_seconds=6, now=6, keys=(Key("c"), Key("d")))[0] == {Key("c"): 5.0}


def test_intervals_are_made_of_whole_cells() -> None:
    kept = LoadHistory()
    assert [seconds for seconds in (5.0, 60.0, 90.0, 300.0) if kept.fits(seconds)] == [60.0, 300.0]
    for start in range(0, 600, 2):
        kept.put(piece(start, start + 2, 6))
    assert series(kept, now=600).rate == pytest.approx([3.0] * 10)
    assert series(kept.refined(90.0), interval=90.0, now=600).rate == pytest.approx([3.0] * 6)


def test_a_ring_can_be_refined() -> None:
    kept = filled(*(piece(start, start + 1, start % 2) for start in range(100)))
    found = series(kept.refined(1.0), interval=1.0, now=100)
    assert found.rate.tolist() == [0.0, 1.0] * 50


@example([(14.0, 0, False), (2.0, 1, False), (8.0, 0, False)], 7.0, 0.0)
@given(
    st.lists(st.tuples(st.floats(0.2, 40), st.integers(0, 1000), st.booleans()), min_size=1, max_size=60),
    st.sampled_from([5.0, 7.0, 60.0, 90.0]),
    st.floats(0, 1e9),
)
def test_what_was_put_in_comes_out(
    steps: list[tuple[float, int, bool]], interval_seconds: float, begin_seconds: float
) -> None:
    """Slices of any length, some lost: rates are never negative or too high, and known ones hold all arrivals."""
    kept = LoadHistory(cells=2000, cell_seconds=5.0)
    if not kept.fits(interval_seconds):  # as the source does: intervals are made of whole cells
        kept = LoadHistory(cells=2000, cell_seconds=interval_seconds)
    at = float(round(begin_seconds))
    highest = total = 0.0
    for seconds, arrivals, lost in steps:
        if not lost:
            kept.put(piece(at, at + seconds, arrivals))
            highest = max(highest, arrivals / seconds)
            total += arrivals
        at += seconds
    found = kept.series(interval_seconds=interval_seconds, history_seconds=4000, now=at + interval_seconds)
    if found is None:
        return
    known = ~np.isnan(found.rate)
    assert known[0]
    assert (found.rate[known] >= 0).all()
    assert (found.rate[known] <= highest * 1.01 + 1e-6).all()
    assert np.nansum(found.rate) * interval_seconds <= 2.01 * total + 1e-3, "at most half of an interval is filled in"
    if not any(lost for _, _, lost in steps):
        middle = found.rate[known][1:-1]
        assert middle.sum() * interval_seconds <= total * 1.001 + 1e-3


def test_spans_are_the_arrivals_between_scrapes_that_are_about_as_far_apart() -> None:
    pieces = [piece(2.0 * n, 2.0 * n + 2, float(n)) for n in range(20)]
    kept = filled(*pieces[:10], piece(20.0, 26.0, 99.0), *(piece(26.0 + 2 * n, 28.0 + 2 * n, 5.0) for n in range(5)))
    assert kept.spans(300.0, now=36.0) == [*map(float, range(10)), *[5.0] * 5]
    assert kept.spans(10.0, now=36.0) == [5.0] * 5
    assert kept.spans(10.0, now=500.0) == []


@given(
    lengths=st.lists(st.floats(0.5, 40.0), min_size=1, max_size=40),
    spans=st.lists(st.tuples(st.floats(-50.0, 900.0), st.floats(0.1, 700.0)), min_size=1, max_size=8),
    newer=st.integers(0, 40),
)
def test_spans_are_what_each_of_them_is_alone(
    lengths: list[float], spans: list[tuple[float, float]], newer: int
) -> None:
    """Also where a counter appears later: `newer` slices on."""
    appears = Key("requests_total", "Late")
    kept, now, slices = filled(), 0.0, list[Slice]()
    for number, length in enumerate(lengths):
        more = {appears: 7.0} if number >= newer else {}
        slices.append(Slice(start_seconds=now, end_seconds=now + length, counts=counts(3.0 * length) | more))
        kept.put(slices[-1])
        now += length
    wanted = [Key("arrivals_total"), appears, Key("never")]
    found = kept.between([(begin, begin + seconds) for begin, seconds in spans], wanted)
    for (begin, seconds), one in zip(spans, found, strict=True):
        shares = [
            (max(0.0, min(each.end_seconds, begin + seconds) - max(each.start_seconds, begin)), each) for each in slices
        ]
        for key in wanted:
            parts = [
                share / (each.end_seconds - each.start_seconds) * each.counts[key]
                for share, each in shares
                if share > 0 and key in each.counts
            ]
            assert (key in one) == bool(parts)
            assert one.get(key, 0.0) == pytest.approx(sum(parts))
