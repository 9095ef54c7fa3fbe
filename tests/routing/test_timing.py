"""Steps of an engine as they show in its answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.names import Role
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.online import OnlineSpeed
from fulcrum.capacity.rows import PrefillRow
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import ClusterView, Flight, Incoming, Route, route

TRUTH = (0.05, 0.001, 1e-6)
WRONG = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.2, prefill_b=0.0, prefill_c=1e-5, decode_a=0.01, decode_b=0.001, decode_c=0.0
    ),
    kv_capacity_tokens=100_000,
    max_batched_tokens=512,
)


def world() -> ClusterView:
    view = ClusterView(ttft_seconds=1000.0)
    view.workers.set_speed("pool", WRONG)
    view.workers.put("p", Role.PREFILL, pool="pool")
    view.workers.put("d", Role.DECODE, pool="pool")
    return view


def start(view: ClusterView, prompt_tokens: float, now: float) -> Flight:
    incoming = Incoming(prompt_tokens=prompt_tokens, output_tokens=4.0)
    found = route(incoming, view, now)
    assert isinstance(found, Route)
    return view.start(incoming, found, now)


def rows(view: ClusterView) -> list[PrefillRow]:
    return view.steps.take().get("pool", [])


def test_a_prompt_alone_is_a_step() -> None:
    view = world()
    view.prefill_done(start(view, 100, 1.0), 1.3)
    assert rows(view) == [PrefillRow(prompts=1, tokens=100, squared_tokens=10_000, seconds=pytest.approx(0.3))]
    assert rows(view) == []


def test_prompts_that_waited_share_the_next_step() -> None:
    view = world()
    first = start(view, 100, 1.0)
    waiting = [start(view, 50, 1.1), start(view, 70, 1.2)]
    view.prefill_done(first, 1.3)
    late = start(view, 10, 1.31)
    for leg, at in zip(waiting, (1.5, 1.501), strict=True):
        view.prefill_done(leg, at)
    view.prefill_done(late, 1.6)
    seen = rows(view)
    assert [(row.prompts, row.tokens, row.squared_tokens) for row in seen] == [
        (1, 100, 10_000), (1, 120, 7_400), (1, 10, 100),
    ]  # fmt: skip
    assert [row.seconds for row in seen] == pytest.approx([0.3, 0.2, 0.1])


def test_nothing_is_said_where_it_is_not_known_what_was_in_the_step() -> None:
    view = world()
    # Two prompts that take more than one step: the first answer comes before the second one was read.
    both = [start(view, 400, 1.0), start(view, 400, 1.0)]
    for leg in both:
        view.prefill_done(leg, 1.5)
    # One of those that wait goes away; those that come after it count again.
    first, gone, other = (start(view, 20, at) for at in (2.0, 2.01, 2.02))
    view.finish(gone, 2.1)
    view.prefill_done(first, 2.2)
    view.prefill_done(other, 2.3)
    assert rows(view) == []
    view.prefill_done(start(view, 20, 3.0), 3.1)
    assert len(rows(view)) == 1
    # Others' work on the worker.
    view.workers.by_name["p"].set_foreign(4.0, prefill_seconds=1.0)
    view.prefill_done(start(view, 20, 4.0), 4.1)
    assert rows(view) == []


def test_a_long_prompt_takes_several_steps() -> None:
    view = world()
    view.prefill_done(start(view, 1200, 1.0), 2.0)
    assert [row.prompts for row in rows(view)] == [3]


def test_only_the_newest_rows_are_kept() -> None:
    view = world()
    for number in range(20):
        view.prefill_done(start(view, 10 + number, float(number)), number + 0.5)
    seen = rows(view)
    assert [row.tokens for row in seen] == [10 + number for number in range(12, 20)]


def engine(view: ClusterView, arrivals: list[tuple[float, int]]) -> Iterator[PrefillRow]:
    """One that prefills all that waits in one step, as fast as TRUTH."""
    waiting = sorted(arrivals)
    here: list[Flight] = []
    now = 0.0
    while waiting or here:
        if not here:
            now = max(now, waiting[0][0])
        while waiting and waiting[0][0] <= now:
            at, tokens = waiting.pop(0)
            here.append(start(view, tokens, at))
        step, here = here, []
        lengths = [leg.load.prompt_tokens for leg in step]
        end = now + TRUTH[0] + TRUTH[1] * sum(lengths) + TRUTH[2] * sum(length**2 for length in lengths)
        while waiting and waiting[0][0] < end:
            at, tokens = waiting.pop(0)
            here.append(start(view, tokens, at))
        now = end
        for leg in step:
            view.prefill_done(leg, now)
        yield from rows(view)


@given(st.lists(st.tuples(st.floats(0.001, 0.5), st.integers(1, 60)), min_size=1, max_size=40))
def test_every_row_is_a_step_of_the_engine(gaps: list[tuple[float, int]]) -> None:
    at = 0.0
    arrivals = [(at := at + gap, tokens) for gap, tokens in gaps]
    for row in engine(world(), arrivals):
        expected = TRUTH[0] + TRUTH[1] * row.tokens + TRUTH[2] * row.squared_tokens
        assert row.seconds == pytest.approx(expected, abs=1e-6)


def test_a_wrong_measurement_is_corrected_by_a_few_steps() -> None:
    arrivals = [(number * 0.07, 20 + 13 * (number % 5)) for number in range(60)]
    online = OnlineSpeed.start(WRONG.coefficients, trust=2.0)
    errors = []
    for row in engine(world(), arrivals):
        k = online.coefficients
        predicted = k.prefill_a + k.prefill_b * row.tokens + k.prefill_c * row.squared_tokens
        errors.append(abs(predicted / row.seconds - 1))
        online = online.updated([row])
    assert errors[0] > 1
    assert max(errors[8:]) < 0.25
    assert all(later <= earlier + 0.25 for earlier, later in pairwise(errors[3:]))


def test_a_prompt_that_is_given_up_on_takes_at_least_so_long() -> None:
    view = world()
    start(view, 100, 1.0)
    waits = start(view, 50, 1.1)
    view.given_up(waits, 9.0)  # it is not known when its step will begin
    view.finish(waits, 9.0)
    assert rows(view) == []
    view = world()
    slow = start(view, 100, 1.0)
    view.given_up(slow, 5.0)
    view.finish(slow, 5.0)
    assert rows(view) == [PrefillRow(prompts=1, tokens=100, squared_tokens=10_000, seconds=pytest.approx(4.0))]
    quick = start(view, 100, 6.0)  # it may still take as long as is predicted
    view.given_up(quick, 6.1)
    view.finish(quick, 6.1)
    assert rows(view) == []


def test_a_first_token_that_nobody_saw_says_nothing() -> None:
    view = world()
    view.prefill_done(start(view, 100, 1.0), 1.3, seen=False)
    assert rows(view) == []
