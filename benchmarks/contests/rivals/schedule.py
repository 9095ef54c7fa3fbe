"""Splits of one pool at times that are known beforehand: what a planner with foresight would set."""

from __future__ import annotations

from collections.abc import Sequence

from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy, QosClass
from fulcrum.rollout import Action, SetRole
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.policies import Split
from fulcrum.simulation.policy import Policy, TickResult
from fulcrum.simulation.view import View


class Schedule(Policy):
    """Split after split, each from its second on; with one split it never changes anything."""

    def __init__(
        self,
        *,
        pool: str,
        splits: Sequence[tuple[float, Split]],
        admission: AdmissionPolicy = AdmissionPolicy.OFF,
        classes: Sequence[QosClass] = (),
        name: str | None = None,
    ) -> None:
        """`splits` ascend from second 0 and all have as many workers."""
        workers = {len(split.roles()) for _, split in splits}
        if not splits or len(workers) != 1 or splits[0][0] > 0:
            raise ValueError("a schedule needs a split from second 0 on, and all splits the same number of workers")
        self.name = name or f"static {splits[0][1]}"
        self._pool, self.admission, self.classes = pool, admission, classes
        self.splits = tuple(splits)
        self._next = 1

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return [(self._pool, role) for role in self.splits[0][1].roles()]

    def on_tick(self, view: View) -> TickResult:
        actions: list[Action] = []
        while self._next < len(self.splits) and self.splits[self._next][0] <= view.now:
            actions = towards(self.splits[self._next][1], view)
            self._next += 1
        if self._next == len(self.splits):
            return TickResult(actions=actions)
        return TickResult(actions=actions, again_seconds=self.splits[self._next][0] - view.now)


def towards(split: Split, view: View) -> list[Action]:
    """Return the fewest flips that give the pool's workers the roles of `split`."""
    missing = split.roles()
    surplus = []
    for pod in view.pods:
        if pod.role in missing:
            missing.remove(pod.role)
        else:
            surplus.append(pod)
    return [
        SetRole(name=pod.name, uid=pod.uid, from_role=pod.role, role=role, epoch=pod.epoch + 1)
        for pod, role in zip(surplus, missing, strict=False)
    ]
