"""Arrow's rule (arXiv 2505.11916), as xLLM's service applies it: roles flip while requests are routed.

No dwell time and no forecast: a prefill worker becomes a decode worker when no decode worker would keep the TPOT target
and prefill has room, a decode worker becomes a prefill worker when its last request ends. Single prefills go to a
decode worker when the prefill workers are late.
"""

from __future__ import annotations

from collections.abc import Sequence

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.load.demand import LatencyTargets
from fulcrum.rollout import SetRole
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.fleet import Pod
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.simulated_gateway import Chosen, SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import SimulatedWorker


class Arrow(Policy):
    """Stateless instances, roles as routing labels; starts with P prefill and D decode workers."""

    name = "arrow"

    def __init__(self, *, pool: str, prefill: int, decode: int) -> None:
        if prefill < 1 or decode < 1:
            raise ValueError("at least one worker of each role is needed")
        self._workers = [(pool, Role.PREFILL)] * prefill + [(pool, Role.DECODE)] * decode

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return self._workers

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway | None:
        return None

    def route(self, request: SimulatedRequest, view: View) -> Chosen | Reason:
        prefills, decodes = _of(view, Role.PREFILL, request), _of(view, Role.DECODE, request)
        if not prefills or not decodes:
            return Reason.NO_WORKER
        slo = view.slo
        waits = [(_prefill_seconds(worker, request), worker) for _, worker in prefills]
        wait, prefill = min(waits, key=lambda each: each[0])
        average = sum(each for each, _ in waits) / len(waits)
        paces = [(_tpot_seconds(worker, request), worker) for _, worker in decodes]
        pace, calmest = min(paces, key=lambda each: each[0])
        fitting = next((worker for each, worker in paces if each <= slo.tpot_seconds), None)
        late = wait > slo.ttft_seconds
        slack = pace < slo.tpot_seconds * (len(decodes) - 1) / len(decodes)
        if late and fitting is not calmest and slack and _prefill_seconds(calmest, request) < wait:
            prefill = calmest
        room = average < slo.ttft_seconds * (len(prefills) - 1) / len(prefills) or len(decodes) < len(prefills)
        if fitting is None and room and len(prefills) > 1:
            flipped = next((pod for pod, worker in prefills if worker is prefill), None)
            if flipped is not None:
                _flip(flipped, Role.DECODE, view)
        return Chosen(prefill, fitting or calmest)

    def on_end(self, request: SimulatedRequest, view: View) -> None:
        """A decode worker without requests becomes a prefill worker, as long as it is not the last."""
        worker = request.decode
        if worker is None or worker.decode_legs:
            return
        decodes = [pod for pod in view.pods if pod.role is Role.DECODE and pod.ranks]
        if len(decodes) > 1:
            for pod in decodes:
                if worker in pod.ranks:
                    _flip(pod, Role.PREFILL, view)


def _of(view: View, role: Role, request: SimulatedRequest) -> list[tuple[Pod, SimulatedWorker]]:
    """Ready workers by their label: the service that routes is the one that flips."""
    return [
        (pod, rank)
        for pod in view.pods
        if pod.role is role and not pod.deleting and pod.name not in request.tried
        for rank in pod.ranks
    ]


def _prefill_seconds(worker: SimulatedWorker, request: SimulatedRequest) -> float:
    """Time until what is queued would be prefilled; quadratic in the length."""
    tokens = worker.queued_tokens
    return worker.speed.prefill_seconds(tokens, float(tokens) * request.prompt) if tokens else 0.0


def _tpot_seconds(worker: SimulatedWorker, request: SimulatedRequest) -> float:
    promised = max(0, worker.decode_legs - worker.batch)
    tokens = worker.context_tokens + (promised + 1) * request.prompt
    return worker.speed.decode_step_seconds(worker.decode_legs + 1, tokens)


def _flip(pod: Pod, role: Role, view: View) -> None:
    view.act(SetRole(name=pod.name, uid=pod.uid, from_role=pod.role, role=role, epoch=pod.epoch + 1))
