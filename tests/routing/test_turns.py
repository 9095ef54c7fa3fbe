"""Who comes first among workers that are equally free: the one that was used the longest ago."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.routing.cluster import ask, cluster, send

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport
from fulcrum.routing import ClusterView

IDLE = LoadReport(role=Role.PREFILL, role_epoch=0, ready=True, draining=False, running=0, waiting=0)


def test_idle_workers_take_turns() -> None:
    view = cluster(2, 2)
    seen = []
    for now in range(4):
        flight = send(view, now_seconds=float(now), decoding=True)
        seen.append((flight.prefill.name, flight.decode.name))
        view.finish(flight, now + 0.5)
    assert {prefill for prefill, _ in seen[:2]} == {"p0", "p1"}
    assert {decode for _, decode in seen[:2]} == {"d0", "d1"}
    assert seen[2:] == seen[:2]


def served_alone(view: ClusterView, now_seconds: float) -> tuple[str, str]:
    flight = send(view, now_seconds=now_seconds, decoding=True)
    view.finish(flight, now_seconds + 0.5)
    return flight.prefill.name, flight.decode.name


@pytest.mark.parametrize("joins", ["new", "flipped"])
def test_who_comes_to_a_role_is_used_next_and_in_turn_from_then_on(joins: str) -> None:
    view = cluster(3, 3)
    if joins == "new":
        view.workers.remove("p2")
        view.workers.remove("d2")
    else:
        view.workers.put("p2", Role.DECODE, pool="pool")
        view.workers.put("d2", Role.PREFILL, pool="pool")
        # Each has been used in the role that it leaves more than the others will be in it.
        for now in range(9):
            served_alone(view, float(now))
    for now in range(10, 20):
        served_alone(view, float(now))
    view.workers.put("p2", Role.PREFILL, pool="pool")
    view.workers.put("d2", Role.DECODE, pool="pool")
    seen = [served_alone(view, float(now)) for now in range(20, 29)]
    assert [prefill for prefill, _ in seen].count("p2") == 3
    assert [decode for _, decode in seen].count("d2") == 3
    assert "p2" in [prefill for prefill, _ in seen[:2]]
    assert "d2" in [decode for _, decode in seen[:2]]


def test_reports_of_idle_workers_change_no_turns() -> None:
    view = cluster(2, 2)
    first = served_alone(view, 0.0)
    second = served_alone(view, 1.0)
    for number, name in enumerate((*second, *first)):
        view.report(name, IDLE, 2.0 + 0.1 * number)
    assert served_alone(view, 3.0) == first


def test_turns_never_weigh_more_than_a_request() -> None:
    view = cluster(1, 2)
    for now in range(10_003):
        served_alone(view, float(now))
    assert abs(view.workers.by_name["d0"].answers.load - view.workers.by_name["d1"].answers.load) < 1e-5
    assert {served_alone(view, 20_000.0)[1], served_alone(view, 20_001.0)[1]} == {"d0", "d1"}


@pytest.mark.parametrize("moments", [[0] * 9, [0, 1, 6, 6, 7, 8, 8, 9, 9]], ids=["at once", "within 10 ms"])
@pytest.mark.parametrize("known", [True, False])
def test_requests_of_one_moment_go_to_all_workers_alike(known: bool, moments: list[int]) -> None:
    """A gateway's clock stands still within a millisecond; and where speeds are unknown, no queue ends sooner."""
    for view in (cluster(0, 3, known=known), cluster(3, 1, known=known)):
        prompt = ask(100.0 if known else 1.0)
        flights = [send(view, prompt, 1.0 + milliseconds / 1000) for milliseconds in moments]
        assert sorted(Counter(flight.prefill.name for flight in flights).values()) == [3, 3, 3]
