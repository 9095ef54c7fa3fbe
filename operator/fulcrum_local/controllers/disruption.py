"""PodDisruptionBudgets: how many Pods may be disrupted right now."""

from __future__ import annotations

from fulcrum_local.controllers import times
from fulcrum_local.controllers.cluster import Cluster
from fulcrum_local.controllers.pods import condition, is_finished, is_ready, is_terminating
from fulcrum_local.controllers.queue import WorkQueue
from fulcrum_local.controllers.resources import DISRUPTION_BUDGETS, PODS, Json, Key, key_of
from fulcrum_local.objects.budgets import desired_healthy
from fulcrum_local.objects.selectors import selector_matches


class Disruption:
    """Keeps the status of PodDisruptionBudgets."""

    def __init__(self, cluster: Cluster) -> None:
        """Follows budgets and Pods."""
        self._cluster = cluster
        self._queue = WorkQueue[Key]("disruption")
        self.budgets, self.pods = cluster.informer(DISRUPTION_BUDGETS), cluster.informer(PODS)
        self.informers = (self.budgets, self.pods)

    async def run(self) -> None:
        """Work until cancelled."""
        self.budgets.subscribe(self._note_budget)
        self.pods.subscribe(self._note_pod)
        await self._queue.run(self._reconcile)

    def _note_budget(self, old: Json | None, new: Json | None) -> None:
        if new is not None:
            self._queue.add(key_of(new))

    def _note_pod(self, old: Json | None, new: Json | None) -> None:
        for pod in (old, new):
            if pod is None:
                continue
            for budget in self.budgets.in_namespace(pod["metadata"]["namespace"]):
                if _covers(budget, pod):
                    self._queue.add(key_of(budget))

    async def _reconcile(self, key: Key) -> None:
        budget = self.budgets.get(key)
        if budget is None or "deletionTimestamp" in budget["metadata"]:
            return
        pods = [pod for pod in self.pods.in_namespace(key[0]) if _covers(budget, pod) and not is_finished(pod)]
        await self._cluster.patch_status(DISRUPTION_BUDGETS, budget, status_of(budget, pods, times.text(times.now())))


def _covers(budget: Json, pod: Json) -> bool:
    return selector_matches(budget["spec"].get("selector"), pod["metadata"].get("labels") or {})


def status_of(budget: Json, pods: list[Json], now: str) -> Json:
    """The status of a budget over `pods`; a Pod that is on its way out is not healthy."""
    healthy = sum(is_ready(pod) and not is_terminating(pod) for pod in pods)
    desired = desired_healthy(budget["spec"], len(pods))
    allowed = max(0, healthy - desired) if pods else 0
    wanted = {
        "type": "DisruptionAllowed",
        "status": "True" if allowed else "False",
        "reason": "SufficientPods" if allowed else "InsufficientPods",
        "message": "",
        "observedGeneration": budget["metadata"].get("generation", 1),
    }
    before = condition(budget, "DisruptionAllowed")
    same_state = before is not None and before["status"] == wanted["status"]
    since = before["lastTransitionTime"] if before is not None and same_state else now
    return {
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": len(pods),
        "observedGeneration": budget["metadata"].get("generation", 1),
        "conditions": [{**wanted, "lastTransitionTime": since}],
    }
