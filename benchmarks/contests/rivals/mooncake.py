"""Mooncake's rules for turning requests away under overload (arXiv 2407.00079, section 7).

Load is predicted latency over its SLO; above 1 an instance is overloaded. Roles do not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from contests.rivals.schedule import Schedule
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.policies import Split
from fulcrum.simulation.policy import expected_transfers, known_speeds
from fulcrum.simulation.simulated_gateway import SimulatedGateway
from fulcrum.simulation.simulated_request import RequestWorker, SimulatedRequest
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import SimulatedWorker

_REMEMBERED: Final = 500
_FIRST_DECODE_SECONDS: Final = 5.0


class Rejection(StrEnum):
    """Which of the three rules."""

    BASELINE = "baseline"
    """Prefill load at the arrival, decode load only when the prefill is done: it is then wasted."""
    EARLY = "early"
    """Both at the arrival, by the decode load of that moment."""
    PREDICTIVE = "predictive"
    """Both at the arrival, by the decode load predicted for the end of the prefill."""


class Mooncake(Schedule):
    """A static split, or a schedule of them, with one of the rules; prefill and decode are always apart, and workers
    chosen as production does.

    The prediction is the system-level one of the paper: each request decodes for the same time t_d (here the mean of
    the last 500). Those whose prefill ends by then join, those that will have decoded for t_d are gone.
    """

    def __init__(self, *, pool: str, splits: Sequence[tuple[float, Split]], rule: Rejection) -> None:
        super().__init__(pool=pool, splits=splits, name=f"mooncake {rule.value}")
        self._rule = rule
        self._decode_seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._decode_total = 0.0
        self._under_way: dict[int, SimulatedRequest] = {}

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway:
        return SimulatedGateway(
            slo=slo,
            speeds=known_speeds(cluster),
            transfers=expected_transfers(cluster),
            two_legs=True,
            gateways=cluster.gateways,
        )

    def admit(self, request: SimulatedRequest, view: View) -> Reason | None:
        prefills = [worker for worker in view.workers if worker.role in (Role.PREFILL, Role.MIXED)]
        decodes = [worker for worker in view.workers if worker.role in (Role.DECODE, Role.MIXED)]
        if not prefills or not decodes:
            return None  # the router says so
        ttft = min(_ttft_seconds(worker, request) for worker in prefills)
        if ttft > view.slo.ttft_seconds:
            return Reason.TTFT_UNREACHABLE
        if self._rule is Rejection.EARLY and _load(decodes, [worker.batch + 1 for worker in decodes], view) > 1:
            return Reason.TPOT_UNREACHABLE
        if self._rule is Rejection.PREDICTIVE and self._predicted_load(decodes, ttft, request, view) > 1:
            return Reason.TPOT_UNREACHABLE
        self._under_way[request.index] = request
        return None

    def admit_decode(self, request: SimulatedRequest, view: View) -> Reason | None:
        worker = request.decode
        if self._rule is not Rejection.BASELINE or worker is None:
            return None
        if _tpot_seconds(worker, worker.batch + 1, request.prompt) > view.slo.tpot_seconds:
            return Reason.TPOT_UNREACHABLE
        return None

    def on_end(self, request: SimulatedRequest, view: View) -> None:
        self._under_way.pop(request.index, None)
        if 0 <= request.first_token_seconds <= view.now:
            if len(self._decode_seconds) == _REMEMBERED:
                self._decode_total -= self._decode_seconds[0]
            seconds = view.now - request.first_token_seconds
            self._decode_seconds.append(seconds)
            self._decode_total += seconds

    def _predicted_load(
        self, decodes: list[SimulatedWorker], ttft: float, request: SimulatedRequest, view: View
    ) -> float:
        """Load of the decode workers at the end of the request's prefill."""
        known = len(self._decode_seconds)
        decode_seconds = self._decode_total / known if known else _FIRST_DECODE_SECONDS
        handed_over = view.now + ttft
        staying = sum(
            1
            for other in self._under_way.values()
            if other.first_token_seconds < 0 or other.first_token_seconds + decode_seconds > handed_over
        )
        each = (staying + 1) / len(decodes)
        return _load(decodes, [each] * len(decodes), view)


def _ttft_seconds(worker: SimulatedWorker, request: SimulatedRequest) -> float:
    """Time until the request would be prefilled behind what is queued."""
    tokens = worker.queued_tokens + request.prompt
    return worker.speed.prefill_seconds(tokens, float(tokens) * request.prompt)


def _load(workers: list[SimulatedWorker], batches: list[float] | list[int], view: View) -> float:
    """Mean over decode workers of predicted time between tokens over its SLO."""
    contexts = sum(worker.context_tokens for worker in workers)
    requests = sum(worker.batch for worker in workers)
    context = contexts / requests if requests else 0.0
    steps = [
        worker.speed.decode_step_seconds(batch, batch * context) for worker, batch in zip(workers, batches, strict=True)
    ]
    return sum(steps) / len(steps) / view.slo.tpot_seconds


def _tpot_seconds(worker: RequestWorker, batch: float, prompt: int) -> float:
    return worker.speed.decode_step_seconds(batch, worker.context_tokens + prompt)
