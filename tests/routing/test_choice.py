"""Choice of workers: tables for decisions, Hypothesis for invariants."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.names import Role
from fulcrum.routing import Chosen, NobodyFits, NobodyThere, OneLeg, TwoLegs, choose, plan, usable_path

P, D, M, X = Role.PREFILL, Role.DECODE, Role.MIXED, Role.DRAINING


@dataclass(frozen=True)
class W:
    name: str
    role: Role
    in_flight: int = 0
    suspect: bool = False


def test_nobody_there_and_nobody_fits_are_different() -> None:
    assert choose([], roles=[P]) == NobodyThere()
    assert choose([W("a", D), W("b", P)], roles=[P], exclude={"b"}) == NobodyFits(known=2, wrong_role=1, excluded=1)
    assert plan([]) == NobodyThere()
    assert plan([W("a", X)]) == NobodyFits(known=1, wrong_role=1, excluded=0)
    assert plan([W("a", P), W("b", D)], exclude={"a", "b"}) == NobodyFits(known=2, wrong_role=0, excluded=2)


def test_ties_rotate_with_the_turn() -> None:
    workers = [W("a", P), W("b", P), W("c", P, in_flight=1)]
    picked = []
    for turn in range(4):
        outcome = choose(workers, roles=[P], turn=turn)
        assert isinstance(outcome, Chosen)
        picked.append(outcome.worker.name)
    assert picked == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("workers", "whole", "exclude", "expected"),
    [
        ([W("p", P), W("d", D)], False, (), ("p", "d")),
        ([W("p", P, 3), W("q", P, 2), W("d", D, 1), W("e", D, 9)], False, (), ("q", "d")),
        # A suspect is taken only when nobody else fits.
        ([W("p", P, 0, True), W("q", P, 9), W("d", D)], False, (), ("q", "d")),
        ([W("p", P, 0, True), W("d", D)], False, (), ("p", "d")),
        # Mixed workers compete with the pair.
        ([W("p", P, 2), W("d", D, 5), W("m", M, 4)], False, (), ("m",)),
        ([W("p", P, 2), W("d", D, 5), W("m", M, 5)], False, (), ("p", "d")),
        ([W("m", M, 4)], False, (), ("m",)),
        # An empty role does not stop the service.
        ([W("p", P), W("q", P, 1)], False, (), ("p",)),
        ([W("d", D)], False, (), ("d",)),
        ([W("p", P), W("d", D)], False, ("p",), ("d",)),
        ([W("p", P), W("d", D)], False, ("d",), ("p",)),
        ([W("p", P), W("d", D, 0, True)], True, (), ("p",)),
        # What two legs cannot carry.
        ([W("p", P), W("d", D, 7)], True, (), ("d",)),
        ([W("p", P), W("d", D), W("m", M, 7)], True, (), ("m",)),
        # Draining workers get nothing.
        ([W("x", X), W("p", P), W("d", D, 3)], False, (), ("p", "d")),
    ],
)
def test_plan(workers: list[W], whole: bool, exclude: tuple[str, ...], expected: tuple[str, ...]) -> None:
    outcome = plan(workers, whole=whole, exclude=exclude)
    if isinstance(outcome, TwoLegs):
        assert (outcome.prefill.name, outcome.decode.name) == expected
    else:
        assert isinstance(outcome, OneLeg)
        assert (outcome.worker.name,) == expected


@pytest.mark.parametrize(
    ("roles", "usable"), [([], False), ([X], False), ([P], True), ([D], True), ([P, D], True), ([X, M], True)]
)
def test_usable_path(roles: list[Role], usable: bool) -> None:
    workers = [W(str(number), role) for number, role in enumerate(roles)]
    assert usable_path(workers) is usable
    assert isinstance(plan(workers), TwoLegs | OneLeg) is usable


fleets = st.lists(
    st.builds(W, st.sampled_from("abcdefgh"), st.sampled_from(list(Role)), st.integers(0, 5), st.booleans()),
    max_size=8,
    unique_by=lambda worker: worker.name,
)


@given(fleets, st.booleans(), st.sets(st.sampled_from("abcdefgh")), st.integers(0, 1000))
def test_a_path_is_found_exactly_when_somebody_in_a_role_is_left(
    workers: list[W], whole: bool, exclude: set[str], turn: int
) -> None:
    outcome = plan(workers, whole=whole, exclude=exclude, turn=turn)
    left = [worker for worker in workers if worker.role != X and worker.name not in exclude]
    if isinstance(outcome, TwoLegs):
        assert not whole
        assert (outcome.prefill.role, outcome.decode.role) == (P, D)
        assert {outcome.prefill.name, outcome.decode.name}.isdisjoint(exclude)
    elif isinstance(outcome, OneLeg):
        assert outcome.worker in left
    else:
        assert not left
        assert isinstance(outcome, NobodyThere) == (not workers)


@given(fleets, st.integers(0, 1000))
def test_choice_is_never_worse_than_another(workers: list[W], turn: int) -> None:
    outcome = choose(workers, roles=[P], turn=turn)
    if isinstance(outcome, Chosen):
        score = (outcome.worker.suspect, outcome.worker.in_flight)
        assert all(score <= (worker.suspect, worker.in_flight) for worker in workers if worker.role is P)
