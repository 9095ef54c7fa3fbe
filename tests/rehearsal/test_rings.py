"""Rings of several gateways put together: never a smaller load, and a retry counts once."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

import pytest

from fulcrum.api.record import Outcome, RecordError, RingPage, is_sampled, pack_rows, read_page
from fulcrum.rehearsal.rings import ReadRing, Recording, merge

Row = tuple[float, float, Outcome, float, int]
"""Arrival, duration, outcome, Retry-After, identity."""


def page(
    *rows: Row, start: float = 100.0, covers: float | None = None, numbers: Sequence[int] = (), **more: object
) -> RingPage:
    """`numbers`: of the requests, where some between them were not kept."""
    packed = pack_rows(
        [
            (arrival, duration, 0.1, retry_after, 50, 200, 9, identity, number, 0, outcome, (identity,))
            for number, (arrival, duration, outcome, retry_after, identity) in zip(
                numbers or range(len(rows)), rows, strict=True
            )
        ]
    )
    fields = {"classes": ("a",), "batch": (False,), "key_ends": (512,), "packed_rows": (packed,), **more}
    return RingPage(
        age_of_start_seconds=start,
        covers_from_seconds=start if covers is None else covers,
        **fields,  # type: ignore[arg-type]
    )


def served(arrival: float, identity: int = 1) -> Row:
    return (arrival, 1.0, Outcome.SERVED, -1.0, identity)


def turned_away(arrival: float, identity: int = 1, retry_after: float = 2.0) -> Row:
    return (arrival, 0.0, Outcome.REJECTED, retry_after, identity)


def ages(recording: Recording) -> list[float]:
    return [request.age_seconds for request in recording.requests]


def test_two_gateways_are_one_load() -> None:
    one = ReadRing(gateway="g-0", page=page(served(10), served(30, 2)))
    other = ReadRing(gateway="g-1", page=page(served(20, 3), start=90.0), read_seconds_ago=5.0)
    found = merge([one, other])
    assert ages(found) == [90, 75, 70]
    assert (found.complete, found.covers_from_seconds, found.limited_by) == (True, 95, "g-1")


def test_a_new_gateway_makes_what_was_before_unknown() -> None:
    old = ReadRing(gateway="old", page=page(served(10), served(80, 2)))
    new = ReadRing(gateway="new", page=page(served(5, 3), start=30.0))
    found = merge([old, new])
    assert (found.covers_from_seconds, found.limited_by) == (30, "new")
    assert ages(found) == [25, 20], "and nothing of a time in which a part is unknown"


def test_a_gateway_that_went_took_its_ring_along() -> None:
    found = merge([ReadRing(gateway="g", page=page(served(10), served(80, 2), neighbour_left_seconds=40.0))])
    assert (found.covers_from_seconds, ages(found)) == (40, [20])


def test_no_more_than_the_last_seconds_is_wanted() -> None:
    found = merge([ReadRing(gateway="g", page=page(served(10), served(80, 2)))], last_seconds=30.0)
    assert (found.covers_from_seconds, ages(found)) == (30, [20])


def test_a_silent_gateway_is_named_and_nothing_is_complete() -> None:
    found = merge(
        [ReadRing(gateway="g", page=page(served(10))), ReadRing(gateway="mute", page=None, problem="no answer")]
    )
    assert not found.complete
    assert found.silent == (("mute", "no answer"),)
    assert len(found.requests) == 1
    assert not merge([]).complete


def test_a_ring_that_does_not_fit_together_is_a_silent_one() -> None:
    (other_class,) = merge([ReadRing(gateway="g", page=page(served(1), classes=()))]).silent
    assert other_class == ("g", "its ring does not fit together")
    (cut,) = merge([ReadRing(gateway="g", page=page(packed_rows=(page(served(1)).packed_rows[0][:-1],)))]).silent
    assert cut[1].startswith("its ring cannot be read")


@pytest.mark.parametrize("wrong", [nan, inf, -inf])
@pytest.mark.parametrize("field", [0, 1, 3])
def test_a_time_that_is_none_makes_a_ring_a_silent_one(field: int, wrong: float) -> None:
    row = list(served(1))
    row[field] = wrong
    (silent,) = merge([ReadRing(gateway="g", page=page(tuple(row)))]).silent  # type: ignore[arg-type]
    assert silent == ("g", "its ring does not fit together")


@pytest.mark.parametrize("body", [b"", b"\xc1", b"{}", b"\x81\xa7version\x09"])
def test_what_is_no_ring_is_refused(body: bytes) -> None:
    with pytest.raises(RecordError):
        read_page(body)


@pytest.mark.parametrize(
    ("rows", "count", "outcome"),
    [
        ([turned_away(10), served(12)], 1, Outcome.SERVED),
        ([turned_away(10), turned_away(12), served(14.5)], 1, Outcome.SERVED),
        ([turned_away(10), turned_away(12.5)], 1, Outcome.REJECTED),
        ([turned_away(10), served(14)], 2, None),  # after Retry-After and a second: another one
        ([turned_away(10), served(11)], 2, None),  # before it may come back: another client
        ([turned_away(10, retry_after=0.3), served(10.4)], 1, Outcome.SERVED),
        ([turned_away(10), served(12, 2)], 2, None),  # another prompt
        ([turned_away(10), turned_away(10.1), served(12), served(12.1)], 2, Outcome.SERVED),
        ([served(10), served(11)], 2, Outcome.SERVED),
        ([turned_away(10, retry_after=-1.0), served(11)], 2, None),
        ([turned_away(10, 0), served(11, 0)], 2, None),  # nothing to know it by
    ],
)
def test_a_retry_counts_once(rows: list[Row], count: int, outcome: Outcome | None) -> None:
    """Wherever it comes back: the rows are spread over two gateways."""
    found = merge([ReadRing(gateway="g-0", page=page(*rows[::2])), ReadRing(gateway="g-1", page=page(*rows[1::2]))])
    assert (len(found.requests), found.retries) == (count, len(rows) - count)
    assert found.requests[0].age_seconds == 90, "it came when it first came"
    if outcome is not None:
        assert {request.outcome for request in found.requests} == {outcome}


def test_equal_prompts_that_are_turned_away_at_once_are_as_many_requests() -> None:
    burst = [turned_away(10 + number / 1000, retry_after=5.0) for number in range(1000)]
    found = merge([ReadRing(gateway="g", page=page(*burst))])
    assert (len(found.requests), found.retries) == (1000, 0)


def test_a_long_burst_of_equal_prompts_is_read_at_once() -> None:
    """Each waits for 12 s before it is turned away. If each of them looked at all others, this would take an hour."""
    burst = [(number / 1e4, 12.0, Outcome.REJECTED, 5.0, 7) for number in range(200_000)]
    found = merge([ReadRing(gateway="g", page=page(*burst))])
    assert len(found.requests) + found.retries == 200_000


def test_it_ended_when_its_last_try_ended() -> None:
    (found,) = merge([ReadRing(gateway="g", page=page(turned_away(10), served(12)))]).requests
    assert (found.age_seconds, found.ended_age_seconds) == (90, 87)
    assert (found.ttft_seconds, found.tpot_seconds) == (2.1, pytest.approx(0.9 / 8))


def test_the_coarsest_sample_counts_for_all() -> None:
    rows = [served(float(number), number * 0x9E3779B97F4A7C15 % 2**64) for number in range(64)]
    fine = ReadRing(gateway="fine", page=page(*rows))
    numbers = [number for number, row in enumerate(rows) if is_sampled((row[4],), row[4], number, (0,))]
    coarse_rows = [rows[number] for number in numbers]
    coarse = ReadRing(gateway="coarse", page=page(*coarse_rows, numbers=numbers, sampling_depths=(0,)))
    found = merge([fine, coarse])
    assert found.sampling_rate == 0.5
    assert 0 < len(coarse_rows) < len(rows)
    assert len(found.requests) == 2 * len(coarse_rows)


@pytest.mark.parametrize(("one", "other"), [((0, 0), (1, 1)), ((1, 1), (0, 0)), ((1,), (0, 0)), ((), (1, 1, 1))])
def test_gateways_that_chose_other_places_are_not_thinned_twice(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    rows = [served(float(number), (number + 1) * 0x9E3779B97F4A7C15 % 2**64) for number in range(4096)]
    rings = [
        ReadRing(gateway=str(depths), page=page(*rows, start=5000.0, sampling_depths=depths)) for depths in (one, other)
    ]
    found = merge(rings)
    assert found.sampling_rate == 0.5 ** max(len(one), len(other))
    assert len(found.requests) / found.sampling_rate == pytest.approx(2 * len(rows), rel=0.15)


@pytest.mark.parametrize("stays", [True, False])
def test_a_crowd_that_stayed_or_went_whole_is_no_other_load(stays: bool) -> None:
    """The share of a sample is counted, by the numbers of its requests: halved is only what no crowd decided about."""
    crowd = 0 if stays else 1 << 40
    rows = [served(number * 0.1, crowd if number % 2 else number * 0x9E3779B97F4A7C15 % 2**64) for number in range(900)]
    numbers = [number for number, row in enumerate(rows) if is_sampled((row[4],), row[4], number, (0,))]
    kept = page(*(rows[number] for number in numbers), numbers=numbers, sampling_depths=(0,))
    found = merge([ReadRing(gateway="g", page=kept)])
    assert len(numbers) < 250 or len(numbers) > 650
    assert len(found.requests) / found.sampling_rate == pytest.approx(900, rel=0.02)


def test_no_more_is_unpacked_than_is_wanted() -> None:
    rows = [served(number * 0.1, (number + 1) * 0x9E3779B97F4A7C15 % 2**64) for number in range(900)]
    rings = [ReadRing(gateway="g-0", page=page(*rows)), ReadRing(gateway="g-1", page=page(*rows))]
    for least_rate, kept in ((1.0, 1.0), (0.51, 1.0), (0.5, 0.5), (0.1, 0.125)):
        found = merge(rings, least_rate=least_rate)
        assert len(found.requests) == pytest.approx(1800 * kept, rel=0.15)
        assert len(found.requests) / found.sampling_rate == pytest.approx(1800, rel=0.15)
    alike = [served(number * 0.1, 7) for number in range(900)]
    found = merge([ReadRing(gateway="g", page=page(*alike))], least_rate=0.25)
    assert len(found.requests) == pytest.approx(225, rel=0.15), "a crowd is drawn by number"


def test_an_outcome_of_a_later_release_makes_a_ring_a_silent_one() -> None:
    row = (1.0, 1.0, 0.1, -1.0, 50, 200, 9, 1, 0, 0, len(Outcome), ())
    (silent,) = merge([ReadRing(gateway="g", page=page(packed_rows=(pack_rows([row]),)))]).silent
    assert silent[1].startswith("its ring cannot be read: Invalid enum value 7")


def test_a_ring_of_more_requests_than_any_has_makes_it_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fulcrum.api.record.MOST_ROWS", 4)
    many = page(*map(served, range(4))).packed_rows
    assert merge([ReadRing(gateway="g", page=page(packed_rows=many))]).complete
    (silent,) = merge([ReadRing(gateway="g", page=page(packed_rows=many * 2))]).silent
    assert silent == ("g", "its ring has more than 4 requests")
