"""Prompts that are too long for the promise on any worker are served late, where that takes little and from nobody."""

from __future__ import annotations

import pytest
from tests.admission.world import make

from fulcrum.admission import Admission, Admit, Reject
from fulcrum.api.reasons import Reason
from fulcrum.routing import ClusterView, Flight

TOO_LONG = 10_010.0
"""Tokens: 1.001 s of prefill for a promise of 1 s, and 29 ms until the first token comes from the other worker."""


def served(admission: Admission, view: ClusterView, prompt_tokens: float, now: float) -> Flight | None:
    incoming = admission.incoming(prompt_tokens=prompt_tokens)
    decided = admission.decide(incoming, view, now)
    if isinstance(decided, Admit):
        return view.start(incoming, decided.route, now)
    assert isinstance(decided, Reject)
    assert decided.reason is Reason.TTFT_UNREACHABLE
    return None


def after(prompts: int) -> tuple[Admission, ClusterView]:
    """Two pairs that have prefilled as many prompts of 5,000 tokens; both still decode."""
    admission, view = make(prefills=2, decodes=2)
    for number in range(prompts):
        flight = served(admission, view, 5000.0, 2.0 * number)
        assert flight is not None
        view.prefill_done(flight, 2.0 * number + 0.5)
        if number < prompts - 2:
            view.finish(flight, 2.0 * number + 1)
    return admission, view


@pytest.mark.parametrize(
    ("before", "prompt_tokens", "expected"),
    [
        (100, TOO_LONG, True),
        (100, 10_200.0, False),  # late by too much
        (10, TOO_LONG, False),  # a tenth of 5 s is not enough for it
    ],
)
def test_one_is_served_where_room_was_saved_for_it(before: int, prompt_tokens: float, expected: bool) -> None:
    admission, view = after(before)
    assert (served(admission, view, prompt_tokens, 2.0 * before) is not None) is expected


def test_room_is_taken_by_each_of_them() -> None:
    admission, view = after(400)
    taken = 0
    for number in range(10):
        flight = served(admission, view, TOO_LONG, 800.0 + 2 * number)
        if flight is not None:
            view.prefill_done(flight, flight.started_at + 1.1)
            view.finish(flight, flight.started_at + 1.2)
            taken += 1
    assert taken == 4, "4 s are saved at most, and a little comes of those that are let in"
    assert (admission.admitted[0], admission.admitted_late[0]) == (404, 4)


def test_it_takes_nothing_from_anybody() -> None:
    admission, view = after(100)
    assert all(served(admission, view, 5000.0, 200.0) is not None for _ in range(2))
    assert served(admission, view, TOO_LONG, 200.0) is None, "both prefill workers have something to do"
    admission, view = after(100)
    for _ in range(500):
        admission.tpot_margin.learn(0.05, 0.05, 0.05)
    for number in range(72):
        flight = served(admission, view, 1.0, 200.0 + 0.1 * number)
        assert flight is not None
        view.prefill_done(flight, flight.started_at)
    assert served(admission, view, TOO_LONG, 207.0) is None, "decode steps are near their promise"
