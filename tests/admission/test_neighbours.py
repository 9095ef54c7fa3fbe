"""Workers that share cores: what a first token took beside busy neighbours decides who is let in beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.admission.world import SPEED, TTFT_SECONDS

from fulcrum.admission import Admission, Admit, NeighbourSlowdown, Reject
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import ClusterView, Flight

SLOW: WorkerSpeed = replace(SPEED, kv_capacity_tokens=1_000_000)
PROMPT_TOKENS = 4000
"""0.4 s of a promise of 1 s."""


def make(node: str) -> tuple[Admission, ClusterView]:
    admission = Admission(AdmissionPolicy.PREDICTIVE, ttft_seconds=TTFT_SECONDS, tpot_seconds=0.05)
    view = admission.new_view()
    view.workers.set_speed("pool", SLOW)
    for number in range(2):
        view.workers.put(f"p{number}", Role.PREFILL, pool="pool", node=node)
        view.workers.put(f"d{number}", Role.DECODE, pool="pool", node=node)
    return admission, view


def ask(admission: Admission, view: ClusterView, now: float) -> Flight | None:
    """A flight, or None for a request that was turned away."""
    incoming = admission.incoming(prompt_tokens=PROMPT_TOKENS, max_tokens=20)
    decided = admission.decide(incoming, view, now)
    if isinstance(decided, Admit):
        return view.start(incoming, decided.route, now)
    assert isinstance(decided, Reject)
    return None


def serve(admission: Admission, view: ClusterView, now: float, *, slower: float) -> list[bool]:
    """Two requests at a time, as if first tokens took `slower` times longer; whether the second one was let in."""
    let_in = []
    for _ in range(20):
        flights = [ask(admission, view, now), ask(admission, view, now + 0.01)]
        let_in.append(flights[1] is not None)
        for flight in flights:
            if flight is None:
                continue
            took = flight.load.ttft_seconds * (slower if flights[1] is not None else 1.0)
            view.prefill_done(flight, now + took)
            view.finish(flight, now + took + 0.2)
            admission.learnt.learn(flight, ttft_seconds=took, output_tokens=20)
        now += 5.0
    return let_in


def test_an_idle_worker_beside_busy_ones_is_not_free_where_they_share_cores() -> None:
    admission, view = make("one")
    let_in = serve(admission, view, 0.0, slower=4.0)
    assert let_in[0], "nothing is known yet"
    assert sum(let_in[2:6]) == 0, "0.4 s would be 1.6 s beside the other one"
    assert sum(let_in[2:]) <= 3, "tried again every half a minute"
    assert ask(admission, view, 1000.0) is not None, "alone it keeps its promise"


def test_it_is_found_out_again_when_they_share_nothing_any_more() -> None:
    admission, view = make("one")
    serve(admission, view, 0.0, slower=4.0)
    assert all(serve(admission, view, 200.0, slower=1.0)[1:])


@pytest.mark.parametrize(("node", "slower"), [("", 4.0), ("one", 1.05)])
def test_nothing_changes_where_nodes_are_unknown_or_hardware_is_their_own(node: str, slower: float) -> None:
    admission, view = make(node)
    assert all(serve(admission, view, 0.0, slower=slower))
    assert admission.learnt.neighbours.per_neighbour == 0


def test_neighbours_are_those_of_the_node_that_are_busy() -> None:
    admission, view = make("one")
    view.workers.put("far", Role.PREFILL, pool="pool", node="other")
    assert view.workers.busy_neighbours(view.workers.by_name["p0"]) == 0
    flight = ask(admission, view, 0.0)
    assert flight is not None
    assert flight.busy_neighbours == 0
    others = [
        worker for worker in view.workers.by_name.values() if worker is not flight.prefill and worker.node == "one"
    ]
    assert [view.workers.busy_neighbours(worker) for worker in others] == [
        2 - (worker is flight.decode) for worker in others
    ]
    assert view.workers.busy_neighbours(view.workers.by_name["far"]) == 0


def test_what_busy_neighbours_explain_does_not_widen_the_margin_too() -> None:
    """Both are taken off the same promise."""
    admission, view = make("one")
    admission.policy = AdmissionPolicy.OFF
    for number in range(30):
        now = 5.0 * number
        flights = [ask(admission, view, now), ask(admission, view, now + 0.01)]
        for flight, slower in zip(flights, (1.0, 3.0), strict=True):
            assert flight is not None
            took = flight.load.ttft_seconds * slower
            view.prefill_done(flight, now + took)
            view.finish(flight, now + took + 0.2)
            admission.learnt.learn(flight, ttft_seconds=took, output_tokens=20)
    assert admission.learnt.neighbours.factor(2, now) == pytest.approx(3.0, rel=0.05)
    assert admission.learnt.ttft_margins[0].factor < 1.1, "so late was to be expected beside the other one"


def test_an_ordinary_error_of_predictions_is_not_put_down_to_neighbours() -> None:
    """The spread is the margin's: multiplied by each busy neighbour it would turn most requests away."""
    slowdown = NeighbourSlowdown()
    for number in range(32):
        slowdown.learn(0.7 if number % 2 else 1.5, 1, float(number))
    assert slowdown.factor(3, 32.0) == 1.0


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 8), st.floats(0, 100)), max_size=100))
def test_the_factor_is_bounded_and_one_without_busy_neighbours(seen: list[tuple[float, int, float]]) -> None:
    slowdown = NeighbourSlowdown()
    for ratio, busy, now in sorted(seen, key=lambda each: each[2]):
        slowdown.learn(ratio, busy, now)
        assert slowdown.factor(0, now) == 1.0
        assert 1.0 <= slowdown.factor(3, now) <= 1.0 + 3 * 2.0
    assert slowdown.factor(3, 1000.0) == 1.0, "what is old says nothing"
