"""Workloads: columns, transformations, arrival processes, lengths, and the named ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.worlds import make_workload, poisson

from fulcrum.simulation.arrivals import DAY_SECONDS, arrivals, constant, ladder, ramp, seasons, sine
from fulcrum.simulation.generate import WORKLOADS, phased, stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.traffic import DECODE_HEAVY, PREFILL_HEAVY, Request, TraceError, load_trace
from fulcrum.simulation.workload import Workload, merged

BURSTGPT_HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_columns_of_requests_in_order_of_arrival_with_classes_and_prefixes() -> None:
    load = Workload.of(
        [
            Request(arrival_seconds=2.0, prompt_tokens=3, output_tokens=4, qos_class="premium"),
            Request(arrival_seconds=0.0, prompt_tokens=1, output_tokens=2, prefix_hash_ids=(7,)),
        ]
    )
    assert load.arrival_seconds.tolist() == [0.0, 2.0]
    assert [load.classes[n] for n in load.qos_class] == [None, "premium"]
    assert load.prefix_ids == ((7,), ())
    assert load.scaled(2).duration_seconds == 1.0
    assert load.between(1.0, 3.0).arrival_seconds.tolist() == [1.0]
    assert load.between(1.0, 3.0).prefix_ids == ((),)


def test_merging_puts_requests_in_order() -> None:
    part, load = (poisson(rate=10, count=count, prompt=100, output=10, seed=count) for count in (3_000, 10_000))
    both = merged([part, load])
    assert len(both) == len(part) + len(load)
    assert np.all(np.diff(both.arrival_seconds) >= 0)
    classes = merged(
        [
            stream(
                rate=constant(5),
                lengths=LogNormalLengths(prompt_mean=100, output_mean=10),
                seconds=100,
                seed=n,
                qos_class=name,
            )
            for n, name in enumerate(["premium", "free"])
        ]
    )
    assert classes.classes == ("free", "premium")
    assert 0.3 < (classes.qos_class == 1).mean() < 0.7


@pytest.mark.parametrize(
    "bad",
    [
        lambda: make_workload([(1.0, 1, 1), (0.0, 1, 1)]),
        lambda: make_workload([(0.0, 0, 1)]),
        lambda: make_workload([(0.0, 1, 1)], prefix_ids=()),
        lambda: poisson(rate=1, count=5, prompt=9, output=9, seed=1).scaled(0),
        lambda: arrivals(constant(-1), seconds=5, random=np.random.default_rng(1)),
        lambda: LogNormalLengths(prompt_mean=0, output_mean=1),
    ],
)
def test_nonsense_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"must|negative"):
        bad()  # type: ignore[operator]


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_vary_as_asked(cv: float) -> None:
    times = arrivals(constant(50), seconds=2000, random=np.random.default_rng(4), cv=cv)
    gaps = np.diff(times)
    assert len(times) == pytest.approx(100_000, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-3)


@pytest.mark.parametrize(
    ("rate", "at", "expected"),
    [
        (ramp(2, 10, end_seconds=100), 50.0, 6.0),
        (sine(5, 45, period_seconds=600), 150.0, 45.0),
        (ladder([(10, 1), (10, 9), (10, 5)]), 15.0, 9.0),
        (ladder([(10, 1), (10, 9), (10, 5)]), 99.0, 5.0),
        (seasons(10, day=0.5), 15 * 3600.0, 15.0),
        (seasons(10, day=0.5, weekend=0.5), 5 * DAY_SECONDS + 15 * 3600.0, 7.5),
    ],
)
def test_rates(rate: object, at: float, expected: float) -> None:
    assert rate(np.array([at]))[0] == pytest.approx(expected)  # type: ignore[operator]


def test_arrivals_follow_the_rate() -> None:
    times = arrivals(sine(5, 45, period_seconds=600), seconds=60_000, random=np.random.default_rng(5))
    counts = np.histogram(times % 600, bins=6, range=(0, 600))[0] / 100 / 100
    middles = (np.arange(6) + 0.5) / 6
    expected = 25 + 20 * np.sin(2 * np.pi * middles) * np.sinc(1 / 6)
    np.testing.assert_allclose(counts, expected, rtol=0.03)


@given(seed=st.integers(0, 1000), rate=st.floats(0.01, 100), cv=st.floats(0, 5), seconds=st.floats(1, 100))
def test_arrivals_ascend_inside_their_time(seed: int, rate: float, cv: float, seconds: float) -> None:
    times = arrivals(constant(rate), seconds=seconds, random=np.random.default_rng(seed), cv=cv)
    assert np.all(np.diff(times) >= 0)
    assert np.all((times >= 0) & (times <= seconds))


def test_phases_have_their_own_lengths() -> None:
    load = phased([PREFILL_HEAVY, DECODE_HEAVY], seed=1)
    first = load.arrival_seconds < PREFILL_HEAVY.seconds
    assert load.prompt_tokens[first].mean() > 3 * load.prompt_tokens[~first].mean()


@pytest.mark.parametrize("name", WORKLOADS)
def test_named_workloads_are_a_function_of_their_seed(name: str) -> None:
    one, two, other = WORKLOADS[name](1), WORKLOADS[name](1), WORKLOADS[name](2)
    np.testing.assert_array_equal(one.arrival_seconds, two.arrival_seconds)
    np.testing.assert_array_equal(one.prompt_tokens, two.prompt_tokens)
    assert len(one) > (1_000 if name == "swing" else 10_000)  # it has to be simulated in seconds
    assert len(one) != len(other) or not np.array_equal(one.arrival_seconds, other.arrival_seconds)


def test_burstgpt_is_known_by_its_columns_and_failures_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(
        BURSTGPT_HEADER + "5,ChatGPT,472,18,490,Conversation log\n6.5,GPT-4,10,0,10,API log\n9,GPT-4,7,3,10,x\n"
    )
    requests = load_trace(path)
    assert [(r.arrival_seconds, r.prompt_tokens, r.output_tokens) for r in requests] == [(0.0, 472, 18), (4.0, 7, 3)]


@pytest.mark.parametrize(
    ("row", "message"),
    [("soon,m,1,1,2,l\n", "Timestamp: expected seconds"), ("1,m,x,1,2,l\n", "Request tokens: expected a whole number"),
     ("1,m,1,1\n", "expected 6 columns, got 4")],
)  # fmt: skip
def test_burstgpt_errors_name_the_place(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(BURSTGPT_HEADER + row)
    with pytest.raises(TraceError, match=f":2: .*{message}"):
        load_trace(path)
