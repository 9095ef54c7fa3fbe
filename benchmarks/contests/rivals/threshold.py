"""Threshold autoscaling, as a HorizontalPodAutoscaler per role does it: so many workers that utilisation is 70 %."""

from __future__ import annotations

from collections import deque
from math import ceil

from contests.rivals.replicas import ReplicaPolicy, count
from fulcrum.api.names import Role
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.view import View


class Threshold(ReplicaPolicy):
    """Utilisation is the share of busy time for prefill workers, of KV blocks in use for decode workers."""

    def __init__(
        self,
        *,
        pool: str,
        prefill: int,
        decode: int,
        most_workers: int,
        utilisation: float = 0.7,
        every_seconds: float = 15.0,
        tolerance: float = 0.1,
        stabilization_seconds: float = 300.0,
    ) -> None:
        """The defaults are those of the HorizontalPodAutoscaler."""
        super().__init__(pool=pool, begin={Role.PREFILL: prefill, Role.DECODE: decode}, most_workers=most_workers)
        self.name = f"threshold {utilisation:.0%}"
        self._utilisation, self._every_seconds, self._tolerance = utilisation, every_seconds, tolerance
        self._recent: deque[tuple[float, dict[Role, int]]] = deque()
        self._stabilization_seconds = stabilization_seconds
        self._busy: dict[str, float] = {}

    def on_tick(self, view: View) -> TickResult:
        wanted = {role: self._wanted(role, view) for role in (Role.PREFILL, Role.DECODE)}
        self._busy = {worker.name: worker.work.busy_seconds for worker in view.workers}
        if view.now <= 0:
            return TickResult(again_seconds=self._every_seconds)
        self._recent.append((view.now, wanted))
        while self._recent[0][0] < view.now - self._stabilization_seconds:
            self._recent.popleft()
        # Down only as far as every recommendation of the last minutes agrees.
        stable = {
            role: max(wanted[role], min(count(view, role), max(each[role] for _, each in self._recent)))
            for role in wanted
        }
        counts = self.within_budget(stable[Role.PREFILL], stable[Role.DECODE])
        return TickResult(actions=self.towards(counts, view), again_seconds=self._every_seconds)

    def _wanted(self, role: Role, view: View) -> int:
        workers = [worker for worker in view.workers if worker.role is role]
        present = count(view, role)
        if not workers:
            return max(present, 1)
        if role is Role.PREFILL:
            busy = sum(
                worker.work.busy_seconds - self._busy.get(worker.name, worker.work.busy_seconds) for worker in workers
            )
            used = busy / (self._every_seconds * len(workers))
        else:
            used = sum(worker.kv_usage for worker in workers) / len(workers)
        if abs(used / self._utilisation - 1) <= self._tolerance:
            return present
        return max(1, ceil(len(workers) * used / self._utilisation))
