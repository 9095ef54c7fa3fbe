"""Requests that decode on a prefill worker: what becomes of them is learned apart from what decode workers do."""

from __future__ import annotations

import pytest
from tests.admission.world import TPOT_SECONDS, make

from fulcrum.admission import Admit
from fulcrum.api.names import Role
from fulcrum.routing import Route, route


@pytest.mark.parametrize(("times_longer", "allowed_share"), [(1.0, 1.0), (2.0, 0.55), (6.0, 0.27)])
def test_who_stays_has_to_keep_its_pace_by_what_became_of_those_before(
    times_longer: float, allowed_share: float
) -> None:
    admission, view = make()
    for _ in range(30):  # steps of the decode worker take 40 ms, and its answers are short
        incoming = admission.incoming(prompt_tokens=1.0, max_tokens=20.0)
        decided = admission.decide(incoming, view, 0.0)
        assert isinstance(decided, Admit)
        view.prefill_done(view.start(incoming, decided.route, 0.0), 0.0)
    before = admission.tpot_margin.factor
    long = admission.incoming(prompt_tokens=9700.0)
    found = route(long, view, 0.0)
    assert isinstance(found, Route)
    assert found.whole
    assert found.prefill.role is Role.PREFILL
    flight = view.start(long, found, 0.0)
    view.prefill_done(flight, 1.0)
    view.finish(flight, 5.0)
    for _ in range(100):
        admission.learn(flight, tpot_seconds=found.tpot_seconds * times_longer)
    assert admission.tpot_margin.factor == before, "that is another matter"
    admission.decide(long, view, 60.0)
    assert view.staying_tpot_seconds == pytest.approx(allowed_share * TPOT_SECONDS, rel=0.05)
