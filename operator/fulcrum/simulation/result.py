"""What a simulation amounts to: a line per request, and the figures that policies are compared by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.reasons import Reason
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.fleet import FleetSample
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of requests that were served; NaN when none was."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run against one SLO."""

    policy: str
    requests: int
    served: int
    rejected: int
    failed: int
    attainment: float
    """Requests inside the SLO, of all that arrived, 0 to 1."""
    goodput: float
    """Requests per second inside the SLO, from the first arrival to the last end."""
    goodput_per_gpu: float
    """Requests inside the SLO per GPU-second."""
    gpu_hours: float
    ttft_seconds: Percentiles
    tpot_seconds: Percentiles
    flips: int
    pods_started: int
    wasted_prefill: float
    """Share of the prefilled tokens that were for requests outside of the SLO, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """All columns have one element per request, in order of arrival; times in seconds."""

    policy: str
    workload: Workload
    ttft_seconds: NDArray[np.float64]
    """NaN without a first token."""
    tpot_seconds: NDArray[np.float64]
    """Mean time between tokens; NaN for a single token, and for requests that were not served."""
    end_seconds: NDArray[np.float64]
    """When the request ended, whatever became of it; NaN for pending ones."""
    outcome: NDArray[np.int8]
    """`Outcome`."""
    computed_tokens: NDArray[np.int64]
    """Prompt tokens that were prefilled for it, repetitions included."""
    rejections: dict[Reason, int]
    fleet: tuple[FleetSample, ...]
    """Ready workers per role over time."""
    flips: int
    pods_started: int
    gpu_seconds: float
    preemptions: int
    events: int
    end_of_run_seconds: float
    """When the last request ended."""

    def within(self, slo: LatencyTargets) -> NDArray[np.bool_]:
        """Report for each request whether it was served inside `slo`."""
        served = self.outcome == Outcome.SERVED
        inside: NDArray[np.bool_] = (
            served & (self.ttft_seconds <= slo.ttft_seconds) & ~(self.tpot_seconds > slo.tpot_seconds)
        )
        return inside

    def count(self, outcome: Outcome) -> int:
        """Return the number of requests that ended so."""
        return int((self.outcome == outcome).sum())

    def summary(self, slo: LatencyTargets) -> Summary:
        """Return the figures against `slo`; a request that is pending counts as failed."""
        within = self.within(slo)
        good, requests = int(within.sum()), len(self.workload)
        begin = float(self.workload.arrival_seconds[0]) if requests else 0.0
        span_seconds = self.end_of_run_seconds - begin
        served = self.outcome == Outcome.SERVED
        computed = int(self.computed_tokens.sum())
        return Summary(
            policy=self.policy,
            requests=requests,
            served=int(served.sum()),
            rejected=self.count(Outcome.REJECTED),
            failed=self.count(Outcome.FAILED) + self.count(Outcome.PENDING),
            attainment=good / requests if requests else 1.0,
            goodput=good / span_seconds if span_seconds > 0 else 0.0,
            goodput_per_gpu=good / self.gpu_seconds if self.gpu_seconds > 0 else 0.0,
            gpu_hours=self.gpu_seconds / 3600,
            ttft_seconds=_percentiles(self.ttft_seconds[served]),
            tpot_seconds=_percentiles(self.tpot_seconds[served]),
            flips=self.flips,
            pods_started=self.pods_started,
            wasted_prefill=float(self.computed_tokens[~within].sum()) / computed if computed else 0.0,
        )


def _percentiles(values: NDArray[np.float64]) -> Percentiles:
    known = values[~np.isnan(values)]
    p50, p90, p99 = np.quantile(known, [0.5, 0.9, 0.99]) if len(known) else (np.nan, np.nan, np.nan)
    return Percentiles(p50=float(p50), p90=float(p90), p99=float(p99))
