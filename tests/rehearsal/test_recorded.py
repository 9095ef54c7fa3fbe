"""Recorded requests, as a rehearsal is asked with them."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.rehearsal.worlds import SLO, split, watch
from tests.simulation.worlds import in_classes, poisson, qos_classes

from fulcrum.api.record import MOST_TOKENS, Outcome, RecordedRequest, RingPage, pack_rows
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.rehearsal import recorded as module
from fulcrum.rehearsal.recorded import Recorded, recorded
from fulcrum.rehearsal.rings import ReadRing, Recording, merge
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.outcome import Outcome as Simulated
from fulcrum.simulation.result import Result
from fulcrum.simulation.seen import Seen

ENDS = (512, 2048, 4096, 6144)
COLUMNS = ("made_tokens", "ended", "refused", "missed")
OUTCOMES = {Simulated.SERVED: Outcome.SERVED, Simulated.REJECTED: Outcome.REJECTED, Simulated.FAILED: Outcome.FAILED}


def request(age: float = 50.0, **fields: Any) -> RecordedRequest:
    usual: dict[str, Any] = {
        "age_seconds": age, "duration_seconds": 2.0, "outcome": Outcome.SERVED, "qos_class": "a", "batch": False,
        "prompt_tokens": 100, "output_tokens": 20, "ttft_seconds": 0.1, "retry_after_seconds": 0.0, "identity": 1,
        "units": 400, "number": 1, "keys": (),
    }  # fmt: skip
    return RecordedRequest(**(usual | fields))


def recording(*requests: RecordedRequest, covers: float = 100.0, **others: Any) -> Recording:
    return Recording(requests=requests, covers_from_seconds=covers, **others)


def of(*requests: RecordedRequest, **others: Any) -> Recorded:
    found = recorded(recording(*requests, **others), ENDS, slo=SLO)
    assert found is not None
    return found


def as_recorded(seen: Seen, now: float, result: Result) -> Recording:
    """What a ring has of a simulated run at `now`."""
    rows = []
    for place in range(len(seen)):
        arrival, end = float(seen.arrival_seconds[place]), float(result.end_seconds[place])
        over = end <= now
        outcome = OUTCOMES[Simulated(result.outcome[place])] if over else Outcome.PENDING
        ttft = float(result.ttft_seconds[place])
        refused = outcome in (Outcome.REJECTED, Outcome.FAILED)
        tokens = result.workload.output_tokens if over else seen.made_tokens
        rows.append(
            request(
                now - arrival, duration_seconds=min(end, now) - arrival, outcome=outcome,
                ttft_seconds=ttft if arrival + ttft <= now else None,
                prompt_tokens=int(seen.load.prompt_tokens[place]),
                output_tokens=None if refused else int(tokens[place]),
                qos_class=seen.load.classes[seen.load.qos_class[place]] or "default",
            )
        )  # fmt: skip
    return recording(*rows, covers=now)


@pytest.mark.parametrize("admission", [AdmissionPolicy.OFF, AdmissionPolicy.PREDICTIVE])
@pytest.mark.parametrize("of_classes", [False, True])
def test_a_recorded_run_is_seen_as_the_simulator_sees_it(admission: AdmissionPolicy, *, of_classes: bool) -> None:
    load = poisson(rate=6.0, count=240, prompt=2500, output=60, seed=4)
    if of_classes:
        load = in_classes(load, ["gold", "silver"] * 120)
    classes = qos_classes(gold=10, silver=5) if of_classes else ()
    seen, result = watch(load, split(2, 2), [2.5, 9.1, 30.0], admission=admission, classes=classes)
    ended = refused = pending = 0
    for now, expected in seen:
        found = recorded(as_recorded(expected, now, result), (), slo=SLO)
        assert found is not None
        assert found.now == now
        np.testing.assert_allclose(found.seen.arrival_seconds, expected.arrival_seconds, atol=1e-9)
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(found.seen, column), getattr(expected, column), err_msg=column)
        np.testing.assert_array_equal(found.seen.load.prompt_tokens, expected.load.prompt_tokens)
        np.testing.assert_array_equal(found.seen.load.output_tokens, expected.load.output_tokens)
        np.testing.assert_array_equal(found.seen.load.qos_class, expected.load.qos_class)
        assert found.seen.load.classes == (("gold", "silver") if of_classes else ("default",))
        assert found.seen.load.prefix_ids is None
        ended += int(expected.ended.sum())
        refused += int(expected.refused.sum())
        pending += int((~expected.ended & ~expected.refused).sum())
        assert 0 < expected.missed.sum() < len(expected) or now < 5
    assert min(ended, pending) > 20
    assert (refused > 0) is (admission is not AdmissionPolicy.OFF)


NOTHING: dict[str, Any] = {"ttft_seconds": None, "output_tokens": None}


@pytest.mark.parametrize(
    ("fields", "made", "row"),
    [
        # ended, refused, missed
        ({}, 20, (True, False, False)),
        ({"ttft_seconds": 3.1, "duration_seconds": 4.0}, 20, (True, False, True)),
        ({"duration_seconds": 0.1 + 19 * 0.16}, 20, (True, False, True)),
        ({"duration_seconds": 90.0, "output_tokens": 1}, 1, (True, False, False)),
        ({"output_tokens": 0}, 1, (True, False, False)),
        ({"output_tokens": None}, 1, (False, True, False)),
        ({"output_tokens": None, "ttft_seconds": 3.1}, 1, (False, True, True)),
        ({"ttft_seconds": None, "duration_seconds": 90.0}, 20, (True, False, False)),
        ({"outcome": Outcome.REJECTED, **NOTHING}, 0, (False, True, True)),
        ({"outcome": Outcome.FAILED, **NOTHING}, 0, (False, True, True)),
        ({"outcome": Outcome.FAILED}, 20, (False, True, True)),
        ({"outcome": Outcome.LEFT}, 20, (False, True, False)),
        ({"outcome": Outcome.LEFT, "ttft_seconds": 3.1}, 20, (False, True, True)),
        ({"outcome": Outcome.LEFT, "ttft_seconds": None, "duration_seconds": 90.0}, 20, (False, True, False)),
        ({"outcome": Outcome.LEFT, **NOTHING}, 0, (False, True, False)),
        ({"outcome": Outcome.LEFT, **NOTHING, "duration_seconds": 3.1}, 0, (False, True, True)),
        ({"outcome": Outcome.PENDING}, 20, (False, False, False)),
        ({"outcome": Outcome.PENDING, "ttft_seconds": 3.1}, 20, (False, False, True)),
        ({"outcome": Outcome.PENDING, "output_tokens": 0}, 1, (False, False, False)),
        ({"outcome": Outcome.PENDING, "ttft_seconds": None, "duration_seconds": 90.0}, 20, (False, False, False)),
        ({"outcome": Outcome.PENDING, "ttft_seconds": None, "output_tokens": 0}, 0, (False, False, False)),
        ({"outcome": Outcome.PENDING, **NOTHING, "duration_seconds": 3.1}, 0, (False, False, True)),
    ],
)
def test_each_outcome_is_a_row(fields: dict[str, Any], made: int, row: tuple[bool, bool, bool]) -> None:
    seen = of(request(**fields)).seen
    assert seen.made_tokens.tolist() == [made]
    assert (seen.ended.tolist(), seen.refused.tolist(), seen.missed.tolist()) == tuple([one] for one in row)
    assert seen.load.output_tokens.tolist() == [max(made, 1)]


def test_no_load_is_left_out() -> None:
    found = of(request(90, outcome=Outcome.INVALID), request(80, batch=True), request(70))
    assert found.seen.arrival_seconds.tolist() == [30.0]
    nothing = of(request(90, outcome=Outcome.INVALID), request(80, batch=True))
    assert (len(nothing.seen), nothing.now) == (0, 100.0)


def test_an_unread_request_is_load_of_the_usual_kind() -> None:
    unread = request(60, outcome=Outcome.UNREAD, prompt_tokens=0, batch=True, qos_class="bulk", **NOTHING)
    others = [request(90 - age, prompt_tokens=tokens) for age, tokens in enumerate((7000, 30, 400))]
    found = of(*others, unread, request(50, outcome=Outcome.INVALID, prompt_tokens=9)).seen
    assert found.load.prompt_tokens.tolist() == [7000, 30, 400, 400]
    assert [found.load.classes[index] for index in found.load.qos_class] == ["a"] * 4
    assert (found.missed.tolist(), found.refused.tolist()) == ([False] * 3 + [True],) * 2
    assert recorded(recording(unread, request(50, batch=True)), ENDS, slo=SLO) is None, "nothing says what it was"
    assert recorded(recording(unread, request(100.5)), ENDS, slo=SLO) is None


def test_with_a_silent_gateway_the_load_is_unknown() -> None:
    assert recorded(recording(request(), silent=(("g-1", "no answer"),)), ENDS, slo=SLO) is None
    assert recorded(recording(covers=0.0), ENDS, slo=SLO) is None
    assert recorded(merge([]), ENDS, slo=SLO) is None


def test_the_window_is_what_is_covered_and_remembered() -> None:
    long_ago = TUNING.memory_seconds + 1
    found = of(request(long_ago), request(TUNING.memory_seconds), request(5), request(-3), covers=3000.0)
    assert found.now == TUNING.memory_seconds
    assert found.seen.arrival_seconds.tolist() == [0.0, found.now - 5, found.now]


def test_prompts_share_the_blocks_of_the_prefix_that_they_share() -> None:
    """1,600 tokens of four bytes: the fourth key ends at 6,144 bytes, three blocks."""
    prompt = {"prompt_tokens": 1600, "units": 6400}
    ids = of(
        request(90, **prompt, keys=(1, 2, 3, 4)),
        request(80, **prompt, keys=(1, 2, 3, 4)),
        request(70, **prompt, keys=(1, 2, 30, 40)),
        request(60, prompt_tokens=700),
    ).seen.load.prefix_ids
    assert ids is not None
    one, again, other, short = ids
    assert [len(each) for each in ids] == [4, 4, 4, 2]
    assert one[:3] == again[:3]
    assert one[:1] == other[:1]
    assert set(one[1:]).isdisjoint(other[1:])
    assert set(one[3:]).isdisjoint(again[3:])
    assert set(short).isdisjoint(one + again + other)


def test_older_requests_go_without_blocks_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BLOCKS", 8)
    prompt = {"prompt_tokens": 1600, "units": 6400, "keys": (1, 2)}
    ids = of(*(request(90 - place, **prompt) for place in range(4))).seen.load.prefix_ids
    assert ids is not None
    assert [len(each) for each in ids] == [0, 0, 4, 4]
    assert ids[2][:1] == ids[3][:1]
    assert of(request(prompt_tokens=MOST_TOKENS, keys=(1,))).seen.load.prefix_ids == ((),)


AGES = st.floats(-1e308, 1e308) | st.floats(-10, 200)
TOKENS = st.integers(0, 3000) | st.sampled_from([0, 1, MOST_TOKENS - 1, MOST_TOKENS])
ROWS = st.tuples(
    AGES, AGES, AGES, AGES, TOKENS, TOKENS, st.just(-1) | TOKENS, st.integers(0, 3), st.integers(0, 5),
    st.integers(0, 3), st.sampled_from(Outcome), st.lists(st.integers(0, 2**64 - 1), max_size=6).map(tuple),
)  # fmt: skip
PAGES = st.builds(
    RingPage,
    age_of_start_seconds=AGES,
    covers_from_seconds=AGES,
    neighbour_left_seconds=st.none() | AGES,
    sampling_depths=st.just(()) | st.just((0,)),
    classes=st.just(("a", "b", "a", "d")),
    batch=st.lists(st.booleans(), max_size=4).map(tuple),
    key_ends=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9000), max_size=6).map(tuple),
    packed_rows=st.lists(ROWS, max_size=12).map(lambda rows: (pack_rows(rows),)),
)


def check(found: Recorded | None) -> None:
    """What holds of every answer; `Workload` and `Seen` check the rest."""
    if found is None:
        return
    seen = found.seen
    assert 0 < found.now <= TUNING.memory_seconds
    assert np.all((seen.arrival_seconds >= 0) & (seen.arrival_seconds <= found.now))
    assert not np.any(seen.ended & seen.refused)
    assert np.all(seen.made_tokens >= seen.ended)
    assert np.all(seen.load.output_tokens == np.maximum(seen.made_tokens, 1))
    assert len(seen.since(found.now / 2)) <= len(seen)
    assert all(seen.load.classes[index] in ("a", "b", "d", None) for index in seen.load.qos_class)


@given(st.lists(PAGES, min_size=1, max_size=3), st.floats(0, 5))
def test_whatever_rings_say_is_taken(pages: list[RingPage], read_seconds_ago: float) -> None:
    rings = [
        ReadRing(gateway=str(place), page=each, read_seconds_ago=read_seconds_ago) for place, each in enumerate(pages)
    ]
    merged = merge(rings)
    check(recorded(merged, pages[0].key_ends, slo=SLO))
    check(recorded(replace(merged, silent=(), covers_from_seconds=100.0), pages[0].key_ends, slo=SLO))


@pytest.mark.parametrize("wrong", [nan, inf, -inf])
@pytest.mark.parametrize("field", ["age_seconds", "duration_seconds", "ttft_seconds"])
def test_a_time_that_is_none_does_no_harm(field: str, wrong: float) -> None:
    fields: dict[str, Any] = {field: wrong}
    check(of(request(10), structs.replace(request(20), **fields), request(30, outcome=Outcome.PENDING, **NOTHING)))
    check(of(request(10), covers=inf))
    assert recorded(recording(request(10), covers=nan), ENDS, slo=SLO) is None


def test_more_classes_than_a_cluster_has_do_no_harm() -> None:
    load = of(*(request(qos_class=f"{number:05}") for number in range(40_000))).seen.load
    assert load.classes[:2] == ("00000", "00001")
    assert load.classes[-1] is None
    assert int(load.qos_class.max()) == len(load.classes) - 1
