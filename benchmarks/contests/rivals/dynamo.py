"""NVIDIA Dynamo's planner (1.6.1): no flips, no headroom, no admission.

Throughput mode forecasts the load of the next interval and divides it by what one worker can do; load mode compares the
latency that the next request would see with the SLO and moves each role by one worker at a time. Together, throughput
gives the least that load mode may go down to. Workers prefill or decode, or do both (the planner's aggregated mode).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from math import ceil
from typing import Final

from contests.rivals.dynamo_budget import Budget, Counts
from contests.rivals.dynamo_expectation import Expectation
from contests.rivals.replicas import ReplicaPolicy, count
from fulcrum.api.names import Role
from fulcrum.api.types import ForecastMethod
from fulcrum.capacity.speed import Speed
from fulcrum.forecast.forecaster import Forecaster
from fulcrum.load.demand import LatencyTargets
from fulcrum.load.traffic import Traffic
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.speed import StepTimes
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import SimulatedWorker

_MOST_CHANGE: Final = 8
"""Workers of one role by which a throughput decision may differ from what is there, as the planner's default."""
_LOAD_WINDOWS: Final = 12
"""Load intervals over which mean lengths are taken."""


class DynamoMode(StrEnum):
    """Which of the planner's rules are switched on."""

    THROUGHPUT = "throughput"
    LOAD = "load"
    BOTH = "both"


class Dynamo(ReplicaPolicy):
    """The planner with its defaults: 180 s between throughput decisions, 5 s between load decisions, ARIMA.

    What it has decided stands until it decides again: a worker that has no room yet starts when another one is gone.
    """

    watches_pods = True

    def __init__(
        self,
        *,
        pool: str,
        speed: Speed,
        slo: LatencyTargets,
        begin: Mapping[Role, int],
        least_workers: int = 0,
        most_workers: int,
        mode: DynamoMode = DynamoMode.THROUGHPUT,
        throughput_seconds: float = 180.0,
        load_seconds: float = 5.0,
        sensitivity: float = 0.8,
        predictor: ForecastMethod = ForecastMethod.ARIMA,
    ) -> None:
        """`begin`: prefill and decode workers, or mixed ones. `least_workers`, `most_workers`: its GPU budget.

        `sensitivity`: load mode gives a worker back when the others stay below this share of the SLO.
        """
        super().__init__(pool=pool, begin=begin, most_workers=most_workers)
        self._mixed = Role.MIXED in begin
        self.name = f"dynamo {'aggregated ' if self._mixed else ''}{mode.value}"
        self._speed, self._slo, self._mode, self._times = speed, slo, mode, StepTimes(speed)
        self._sensitivity = sensitivity
        every = {DynamoMode.THROUGHPUT: throughput_seconds, DynamoMode.LOAD: load_seconds}
        self._every: dict[DynamoMode, float] = every if mode is DynamoMode.BOTH else {mode: every[mode]}
        self._forecaster = Forecaster(method=predictor, clock=lambda: 0.0)
        self._budget = Budget(least=least_workers, most=most_workers)
        self._roles = tuple(begin)
        self._wanted: Counts = tuple(begin.values())
        self._least: Counts = (1,) * len(begin)
        self._due = dict(self._every)

    def on_tick(self, view: View) -> TickResult:
        for rule, every_seconds in self._every.items():
            if view.now >= self._due[rule]:
                self._due[rule] += every_seconds
                decide = self._from_throughput if rule is DynamoMode.THROUGHPUT else self._from_load
                self._wanted = decide(view, every_seconds)
        actions = self.towards(dict(zip(self._roles, self._wanted, strict=True)), view)
        return TickResult(actions=actions, again_seconds=min(self._due.values()) - view.now)

    def _from_throughput(self, view: View, every_seconds: float) -> Counts:
        series = view.series(every_seconds)
        forecast = self._forecaster.update(series, horizon_seconds=every_seconds)
        expected = self._expectation(view.traffic(every_seconds))
        if forecast is None or expected is None:
            return self._wanted
        needed = [max(1, ceil(forecast.rate[0] / rate)) for rate in expected.rates()]
        pairs = zip(needed, self._wanted, strict=True)
        bounded = tuple(min(max(need, now - _MOST_CHANGE), now + _MOST_CHANGE) for need, now in pairs)
        fitted = self._budget.under_ceiling(self._wanted, bounded)
        if self._mode is DynamoMode.BOTH:
            self._least = fitted
            return self._wanted
        return self._budget.guarded(self._wanted, fitted)

    def _from_load(self, view: View, every_seconds: float) -> Counts:
        serving: dict[Role, list[SimulatedWorker]] = {role: [] for role in self._roles}
        for pod in view.pods:
            if pod.deleting or not pod.ranks:
                return self._wanted  # the last change is still under way
            serving[pod.role].extend(pod.ranks)
        expected = self._expectation(view.traffic(every_seconds * _LOAD_WINDOWS))
        if expected is None or tuple(count(view, role) for role in self._roles) != self._wanted:
            return self._wanted
        prompts, answers = serving[self._roles[0]], serving[self._roles[-1]]
        steps: Counts = (
            _step(prompts, expected.late_prompt, partial(expected.prompts_fit, sensitivity=self._sensitivity)),
            _step(answers, expected.late_token, partial(expected.answers_fit, sensitivity=self._sensitivity)),
        )
        if self._mixed:
            steps = (max(steps),)
        asked = tuple(workers + step for workers, step in zip(self._wanted, steps, strict=True))
        floored = tuple(max(workers, least) for workers, least in zip(asked, self._least, strict=True))
        if floored != asked:
            floored = self._budget.under_ceiling(self._wanted, floored)
        return self._budget.guarded(self._wanted, floored)

    def _expectation(self, traffic: Traffic) -> Expectation | None:
        if traffic.isl_tokens is None or traffic.osl_tokens is None:
            return None
        return Expectation(
            speed=self._speed,
            times=self._times,
            slo=self._slo,
            mixed=self._mixed,
            isl_tokens=traffic.isl_tokens,
            osl_tokens=max(traffic.osl_tokens, 1.0),
            prefix_hit=traffic.prefix_hit or 0.0,
        )


def _step(
    workers: Sequence[SimulatedWorker],
    late: Callable[[SimulatedWorker], bool],
    fits: Callable[[SimulatedWorker, float], bool],
) -> int:
    """Return 1 where all workers are late, -1 where the others can take over the work of one, else 0."""
    if all(late(worker) for worker in workers):
        return 1
    share = len(workers) / max(len(workers) - 1, 1)
    return -1 if len(workers) > 1 and all(fits(worker, share) for worker in workers) else 0
