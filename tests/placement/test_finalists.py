"""The last placements are played, and the best of them is the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from tests.placement.cases import ESTIMATES, inventory, request

from fulcrum.api.names import Role
from fulcrum.placement.errors import TargetTooHighError, TooSlowError
from fulcrum.placement.finalists import TOLERANCE, Workers, highest_kept, played_goodput, workers_of
from fulcrum.placement.finish import carried_by
from fulcrum.placement.objective import Goal
from fulcrum.placement.plan import PlacementPlan
from fulcrum.placement.search import FINALISTS, Request, search

GPUS = inventory(("H100-SXM-80GB", 4, 1), ("A100-SXM-80GB", 8, 1))


@dataclass(slots=True)
class Fake:
    """A cluster that carries so many times what the estimates expect, by its workers."""

    factor: Callable[[Workers], float]
    most_rate: float = 1e9
    plays: list[tuple[Workers, float]] = field(default_factory=list)

    def share(self, workers: Workers, rate: float) -> float:
        self.plays.append((workers, rate))
        carried = self.factor(workers) * carried_by(ESTIMATES, workers)
        return min(1.0, ESTIMATES.target * carried / rate)


def asked(play: Fake | None, goal: Goal = Goal.MOST_GOODPUT, rate: float | None = None) -> Request:
    return request(GPUS, play=play, goal=goal, rate=rate)


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.0, 1.3])
def test_the_goodput_is_the_played_one(factor: float) -> None:
    estimated, fake = search(asked(None)), Fake(lambda _: factor)
    plan = search(asked(fake))
    assert workers_of(plan) == workers_of(estimated)
    assert plan.goodput == pytest.approx(factor * estimated.goodput, rel=1.1 * TOLERANCE)
    assert plan.estimate == estimated.goodput
    assert plan.gap == pytest.approx(estimated.gap), "how far others may be ahead is of the estimates"
    assert plan.goodput <= plan.flow_rate * (1 + 1e-9)
    assert sum(route.rate for route in plan.routes) == pytest.approx(
        plan.goodput / estimated.goodput * sum(route.rate for route in estimated.routes)
    )
    assert len({str(workers) for workers, _ in fake.plays}) <= FINALISTS
    assert len(fake.plays) <= 16


def test_a_placement_that_is_played_better_is_the_plan() -> None:
    usual = workers_of(search(asked(None)))
    plan = search(asked(Fake(lambda workers: 0.8 if workers == usual else 1.0)))
    assert workers_of(plan) != usual
    assert plan.goodput == pytest.approx(plan.estimate, rel=TOLERANCE)


def test_a_plan_that_is_hardly_worse_than_another_one_stays() -> None:
    usual = search(asked(None))
    plan = search(asked(Fake(lambda _: 1.0)))
    assert workers_of(plan) == workers_of(usual)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.2])
def test_the_least_price_carries_the_rate_when_it_is_played(factor: float) -> None:
    most = search(asked(Fake(lambda _: factor)))
    for share in (0.3, 0.6, 0.95):
        plan = search(asked(Fake(lambda _: factor), Goal.LEAST_PRICE, share * most.goodput))
        assert plan.goodput >= share * most.goodput * (1 - TOLERANCE)
        assert plan.bound * (1 - 1e-6) <= plan.price_per_hour <= most.price_per_hour
        assert plan.price_per_hour < most.price_per_hour or share > 0.9


def test_a_rate_that_no_played_plan_carries_is_refused() -> None:
    rate = 0.9 * search(asked(None)).goodput
    with pytest.raises(TargetTooHighError, match="at most"):
        search(asked(Fake(lambda _: 0.7), Goal.LEAST_PRICE, rate))


def test_the_best_ratio_is_the_played_one() -> None:
    def ratio(plan: PlacementPlan) -> float:
        return plan.goodput / plan.price_per_hour

    usual = search(asked(None, Goal.BEST_RATIO))
    worse = workers_of(usual)
    plan = search(asked(Fake(lambda workers: 0.5 if workers == worse else 1.0), Goal.BEST_RATIO))
    assert workers_of(plan) != worse
    assert ratio(usual) / 2 < ratio(plan) <= ratio(usual) * (1 + TOLERANCE)


def test_nothing_that_keeps_the_promise_is_too_slow() -> None:
    with pytest.raises(TooSlowError):
        search(asked(Fake(lambda _: 0.0)))


def test_of_many_workers_a_part_is_played() -> None:
    plan = search(request(inventory(("A100-SXM-80GB", 8, 8))))
    fake = Fake(lambda _: 0.9, most_rate=plan.goodput / 4)
    assert played_goodput(plan, fake, ESTIMATES) == pytest.approx(0.9 * plan.goodput, rel=TOLERANCE)
    for workers, rate in fake.plays:
        assert rate < 0.5 * plan.goodput
        assert sum(count for role in Role for _, count in workers[role]) <= len(plan.workers) / 4 + 4


def test_a_link_that_is_too_narrow_stays_the_limit() -> None:
    plan = search(asked(None))
    narrow = replace(plan, linked=False, goodput=plan.goodput / 2, estimate=plan.goodput / 2)
    assert played_goodput(narrow, Fake(lambda _: 1.0), ESTIMATES) == narrow.estimate


@pytest.mark.parametrize("true", [0.2, 0.9, 1.0, 1.1, 3.0])
def test_the_highest_rate_is_found_with_few_plays(true: float) -> None:
    plays: list[float] = []

    def share(rate: float) -> float:
        plays.append(rate)
        return 1.0 if rate <= true else 0.0

    found = highest_kept(share, 0.9, expected=1.0)
    assert found <= true
    assert found >= true * (1 - TOLERANCE)
    assert len(plays) <= 12
    assert highest_kept(lambda _: 0.0, 0.9, expected=1.0) == 0.0


def test_what_is_kept_only_at_hardly_any_rate_is_kept_at_none() -> None:
    plays: list[float] = []

    def share(rate: float) -> float:
        plays.append(rate)
        return 1.0 if rate < 1e-12 else 0.0  # a play of so many seconds has no sense of small ones

    assert highest_kept(share, 0.9, expected=1.0) == 0.0
    assert min(plays) >= 1e-3


@pytest.mark.parametrize("share", [0.3, 0.4, 0.5])
def test_the_least_price_is_found_where_only_the_largest_plan_carries_what_is_expected(share: float) -> None:
    most = search(asked(Fake(lambda _: 1.0)))
    largest = workers_of(most)
    play = Fake(lambda workers: 1.0 if workers == largest else 0.6)
    plan = search(asked(play, Goal.LEAST_PRICE, share * most.goodput))
    assert plan.goodput >= share * most.goodput * (1 - TOLERANCE)
    assert plan.price_per_hour < most.price_per_hour
