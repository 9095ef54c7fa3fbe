"""NVIDIA Dynamo's planner (v1.6) as its documentation describes it: no flips, no headroom, no admission.

Throughput mode forecasts the load of the next interval and divides it by what one worker can do; load mode compares the
latency that the next request would see with the SLO and moves each role by one worker at a time. Together, throughput
gives the least that load mode may go down to.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil

from fulcrum.api.names import Role
from fulcrum.api.types import ForecastMethod
from fulcrum.capacity.speed import Speed
from fulcrum.forecast.forecaster import Forecaster
from fulcrum.load.demand import Slo
from fulcrum.simulation.policies.replicas import ReplicaPolicy, count
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.view import View


class DynamoMode(StrEnum):
    """Which of the planner's rules are switched on."""

    THROUGHPUT = "throughput"
    LOAD = "load"
    BOTH = "both"


class Dynamo(ReplicaPolicy):
    """The planner with its defaults: 180 s between throughput decisions, 5 s between load decisions, ARIMA."""

    def __init__(
        self,
        *,
        pool: str,
        speed: Speed,
        slo: Slo,
        prefill: int,
        decode: int,
        most_workers: int,
        mode: DynamoMode = DynamoMode.THROUGHPUT,
        throughput_seconds: float = 180.0,
        load_seconds: float = 5.0,
        sensitivity: float = 0.8,
        predictor: ForecastMethod = ForecastMethod.ARIMA,
    ) -> None:
        """`sensitivity`: load mode gives a worker back when all are below this share of the SLO."""
        super().__init__(pool=pool, prefill=prefill, decode=decode, most_workers=most_workers)
        self.name = f"dynamo {mode.value}"
        self._speed, self._slo, self._mode = speed, slo, mode
        self._throughput_seconds, self._load_seconds, self._sensitivity = throughput_seconds, load_seconds, sensitivity
        self._forecaster = Forecaster(method=predictor, clock=lambda: 0.0)
        self._least = {Role.PREFILL: 1, Role.DECODE: 1}
        self._throughput_due = throughput_seconds

    def on_tick(self, view: View) -> TickResult:
        if view.now <= 0:
            return TickResult(again_seconds=self._every)
        wanted = {role: count(view, role) for role in self._least}
        if self._mode is not DynamoMode.LOAD and view.now >= self._throughput_due:
            self._throughput_due += self._throughput_seconds
            planned = self._from_throughput(view)
            if planned is not None:
                self._least = planned
                bound_only = self._mode is DynamoMode.BOTH
                wanted = {role: max(wanted[role], planned[role]) if bound_only else planned[role] for role in planned}
                wanted = self.within_budget(wanted[Role.PREFILL], wanted[Role.DECODE])
        elif self._mode is not DynamoMode.THROUGHPUT:
            wanted = self._from_load(view, wanted)
        return TickResult(actions=self.towards(wanted, view), again_seconds=self._every)

    @property
    def _every(self) -> float:
        return self._throughput_seconds if self._mode is DynamoMode.THROUGHPUT else self._load_seconds

    def _from_throughput(self, view: View) -> dict[Role, int] | None:
        series = view.series(self._throughput_seconds)
        forecast = self._forecaster.update(series, horizon_seconds=self._throughput_seconds)
        traffic = view.traffic(self._throughput_seconds)
        if forecast is None or traffic.isl_tokens is None or traffic.osl_tokens is None:
            return None
        speed, isl = self._speed, traffic.isl_tokens * (1 - (traffic.prefix_hit or 0.0))
        prefill_rate = 1 / speed.prefill_seconds(isl, isl * isl)
        context = traffic.isl_tokens + traffic.osl_tokens / 2
        batch = largest_batch(speed, self._slo.tpot_seconds, context)
        decode_rate = batch / (traffic.osl_tokens * speed.decode_step_seconds(batch, batch * context))
        rate = forecast.rate[0]
        return self.within_budget(ceil(rate / prefill_rate), ceil(rate / decode_rate))

    def _from_load(self, view: View, wanted: dict[Role, int]) -> dict[Role, int]:
        pods = [pod for pod in view.pods if not pod.deleting]
        if len(view.pods) > len(pods) or any(pod.worker is None for pod in pods):
            return wanted  # the last change is still under way
        traffic = view.traffic(self._load_seconds * 12)
        isl, osl = traffic.isl_tokens or 0.0, traffic.osl_tokens or 0.0
        result = dict(wanted)
        for role, target in ((Role.PREFILL, self._slo.ttft_seconds), (Role.DECODE, self._slo.tpot_seconds)):
            estimates = []
            for worker in (pod.worker for pod in pods if pod.role is role):
                assert worker is not None
                if role is Role.PREFILL:
                    tokens = worker.queued_tokens + isl
                    estimates.append(self._speed.prefill_seconds(tokens, tokens * isl))
                else:
                    # What is scheduled, what is queued, and the next request half-way through its output.
                    queued = len(worker.waiting) + worker.loading + 1
                    tokens = worker.context_tokens + queued * isl + osl / 2
                    estimates.append(self._speed.decode_step_seconds(worker.batch + queued, tokens))
            if all(estimate > target for estimate in estimates):
                if sum(result.values()) < self._most_workers:
                    result[role] += 1
            elif all(estimate < target * self._sensitivity for estimate in estimates):
                result[role] = max(result[role] - 1, self._least[role])
        return result


def largest_batch(speed: Speed, tpot_seconds: float, context_tokens: float) -> int:
    """Return the most requests of this mean context that fit into the KV cache and keep a step within the promise."""
    low, high = 1, max(1, min(speed.max_batch, int(speed.kv_capacity_tokens / context_tokens)))
    while low < high:
        middle = (low + high + 1) // 2
        if speed.decode_step_seconds(middle, middle * context_tokens) <= tpot_seconds:
            low = middle
        else:
            high = middle - 1
    return low
