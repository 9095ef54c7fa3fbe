"""Engines prefill what waits by the priority of its class: who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.routing.cluster import SPEED, ask, find

from fulcrum.api.names import Role
from fulcrum.routing import ClusterView, Flight

HIGH, MIDDLE, LOW = 0, 1, 2


def one_pair(*, step_tokens: int = 1000) -> ClusterView:
    """Prompts of 1,000 tokens take 0.1 s."""
    view = ClusterView(class_names=("high", "middle", "low"), ranks=(0, 1, 2), ttft_seconds=5.0, tpot_seconds=0.05)
    view.workers.set_speed("pool", replace(SPEED, max_batched_tokens=step_tokens))
    view.workers.put("p0", Role.PREFILL, pool="pool")
    view.workers.put("d0", Role.DECODE, pool="pool")
    return view


def queue(view: ClusterView, *classes: int, at: float = 0.0) -> list[Flight]:
    return [view.start(ask(qos=qos), find(view, ask(qos=qos), at), at) for qos in classes]


@pytest.mark.parametrize(
    ("ahead", "qos", "waits", "begun"),
    [
        ((LOW, LOW, LOW), HIGH, 0.1, 0.1),
        ((LOW, LOW, LOW), LOW, 0.3, 0.0),
        ((LOW, MIDDLE, HIGH), HIGH, 0.1, 0.0),
        ((HIGH, HIGH, LOW), MIDDLE, 0.2, 0.0),
        ((MIDDLE, LOW, LOW), HIGH, 0.1, 0.1),
    ],
)
def test_only_what_has_begun_of_lower_classes_is_waited_for(
    ahead: tuple[int, ...], qos: int, waits: float, begun: float
) -> None:
    """All of them came before the step under way began, which takes one prompt: the first of the highest rank."""
    view = one_pair()
    queue(view, *ahead)
    found = find(view, ask(qos=qos))
    assert found.wait_seconds == pytest.approx(waits)
    assert found.begun_seconds == pytest.approx(begun)


def test_as_many_have_begun_as_a_step_takes() -> None:
    view = one_pair(step_tokens=2500)
    flights = queue(view, LOW, LOW, LOW, LOW)
    worker = view.workers.by_name["p0"]
    assert worker.prompts.overtaken(HIGH) == [flights[3].load], (
        "the third is in the step in part, and goes on before what waits"
    )
    assert worker.prompts.overtaken(LOW) == []


def test_who_came_after_the_step_began_is_overtaken_in_the_order_of_service() -> None:
    view = one_pair(step_tokens=8000)
    begun = queue(view, LOW)
    later = queue(view, LOW, MIDDLE, HIGH, LOW, at=0.05)
    worker = view.workers.by_name["p0"]
    assert worker.prompts.overtaken(HIGH) == [later[1].load, later[0].load, later[3].load]
    assert worker.prompts.overtaken(MIDDLE) == [later[0].load, later[3].load]
    view.prefill_done(begun[0], 0.1)
    assert worker.prompts.overtaken(HIGH) == [], "all of them are in the next step"


def test_a_step_that_takes_longer_than_predicted_is_waited_for() -> None:
    view = one_pair(step_tokens=2000)
    queue(view, LOW, LOW)
    assert find(view, ask(qos=HIGH), 0.05).wait_seconds == pytest.approx(0.15)
    assert find(view, ask(qos=HIGH), 0.15).wait_seconds == pytest.approx(0.05), "both are in the step"
    assert find(view, ask(qos=HIGH), 0.3).wait_seconds == pytest.approx(0.05), "the longer it hangs ..."


def test_what_ends_or_is_taken_away_is_no_longer_waited_for() -> None:
    view = one_pair()
    first, second, third = queue(view, LOW, HIGH, LOW)
    worker = view.workers.by_name["p0"]
    assert worker.prompts.lower_seconds(HIGH) == pytest.approx(0.2)
    view.finish(third, 0.0)
    view.prefill_done(second, 0.1)
    assert worker.prompts.lower_seconds(HIGH) == pytest.approx(0.1)
    view.prefill_done(first, 0.2)
    assert worker.prompts.lower_seconds(HIGH) == 0
    assert find(view, ask(qos=HIGH), 0.2).wait_seconds == 0


def test_without_ranks_it_is_first_come_first_served() -> None:
    view = ClusterView(class_names=("high", "low"))
    view.workers.set_speed("pool", SPEED)
    view.workers.put("p0", Role.PREFILL, pool="pool")
    view.workers.put("d0", Role.DECODE, pool="pool")
    queue(view, 1, 1)
    assert find(view, ask(qos=0)).wait_seconds == pytest.approx(0.2)
