"""Requests that decode on a prefill worker: what becomes of them is learned apart from what decode workers do."""

from __future__ import annotations

import pytest
from tests.admission.world import TPOT_SECONDS, make

from fulcrum.admission import Admission, Admit
from fulcrum.api.names import Role
from fulcrum.routing import ClusterView, Flight, Incoming, Route, route

LONG_TOKENS = 9700.0
"""In time only where it need not be handed over."""


def one_stayed() -> tuple[Admission, ClusterView, Incoming, Flight]:
    """Steps of the decode worker take 40 ms, and its answers are short; a long prompt stayed where it was prefilled."""
    admission, view = make()
    for _ in range(30):
        incoming = admission.incoming(prompt_tokens=1.0, max_tokens=20.0)
        decided = admission.decide(incoming, view, 0.0)
        assert isinstance(decided, Admit)
        view.prefill_done(view.start(incoming, decided.route, 0.0), 0.0)
    long = admission.incoming(prompt_tokens=LONG_TOKENS)
    found = route(long, view, 0.0)
    assert isinstance(found, Route)
    assert found.whole
    assert found.prefill.role is Role.PREFILL
    flight = view.start(long, found, 0.0)
    view.prefill_done(flight, 1.0)
    view.finish(flight, 5.0)
    return admission, view, long, flight


@pytest.mark.parametrize(("times_longer", "allowed_share"), [(1.0, 1.0), (2.0, 0.55), (6.0, 0.27)])
def test_who_stays_has_to_keep_its_pace_by_what_became_of_those_before(
    times_longer: float, allowed_share: float
) -> None:
    admission, view, long, flight = one_stayed()
    before = admission.tpot_margin.factor
    for _ in range(100):
        admission.learn(flight, tpot_seconds=flight.route.tpot_seconds * times_longer)
    assert admission.tpot_margin.factor == before, "that is another matter"
    admission.decide(long, view, 60.0)
    assert view.staying_tpot_seconds == pytest.approx(allowed_share * TPOT_SECONDS, rel=0.05)


def test_it_is_tried_again_when_it_was_refused_for_long() -> None:
    admission, view, long, flight = one_stayed()
    for number in range(10):
        prompt = admission.incoming(prompt_tokens=5000.0, max_tokens=1.0)
        decided = admission.decide(prompt, view, 50.0 + number)
        assert isinstance(decided, Admit)
        other = view.start(prompt, decided.route, 50.0 + number)
        view.prefill_done(other, 50.5 + number)
        view.finish(other, 50.6 + number)
    assert _stays(admission, view, long), "prompts take some of the worker's time"
    for _ in range(200):
        admission.learn(flight, tpot_seconds=10 * TPOT_SECONDS)
    refused = 0
    while refused < 1000 and not _stays(admission, view, long):
        refused += 1
    assert 50 < refused < 300


def _stays(admission: Admission, view: ClusterView, long: Incoming) -> bool:
    decided = admission.decide(long, view, 60.0)
    return isinstance(decided, Admit) and decided.route.whole
