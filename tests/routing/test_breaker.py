"""Circuit breaker and outlier ejection."""

from __future__ import annotations

from fulcrum.api.names import Role
from fulcrum.routing import ClusterView, WorkerView
from fulcrum.routing.breaker import Breaker, BreakerState
from fulcrum.routing.outliers import eject_outliers


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
    assert breaker.worked()
    assert state(breaker) is BreakerState.CLOSED
    assert not breaker.worked(), "it was trusted already"


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
    breaker.tick(30.9)
    assert not breaker.available
    breaker.tick(31.0)
    assert breaker.available


def test_late_answers_do_not_end_an_ejection_and_late_failures_do_not_prolong_a_pause() -> None:
    breaker = Breaker()
    breaker.eject(0.0, 5.0)
    breaker.worked()
    assert not breaker.available
    breaker.failed(4.0)
    breaker.tick(5.0)
    assert breaker.available


class Fleet:
    """Workers that are alike, each with 30 requests behind it."""

    def __init__(self, slow: dict[int, float], failing: frozenset[int] = frozenset(), workers: int = 6) -> None:
        view = ClusterView()
        self.workers = [view.workers.put(f"w{number}", Role.PREFILL)[0] for number in range(workers)]
        for number, worker in enumerate(self.workers):
            for turn in range(30):
                if number in failing and turn % 2 == 0:
                    worker.health.record.answered(failed=True)
                else:
                    worker.health.record.answered()
                    worker.health.record.learn(slow.get(number, 1.0), 1.0)

    def found(self) -> dict[str, float]:
        """Seconds for which each outlier is left alone."""
        return {worker.name: pause_of(worker) for worker in eject_outliers(self.workers, 0.0)}


def pause_of(worker: WorkerView) -> float:
    seconds = 0.0
    while not worker.health.breaker.available:
        seconds += 0.5
        worker.health.breaker.tick(seconds)
    worker.health.breaker.worked()
    return seconds


def test_the_slow_and_the_failing_are_ejected_worst_first_and_never_too_many() -> None:
    assert Fleet({}).found() == {}
    assert Fleet({2: 5.0}).found() == {"w2": 10.0}
    assert Fleet({2: 5.0}, frozenset({4})).found().keys() == {"w2", "w4"}
    assert Fleet({2: 5.0, 3: 4.0}, frozenset({4})).found().keys() == {"w2", "w4"}
    two_out = Fleet({2: 5.0}, workers=7)
    for worker in two_out.workers[5:]:
        worker.health.breaker.eject(0.0, 5.0)
    assert two_out.found() == {}
    assert Fleet({0: 9.0}, workers=1).found() == {}


def test_ejections_get_longer_and_need_new_evidence() -> None:
    fleet = Fleet({2: 5.0})
    slow = fleet.workers[2]
    assert fleet.found() == {"w2": 10.0}
    assert fleet.found() == {}
    for _ in range(25):
        slow.health.record.learn(5.0, 1.0)
    assert fleet.found() == {"w2": 20.0}
