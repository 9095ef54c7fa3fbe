"""What a decision says about itself: in the status, with the decision, of a bounded size."""

from __future__ import annotations

import msgspec
from tests.decide.loads import measurements
from tests.decide.world import World, make_spec, pool

from fulcrum.api.types import Explanation, InferenceClusterSpec, InferenceClusterStatus
from fulcrum.decide.measurements import Measurements
from fulcrum.report import BalancePlan
from fulcrum.rollout import SetRole

SLO = {"ttft": "500ms", "tpot": "25ms", "attainment": 0.95}


def spec(mode: str = "Auto") -> InferenceClusterSpec:
    return make_spec(pool(low=4, high=4), mode=mode, slo=SLO)


def explained(plan: BalancePlan) -> Explanation:
    decision = plan.status.last_decision
    assert decision is not None
    assert decision.explanation is not None
    return decision.explanation


def flipped(mode: str = "Auto") -> BalancePlan:
    """A cluster that is split for prompts, and a load of long answers."""
    world = World(spec())
    world.measurements = measurements(40.0, 2500.0, 20.0)
    world.settle()
    world.pass_time(600)
    world.spec = spec(mode)
    world.measurements = measurements(20.0, 300.0, 500.0)
    return world.plan()


def test_a_flip_names_the_layout_that_stood_and_the_one_that_was_chosen() -> None:
    plan = flipped()
    assert any(isinstance(action, SetRole) for action in plan.actions)
    why, decision = explained(plan), plan.status.last_decision
    assert decision is not None
    stood = next(each for each in why.candidates if each.verdict == "stands")
    chosen = next(each for each in why.candidates if each.verdict.startswith("chosen"))
    assert (stood.layout, chosen.layout) == (decision.from_, decision.to)
    assert chosen.attainment > stood.attainment
    assert why.load.lower_rate < why.load.rate < why.load.upper_rate
    assert (why.load.input_tokens, why.load.output_tokens) == (300.0, 500.0)
    assert why.changes


def test_observing_explains_what_auto_would_do() -> None:
    assert explained(flipped("Observe")).candidates


def test_more_workers_are_explained_by_the_load_that_they_are_sized_by() -> None:
    world = World(make_spec(pool(low=2, high=8), mode="Auto", slo=SLO))
    world.settle()
    world.pass_time(600)
    world.measurements = measurements(30.0, 2000.0, 200.0)
    plan = world.plan()
    sized = explained(plan).candidates[0]
    assert sized.verdict.startswith("the fewest workers for 28 requests/s")  # what surely comes
    assert sized.layout == plan.status.last_decision.to  # type: ignore[union-attr]


def test_what_the_load_did_not_ask_for_has_no_explanation() -> None:
    world = World(spec())
    world.measurements = Measurements()
    decision = world.plan().status.last_decision
    assert decision is not None
    assert decision.explanation is None


def test_it_is_written_with_the_decision_and_not_again() -> None:
    world = World(spec())
    world.settle()
    world.pass_time(600)
    world.measurements = measurements(20.0, 300.0, 500.0)
    for _ in range(5):
        for action in world.plan().actions:
            world.do(action)
    first = world.status.last_decision
    world.measurements = measurements(20.1, 300.0, 500.0)
    assert world.plan().status.last_decision == first


def test_it_is_small_and_survives_the_way_through_the_api() -> None:
    status = flipped().status
    written = msgspec.to_builtins(status)
    assert len(msgspec.json.encode(written["lastDecision"])) < 4096
    assert msgspec.convert(written, InferenceClusterStatus) == status
