"""Workers that keep their role, and each request goes to the next one: to compare engines without their routers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.policies.fixed import layout_name
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.simulated_gateway import Chosen
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import SimulatedWorker


class RoundRobin(Policy):
    """A split of one pool; without prefill workers, the others are mixed."""

    def __init__(self, *, pool: str, prefill: int, decode: int) -> None:
        roles = [Role.PREFILL] * prefill + [Role.DECODE if prefill else Role.MIXED] * decode
        self._workers = [(pool, role) for role in roles]
        self.name = layout_name(self._workers)
        self._sent: Counter[Role] = Counter()

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return self._workers

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> None:
        return None

    def route(self, request: SimulatedRequest, view: View) -> Chosen | Reason:
        if mixed := self._next(Role.MIXED, view):
            return Chosen(mixed, mixed)
        prefill, decode = self._next(Role.PREFILL, view), self._next(Role.DECODE, view)
        return Chosen(prefill, decode) if prefill and decode else Reason.NO_WORKER

    def _next(self, role: Role, view: View) -> SimulatedWorker | None:
        workers = [rank for pod in view.pods if pod.role is role for rank in pod.ranks]
        self._sent[role] += 1
        return workers[self._sent[role] % len(workers)] if workers else None
