"""What a policy may see: the fleet, and the telemetry that production would have of it at the same moment."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.forecast.series import LoadSeries
from fulcrum.load.build import Latencies, Window, build_traffic
from fulcrum.load.bursts import dispersion
from fulcrum.load.demand import LatencyTargets
from fulcrum.load.lengths import Arrived, Measured, Moments
from fulcrum.load.traffic import Traffic
from fulcrum.load.tuning import TUNING
from fulcrum.rollout import Action
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.fleet import Fleet, Pod
from fulcrum.simulation.outcome import Ledger, Outcome
from fulcrum.simulation.seen import Seen, seen
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.worker import SimulatedWorker
from fulcrum.simulation.workload import Workload

_STRETCHES: Final = int(TUNING.memory_seconds / TUNING.window_seconds)


class View:
    """The state of a simulation as of `now`. It never shows what has not happened yet."""

    def __init__(
        self, *, workload: Workload, cluster: ClusterModel, slo: LatencyTargets, fleet: Fleet, ledger: Ledger
    ) -> None:
        self._workload = workload
        self._fleet = fleet
        self._ledger = ledger
        self.cluster = cluster
        self.slo = slo
        self.now = 0.0
        self.arrived = 0
        """Requests so far."""
        self.live: dict[int, SimulatedRequest] = {}
        """Requests that came and have not ended, by their number."""
        self.workers: list[SimulatedWorker] = fleet.workers
        """What gateways choose from."""

    def act(self, action: Action) -> None:
        """Carry out an action now, outside of a tick."""
        self._fleet.apply(action, self.now)

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Every Pod."""
        return tuple(self._fleet.pods.values())

    def seen(self, since_seconds: float) -> Seen:
        """What came since then, as gateways know it."""
        first = int(np.searchsorted(self._workload.arrival_seconds[: self.arrived], since_seconds))
        index = np.arange(first, self.arrived)
        return seen(index, self.now, load=self._workload, ledger=self._ledger, live=self.live, slo=self.slo)

    def traffic(self, window_seconds: float) -> Traffic:
        """What arrived and ended over the last `window_seconds`, as telemetry reports it."""
        window_seconds = min(window_seconds, self.now) or window_seconds
        since = self.now - window_seconds
        load, ledger = self._workload, self._ledger
        ended = self._ended_since(since)
        outcomes = ledger.outcome[ended]
        served = ended[outcomes == Outcome.SERVED]
        longer = self._ended_since(self.now - TUNING.memory_seconds)
        longer = longer[ledger.outcome[longer] == Outcome.SERVED]
        ttft = ledger.ttft_seconds[served]
        tpot = ledger.tpot_seconds(load.arrival_seconds, load.output_tokens, served)
        within = (ttft <= self.slo.ttft_seconds) & ~(tpot > self.slo.tpot_seconds)
        prefilled = int(load.prompt_tokens[served].sum())
        computed = int(ledger.computed_tokens[served].sum())
        measured = tpot[~np.isnan(tpot)]
        # Prompts are known exactly when they come, so nothing corrects them.
        until = [self._arrived_since(self.now - TUNING.window_seconds * part) for part in range(_STRETCHES + 1)]
        window = Window(
            seconds=window_seconds,
            arrivals=(came := self._arrived_since(since)).requests,
            came=came,
            newest=[self._arrived_since(self.now - part * window_seconds) for part in TUNING.newest_parts],
            outputs=self._outputs(served),
            outputs_longer=self._outputs(longer),
            stretches=[older.before(newer) for newer, older in pairwise(until)],
            output_stretches=self._output_stretches(longer),
            judged=float(len(ended)),
            inside=float(within.sum()),
            rejected=float((outcomes == Outcome.REJECTED).sum()),
            rejectable=float(len(ended)),
            classes=self._classes(since),
        )
        return build_traffic(
            window,
            Latencies(
                ttft_p50=_quantile(ttft, 0.5),
                ttft_p90=_quantile(ttft, 0.9),
                ttft_p99=_quantile(ttft, 0.99),
                tpot_p50=_quantile(measured, 0.5),
                tpot_p90=_quantile(measured, 0.9),
                tpot_p99=_quantile(measured, 0.99),
            ),
            ended=float(len(served)),
            prefix_hit=max(0.0, 1 - computed / prefilled) if prefilled else None,
            dispersion=self._dispersion(),
        )

    def _output_stretches(self, served: NDArray[np.int64]) -> list[Moments]:
        """Lengths of the answers of the last minutes, by stretch."""
        edges = self.now - TUNING.window_seconds * np.arange(_STRETCHES, -1, -1)
        places = np.searchsorted(self._ledger.end_seconds[served], edges, side="right")
        outputs = self._workload.output_tokens[served].astype(np.float64)
        parts = [outputs[first:last] for first, last in pairwise(places)]
        return [Moments(count=len(p), tokens=float(p.sum()), squares=float(p @ p)) for p in parts]

    def _arrived_since(self, since_seconds: float) -> Arrived:
        load = self._workload
        first = int(np.searchsorted(load.arrival_seconds[: self.arrived], since_seconds, side="right"))
        prompts = load.prompt_tokens[first : self.arrived].astype(np.float64)
        expected = self._ledger.expected_tokens[first : self.arrived]
        return Arrived(
            requests=len(prompts),
            prompt_tokens=float(prompts.sum()),
            prompt_squares=float(prompts @ prompts),
            outputs=float(np.count_nonzero(expected)),
            output_tokens=float(expected.sum()),
        )

    def _classes(self, since_seconds: float) -> dict[str, Arrived]:
        """What came of each class; empty where there is only one."""
        load = self._workload
        if len(load.classes) < 2:
            return {}
        first = int(np.searchsorted(load.arrival_seconds[: self.arrived], since_seconds, side="right"))
        of, prompts = load.qos_class[first : self.arrived], load.prompt_tokens[first : self.arrived]
        counts, tokens = np.bincount(of, minlength=len(load.classes)), np.bincount(of, prompts, len(load.classes))
        return {
            name or "": Arrived(requests=float(counts[index]), prompt_tokens=float(tokens[index]))
            for index, name in enumerate(load.classes)
        }

    def _outputs(self, served: NDArray[np.int64]) -> Measured:
        expected = self._ledger.expected_at_end[served]
        return Measured(
            requests=len(served),
            tokens=float(self._workload.output_tokens[served].sum()),
            expected=float(np.count_nonzero(expected)),
            expected_tokens=float(expected.sum()),
        )

    def _dispersion(self) -> float | None:
        """How unevenly requests arrived of late."""
        spans = int(min(self.now, TUNING.memory_seconds) / TUNING.span_seconds)
        edges = self.now - TUNING.span_seconds * np.arange(spans, -1, -1)
        arrivals = self._workload.arrival_seconds[: self.arrived]
        return dispersion(np.diff(np.searchsorted(arrivals, edges, side="right")).tolist())

    def series(self, interval_seconds: float, *, since_seconds: float = 0.0) -> LoadSeries:
        """Load per interval from `since_seconds` to the end of the last full interval."""
        start = int(since_seconds // interval_seconds)
        count = max(0, int(self.now // interval_seconds) - start)
        edges = (start + np.arange(count + 1)) * interval_seconds
        load = self._workload
        arrivals = np.searchsorted(load.arrival_seconds[: self.arrived], edges, side="right")
        if count and start == 0:
            arrivals[0] = 0  # a request at second 0 belongs to the first interval
        requests = np.diff(arrivals)
        order = self._ledger.order[: self._ledger.ended]
        served = order[self._ledger.outcome[order] == Outcome.SERVED]
        ends = np.searchsorted(self._ledger.end_seconds[served], edges, side="right")
        return LoadSeries(
            interval_seconds=interval_seconds,
            end_seconds=float(edges[-1]),
            rate=requests / interval_seconds,
            isl_tokens=_means(load.prompt_tokens, arrivals),
            osl_tokens=_means(load.output_tokens[served], ends),
        )

    def _ended_since(self, since_seconds: float) -> NDArray[np.int64]:
        """Requests that ended after `since_seconds`; found from the back, so that the past costs nothing."""
        ledger = self._ledger
        low, high = 0, ledger.ended
        while low < high:
            middle = (low + high) // 2
            if ledger.end_seconds[ledger.order[middle]] > since_seconds:
                high = middle
            else:
                low = middle + 1
        return ledger.order[low : ledger.ended]


def _means(values: NDArray[np.int32], edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean of the values between neighbouring edges; NaN where there are none."""
    sums = np.concatenate([[0.0], np.cumsum(values[: edges[-1]], dtype=np.float64)]) if len(edges) else np.zeros(1)
    counts = np.diff(edges).astype(np.float64)
    counts[counts == 0] = np.nan
    means: NDArray[np.float64] = np.diff(sums[edges]) / counts
    return means


def _quantile(values: NDArray[np.float64], quantile: float) -> float | None:
    return float(np.quantile(values, quantile)) if len(values) else None
