"""Chaos is decided by its seed, and bounded."""

from __future__ import annotations

from collections import Counter

from fulcrum_local.apiserver.authentication import ADMIN_USER, User
from fulcrum_local.apiserver.chaos import Chaos, ChaosRates
from fulcrum_local.apiserver.request import Target

OPERATOR = User(name="operator", groups=())
PATCH = Target(path="/", verb="patch", version="v1", resource="pods", namespace="ns", name="p")
GET = Target(path="/", verb="get", version="v1", resource="pods", namespace="ns", name="p")


def codes(seed: int, target: Target = PATCH, user: User = OPERATOR, count: int = 2000) -> list[tuple[int, bool]]:
    chaos = Chaos(seed)
    faults = [chaos.fault(target, user) for _ in range(count)]
    return [(fault.error.code, fault.after) if fault is not None else (0, False) for fault in faults]


def test_the_same_seed_decides_the_same() -> None:
    assert codes(1) == codes(1)
    assert codes(1) != codes(2)
    assert [Chaos(1).watch_fate() for _ in range(3)] == [Chaos(1).watch_fate() for _ in range(3)]


def test_how_often_what_goes_wrong() -> None:
    counts = Counter(codes(7))
    assert counts.keys() == {(0, False), (409, False), (429, False), (500, False), (500, True)}
    assert 0.8 < counts[0, False] / 2000 < 0.95
    assert Counter(codes(7, GET)).keys() == {(0, False), (429, False), (500, False)}


def test_a_client_gets_through_after_three_errors() -> None:
    chaos = Chaos(1, ChaosRates(throttled=1.0))
    answers = [chaos.fault(PATCH, OPERATOR) is None for _ in range(8)]
    assert answers == [False, False, False, True, False, False, False, True]


def test_administrators_and_health_checks_get_no_errors() -> None:
    assert set(codes(1, user=ADMIN_USER)) == {(0, False)}
    assert set(codes(1, Target(path="/healthz", verb="get"))) == {(0, False)}


def test_a_fifth_of_the_events_is_late_by_a_bounded_time() -> None:
    chaos = Chaos(3)
    delays = [chaos.delay_seconds() for _ in range(1000)]
    assert 0.15 < sum(delay > 0 for delay in delays) / 1000 < 0.25
    assert max(delays) <= ChaosRates().late_seconds[1]
