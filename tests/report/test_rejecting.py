"""Requests that are turned away: they are load like any other, and somebody on call reads what to do about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.decide.loads import measurements
from tests.decide.world import World, make_spec, pool

from fulcrum.api.reasons import Reason
from fulcrum.api.types import Condition, ConditionStatus, ConditionType
from fulcrum.decide.measurements import Measurements
from fulcrum.report import BalancePlan, plan

TTFT, SHARE = Reason.TTFT_UNREACHABLE, Reason.CLASS_SHARE


def world(mode: str = "Manual", *, most: int = 4, **others: Any) -> World:
    slo = {"ttft": "500ms", "tpot": "25ms", "attainment": 0.95}
    made = World(make_spec(pool(low=2, high=most), mode=mode, slo=slo, ratio=(2, 2), **others))
    made.measurements = measurements(5.0)
    made.settle()
    made.pass_time(60)
    return made


def turned_away(known: Measurements, rejections: Mapping[Reason, float]) -> Measurements:
    assert known.traffic is not None
    traffic = replace(known.traffic, rejected=sum(rejections.values()), rejections=rejections)
    return replace(known, traffic=traffic)


def planned(made: World) -> BalancePlan:
    result = plan(made.snapshot(), made.now)
    made.status = result.status
    return result


def degraded(result: BalancePlan) -> Condition:
    return next(c for c in result.conditions if c.type is ConditionType.DEGRADED)


def test_it_says_why_and_what_to_do() -> None:
    made = world()
    made.measurements = turned_away(made.measurements, {TTFT: 0.12, SHARE: 0.02})
    result = planned(made)
    said = degraded(result)
    assert (said.status, said.reason) == (ConditionStatus.TRUE, Reason.REQUESTS_REJECTED)
    assert said.message == (
        "More than a tenth of all requests are turned away, most of them for TtftUnreachable: first tokens would come "
        "too late: prefill is short. All 4 workers serve: change spec.balance.ratio, raise workers.max of a pool: "
        "p (4); or widen spec.slo."
    )
    assert [event.reason for event in result.events] == [Reason.REQUESTS_REJECTED]
    assert planned(made).events == (), "once"


@pytest.mark.parametrize(
    ("mode", "advice"),
    [("Manual", "change spec.balance.ratio, raise"), ("Observe", "set spec.balance.mode to Auto, raise")],
)
def test_only_what_the_mode_reads_is_to_be_changed(mode: str, advice: str) -> None:
    made = world(mode)
    made.measurements = turned_away(made.measurements, {TTFT: 0.6})
    planned(made)
    made.settle()
    assert f"All 4 workers serve: {advice} workers.max" in degraded(planned(made)).message


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason.TPOT_UNREACHABLE, "decode is short"),
        (Reason.KV_EXHAUSTED, "KV cache is full"),
        (Reason.CLASS_SHARE, "kept for other classes"),
        (Reason.QUEUE_FULL, "a queue or a batch is full"),
    ],
)
def test_every_reason_has_its_words(reason: Reason, words: str) -> None:
    made = world()
    made.measurements = turned_away(made.measurements, {reason: 0.6})
    message = degraded(planned(made)).message
    assert message.startswith("More than half")
    assert words in message


def test_it_neither_comes_nor_goes_at_every_burst() -> None:
    made = world()
    said = []
    for share in (0.02, 0.049, 0.06, 0.03, 0.011, 0.009, 0.04, 0.06, 0.0):
        made.measurements = turned_away(measurements(5.0), {TTFT: share} if share else {})
        said.append(degraded(planned(made)).status is ConditionStatus.TRUE)
    assert said == [False, False, True, True, True, False, False, True, False]


@pytest.mark.parametrize("reason", [Reason.NO_WORKER, Reason.OVERLOADED, Reason.NEVER_FITS])
def test_what_more_workers_would_not_help_is_not_said(reason: Reason) -> None:
    made = world()
    made.measurements = turned_away(made.measurements, {reason: 0.5})
    assert degraded(planned(made)).status is ConditionStatus.FALSE


def test_a_few_requests_say_nothing() -> None:
    made = world()
    made.measurements = turned_away(measurements(0.5), {TTFT: 0.5})
    assert degraded(planned(made)).status is ConditionStatus.FALSE


def test_auto_that_is_not_at_its_maximum_says_that_it_acts() -> None:
    made = world("Auto", most=12)
    made.measurements = turned_away(measurements(100.0), {TTFT: 0.5})
    message = degraded(planned(made)).message
    assert "of at most 12 workers serve; the balance adds more where they help" in message


def test_over_capacity_says_both() -> None:
    made = world("Auto")
    made.measurements = turned_away(measurements(500.0), {TTFT: 0.7})
    made.settle()
    result = planned(made)
    said = degraded(result)
    assert said.reason is Reason.OVER_CAPACITY
    assert "More arrives than all 4 workers can serve" in said.message
    assert "TtftUnreachable" in said.message
    assert "raise workers.max of a pool: p (4)" in said.message


@pytest.mark.parametrize("rejected", [0.0, 0.4, 0.8])
def test_what_is_turned_away_counts_as_load(rejected: float) -> None:
    """Auto scales by what is offered: with and without rejections to the same number of workers."""
    made = world("Auto", most=16)
    made.measurements = turned_away(measurements(40.0), {TTFT: rejected} if rejected else {})
    made.settle()
    without = world("Auto", most=16)
    without.measurements = measurements(40.0)
    without.settle()
    assert made.roles() == without.roles()
    assert sum(made.roles().values()) > 4
