"""Circuit breaker and outlier ejection."""

from __future__ import annotations

from fulcrum.routing import Breaker, BreakerState, OutlierEjector, OutlierRule


def state(breaker: Breaker) -> BreakerState:
    return breaker.state


def test_one_failure_opens_and_one_success_after_a_pause_closes() -> None:
    breaker = Breaker()
    breaker.failed(10.0)
    breaker.tick(10.4)
    assert state(breaker) is BreakerState.OPEN
    breaker.tick(10.5)
    assert state(breaker) is BreakerState.HALF_OPEN
    breaker.taken(10.6)
    assert not breaker.available, "one request tries it, not all of them"
    breaker.worked()
    assert state(breaker) is BreakerState.CLOSED
    assert breaker.spotless


def test_pauses_grow_to_a_bound_and_start_anew_after_success() -> None:
    breaker, now, pauses = Breaker(), 0.0, []
    for _ in range(9):
        breaker.failed(now)
        began = now
        while not breaker.available:
            now += 0.5
            breaker.tick(now)
        pauses.append(now - began)
        breaker.taken(now)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    breaker.worked()
    breaker.failed(now)
    breaker.tick(now + 0.5)
    assert breaker.available


def test_a_probe_that_is_never_heard_of_counts_as_none() -> None:
    breaker = Breaker()
    breaker.failed(0.0)
    breaker.tick(1.0)
    breaker.taken(1.0)
    breaker.tick(10.9)
    assert not breaker.available
    breaker.tick(11.0)
    assert breaker.available


def test_a_threshold_counts_failures_in_a_row() -> None:
    breaker = Breaker(threshold=3)
    for _ in range(2):
        breaker.failed(0.0)
        breaker.failed(0.0)
        assert breaker.available
        breaker.worked()
    for _ in range(3):
        breaker.failed(0.0)
    assert not breaker.available


def test_late_answers_do_not_end_an_ejection_and_late_failures_do_not_prolong_a_pause() -> None:
    breaker = Breaker()
    breaker.eject(0.0, 5.0)
    breaker.worked()
    assert not breaker.available
    breaker.failed(4.0)
    breaker.tick(5.0)
    assert breaker.available


def observed(slow: dict[str, float], failing: frozenset[str] = frozenset(), workers: int = 6) -> OutlierEjector:
    ejector = OutlierEjector(OutlierRule(min_samples=10))
    for number in range(workers):
        for turn in range(30):
            name = f"w{number}"
            if name in failing and turn % 2 == 0:
                ejector.failed(name)
            else:
                ejector.answered(name, 1)
                ejector.observe(name, slow.get(name, 1.0))
    return ejector


NAMES = [f"w{number}" for number in range(6)]


def test_the_slow_and_the_failing_are_ejected_worst_first_and_never_too_many() -> None:
    assert observed({}).eject(NAMES) == {}
    assert observed({"w2": 5.0}).eject(NAMES) == {"w2": 10.0}
    assert observed({"w2": 5.0}, frozenset({"w4"})).eject(NAMES).keys() == {"w2", "w4"}
    assert observed({"w2": 5.0, "w3": 4.0}, frozenset({"w4"})).eject(NAMES).keys() == {"w2", "w4"}
    assert observed({"w2": 5.0}).eject(NAMES[:5], out_of_use=2) == {}
    assert observed({"w0": 9.0}, workers=1).eject(["w0"]) == {}


def test_ejections_get_longer_and_need_new_evidence() -> None:
    ejector = observed({"w2": 5.0})
    assert ejector.eject(NAMES) == {"w2": 10.0}
    assert ejector.eject(NAMES) == {}
    for _ in range(10):
        ejector.observe("w2", 5.0)
    assert ejector.eject(NAMES) == {"w2": 20.0}
    ejector.forget("w2")
    assert ejector.eject(NAMES) == {}
