"""The ring: what it holds, how it wraps, how its sample is halved, and that it never outgrows its memory."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.api.record import MOST_KEYS, Outcome, RecordedRequest, RingPage, decode, is_sampled, sampling_rate
from fulcrum.gateway.dispatch import request_ring as module
from fulcrum.gateway.dispatch.request_ring import LONGEST_SECONDS, PAGE_ROWS, Ring
from fulcrum.rehearsal.rings import ReadRing, Recording, merge

SMALL = 80_000
"""Four pages of requests with a few keys."""


def put(ring: Ring, at: float, keys: tuple[int, ...] = (), *, prompt: int = 100, identity: int = 7) -> None:
    ring.add(at, 0.0, 0.5, -1.0, prompt, 4 * prompt, 20, identity, 0, int(Outcome.SERVED), keys)


def held(ring: Ring, now: float, last_seconds: float = LONGEST_SECONDS) -> tuple[list[RecordedRequest], RingPage]:
    kept = ring.read(now, last_seconds)
    page = RingPage(
        age_of_start_seconds=now, covers_from_seconds=now - kept.covers_from, sampling_depths=kept.depths,
        classes=("a",), batch=(False,), packed_rows=tuple(kept.pages),
    )  # fmt: skip
    return decode(page), page


def seen(ring: Ring, now: float, last_seconds: float) -> Recording:
    """As a rehearsal reads it."""
    return merge([ReadRing(gateway="g", page=held(ring, now)[1])], last_seconds=last_seconds)


def rate(ring: Ring, now: float, last_seconds: float = LONGEST_SECONDS) -> float:
    return sampling_rate(held(ring, now, last_seconds)[1].sampling_depths)


def key(number: int) -> int:
    """As a hash of what `number` stands for would be (splitmix64)."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return mixed ^ mixed >> 31


def test_what_is_put_in_comes_back() -> None:
    ring = Ring()
    ring.add(3.0, 2.0, 0.25, 4.0, 1000, 4000, 33, 2**64 - 1, 0, int(Outcome.REJECTED), (1, 2**64 - 1))
    ring.add(4.0, 2.0, -1.0, -1.0, 5, 20, -1, 9, 0, int(Outcome.LEFT), ())
    (first, second), page = held(ring, 10.0)
    assert (first.age_seconds, first.duration_seconds, first.ttft_seconds, first.retry_after_seconds) == (7, 2, 0.25, 4)
    assert (first.prompt_tokens, first.units, first.output_tokens, first.identity) == (1000, 4000, 33, 2**64 - 1)
    assert (first.outcome, first.keys, first.qos_class, first.batch) == (Outcome.REJECTED, (1, 2**64 - 1), "a", False)
    assert (second.output_tokens, second.ttft_seconds, second.keys) == (None, None, ())
    assert page.covers_from_seconds == 10, "from its start"


def test_an_old_ring_forgets_the_oldest_and_says_from_when_it_is_whole() -> None:
    ring = Ring(most_bytes=SMALL, wanted_seconds=10.0)
    for number in range(6 * PAGE_ROWS):
        put(ring, float(number), (number,))
    now = 6.0 * PAGE_ROWS
    found, page = held(ring, now)
    assert sampling_rate(page.sampling_depths) == 1
    ages = [request.age_seconds for request in found]
    assert ages == sorted(ages, reverse=True)
    whole = [number for number in range(6 * PAGE_ROWS) if now - number < page.covers_from_seconds]
    assert len(whole) >= 3 * PAGE_ROWS - 1
    assert {now - age for age in ages} >= set(map(float, whole))


def test_nothing_older_than_an_hour_is_handed_out() -> None:
    ring = Ring()
    for number in range(3 * PAGE_ROWS):
        put(ring, 100.0 * number)
    found, page = held(ring, 100.0 * 3 * PAGE_ROWS)
    assert page.covers_from_seconds <= LONGEST_SECONDS + 100 * PAGE_ROWS
    assert len(found) <= 2 * PAGE_ROWS


def test_only_the_last_seconds_are_read() -> None:
    ring = Ring()
    for number in range(4 * PAGE_ROWS):
        put(ring, float(number))
    found, page = held(ring, 4.0 * PAGE_ROWS, last_seconds=100.0)
    assert len(found) == PAGE_ROWS
    assert 100 <= page.covers_from_seconds <= PAGE_ROWS + 1


def test_a_full_ring_halves_its_sample_and_conversations_stay_whole() -> None:
    ring = Ring(most_bytes=SMALL, wanted_seconds=1e6)
    turns = 4
    count = 16 * PAGE_ROWS
    for number in range(count):
        conversation = key(number // turns)
        put(ring, number * 0.01, (conversation, *(key(10**9 + number + each) for each in range(number % turns))))
    found, page = held(ring, count * 0.01)
    assert page.covers_from_seconds == count * 0.01, "all the time, with fewer requests"
    assert sampling_rate(page.sampling_depths) in (1 / 4, 1 / 8, 1 / 16)
    assert len(found) == pytest.approx(count * sampling_rate(page.sampling_depths), rel=0.3)
    assert set(Counter(request.keys[0] for request in found).values()) == {turns}


def test_a_prompt_that_all_begin_with_does_not_decide_about_all() -> None:
    """A system prompt of more than 512 bytes gives all requests the same first key."""
    ring = Ring(most_bytes=SMALL, wanted_seconds=1e6)
    count = 12 * PAGE_ROWS
    for number in range(count):
        put(ring, number * 0.01, (1, 2, key(number // 4)) if number % 2 else (1, 2))
    found, page = held(ring, count * 0.01)
    assert sampling_rate(page.sampling_depths) < 1
    assert len(found) == pytest.approx(count * sampling_rate(page.sampling_depths), rel=0.3)
    long = sum(len(request.keys) == 3 for request in found)
    assert long == pytest.approx(len(found) / 2, rel=0.3)


@pytest.mark.parametrize("applications", [2, 4, 8, 40])
def test_applications_with_a_system_prompt_each_are_seen_as_they_come(applications: int) -> None:
    """Each is a small part of the requests, and its prompts begin alike."""
    for seed in range(4):
        ring = Ring(most_bytes=2 * SMALL, wanted_seconds=1e6)
        count = 24 * PAGE_ROWS
        for number in range(count):
            system = key(10**6 * seed + number % applications)
            put(ring, number * 0.01, (system, *(key(10**9 + 10 * number + each) for each in range(3))))
        recording = seen(ring, count * 0.01, 1e6)
        assert recording.sampling_rate < 1
        assert len(recording.requests) / recording.sampling_rate == pytest.approx(count, rel=0.1)
        of_each = Counter(request.keys[0] for request in recording.requests)
        assert len(of_each) == applications
        assert max(of_each.values()) < 3 * min(of_each.values())


@pytest.mark.parametrize("bit", [0, 1])
@pytest.mark.parametrize("alike", [1.0, 0.9])
def test_prompts_that_begin_alike_from_now_on_are_no_other_load(bit: int, alike: float) -> None:
    """A new release of an application, when the sample is halved already by what prompts begin with."""
    ring = Ring(most_bytes=2 * SMALL, wanted_seconds=100.0)
    now = 0.0
    for number in range(12 * PAGE_ROWS):
        now += 0.01
        put(ring, now, (key(number), key(10**9 + number)))
    assert rate(ring, now) < 1
    system = key(1) & ~(1 << 40) | bit << 40
    for number in range(60 * PAGE_ROWS):
        now += 0.01
        first = system if number % 10 < 10 * alike else key(2 * 10**9 + number)
        put(ring, now, (first, key(3 * 10**9 + number)))
    recording = seen(ring, now, 60.0)
    assert recording.covers_from_seconds == 60
    assert len(recording.requests) / recording.sampling_rate == pytest.approx(6000, rel=0.15)


def test_a_request_that_comes_again_stays_or_goes_with_its_first_try() -> None:
    """Also where its prompt is too short for a key."""
    ring = Ring(most_bytes=SMALL, wanted_seconds=1e6)
    for number in range(12 * PAGE_ROWS):
        put(ring, number * 0.01, identity=key(number // 2))
    found, page = held(ring, 1000.0)
    assert sampling_rate(page.sampling_depths) < 1
    assert set(Counter(request.identity for request in found).values()) == {2}


def test_equal_prompts_are_drawn_apart() -> None:
    ring = Ring(most_bytes=SMALL, wanted_seconds=1e6)
    count = 24 * PAGE_ROWS
    for number in range(count):
        put(ring, number * 0.01, identity=7)
    found, page = held(ring, count * 0.01)
    assert len(found) == pytest.approx(count * sampling_rate(page.sampling_depths), rel=0.1)


def test_no_request_waits_for_the_whole_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where thinning frees nothing, because all was kept of a crowd that came up since, the oldest page goes."""
    unpacked = Counter[int]()
    real = module.unpack_rows
    monkeypatch.setattr(module, "unpack_rows", lambda packed: unpacked.update([number]) or real(packed))
    ring = Ring(most_bytes=10 * SMALL, wanted_seconds=100.0)
    now = 0.0
    for number in range(60 * PAGE_ROWS):
        now += 0.001
        put(ring, now, tuple(key(10 * number + each) for each in range(5)))
    for number in range(60 * PAGE_ROWS):  # few come, so that all are kept again
        now += 2.0
        put(ring, now, tuple(key(10**9 + 10 * number + each) for each in range(5)))
    assert rate(ring, now, 100.0) == 1
    assert unpacked
    unpacked.clear()
    system = key(1) & ~(1 << 40)
    for number in range(200 * PAGE_ROWS):
        now += 0.001
        put(ring, now, (system, *(key(2 * 10**9 + 10 * number + each) for each in range(4))))
    assert max(unpacked.values()) <= 2 * 8 + 2 * 8, "eight pages, each joined to another, and a look for a crowd"


def test_the_sample_grows_again_when_few_requests_come() -> None:
    ring = Ring(most_bytes=3 * SMALL, wanted_seconds=100.0)
    now = 0.0
    for number in range(36 * PAGE_ROWS):
        now += 0.01
        put(ring, now, (key(number),))
    coarse = rate(ring, now)
    assert coarse < 1
    for number in range(24 * PAGE_ROWS):
        now += 2.0
        put(ring, now, (key(number),))
    assert rate(ring, now, 100.0) == 1


def test_a_sample_is_told_also_where_nothing_of_it_is_left() -> None:
    ring = Ring(most_bytes=SMALL, wanted_seconds=1e6)
    for number in range(12 * PAGE_ROWS):
        put(ring, number * 0.01, (key(number),))
    assert rate(ring, 1000.0, 60.0) == rate(ring, 1000.0) < 1


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, MOST_KEYS), st.floats(0, 30)), min_size=1, max_size=6),
    st.floats(1, 1000),
)
def test_bounds(bursts: list[tuple[int, int, float]], wanted_seconds: float) -> None:
    """Whatever comes: the memory stays, what is there fits the sampling, and what is whole is whole."""
    ring = Ring(most_bytes=SMALL, wanted_seconds=wanted_seconds)
    now = 0.0
    put_in: list[tuple[float, tuple[int, ...]]] = []
    for count, keys, pause in bursts:
        now += pause
        for _ in range(count):
            now += 0.001
            own = tuple(key(len(put_in) * 100 + each) for each in range(keys))
            put(ring, now, own, prompt=len(put_in))
            put_in.append((now, own))
            assert ring.bytes_taken <= SMALL
    found, page = held(ring, now)
    there = {request.prompt_tokens for request in found}
    assert len(there) == len(found)
    for number, (at, own) in enumerate(put_in):
        if at > now - page.covers_from_seconds + 1e-9 and is_sampled(own, 7, number + 1, page.sampling_depths):
            assert number in there, (at, now, page.covers_from_seconds)
