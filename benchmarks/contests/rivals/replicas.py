"""What autoscalers without flips share: a wanted number of workers per role, reached by making and deleting Pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fulcrum.api.names import Role, worker_name
from fulcrum.api.reasons import Reason
from fulcrum.rollout import Action, CreateWorker, DeleteWorker
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.fleet import CLUSTER, Pod
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.view import View


class ReplicaPolicy(Policy):
    """Workers of one pool, each role scaled by itself, at least one of each.

    Deleted workers finish what they have; those on their way out still count against `most_workers`.
    """

    def __init__(self, *, pool: str, begin: Mapping[Role, int], most_workers: int) -> None:
        """Start with these workers per role; never have more than `most_workers` Pods."""
        if min(begin.values()) < 1 or sum(begin.values()) > most_workers:
            counts = ", ".join(f"{number} {role.value}" for role, number in begin.items())
            raise ValueError(f"need at least one of each role, at most {most_workers} in all, got {counts}")
        self._pool = pool
        self._most_workers = most_workers
        self._initial = [(pool, role) for role, number in begin.items() for _ in range(number)]

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return self._initial

    def towards(self, wanted: Mapping[Role, int], view: View) -> list[Action]:
        """Return the actions towards `wanted` workers per role: first deletions, then what there is room for."""
        pods = view.pods
        by_role = {role: [pod for pod in pods if pod.role is role and not pod.deleting] for role in wanted}
        actions: list[Action] = []
        for role, count in wanted.items():
            surplus = sorted(by_role[role], key=_removal_order)[: max(0, len(by_role[role]) - count)]
            actions += [DeleteWorker(name=pod.name, uid=pod.uid, reason=Reason.WORKER_REMOVED) for pod in surplus]
        room = self._most_workers - len(pods)
        taken = {pod.ordinal for pod in pods}
        for role, count in wanted.items():
            for _ in range(min(count - len(by_role[role]), room)):
                ordinal = next(number for number in range(len(taken) + 1) if number not in taken)
                taken.add(ordinal)
                room -= 1
                name = worker_name(CLUSTER, self._pool, ordinal)
                actions.append(CreateWorker(name=name, pool=self._pool, ordinal=ordinal, role=role))
        return actions

    def within_budget(self, prefill: int, decode: int) -> dict[Role, int]:
        """Return the counts, scaled down in proportion where they are more than the budget."""
        prefill, decode = max(prefill, 1), max(decode, 1)
        total = prefill + decode
        if total > self._most_workers:
            prefill = min(max(round(self._most_workers * prefill / total), 1), self._most_workers - 1)
            decode = self._most_workers - prefill
        return {Role.PREFILL: prefill, Role.DECODE: decode}


def count(view: View, role: Role) -> int:
    """Return the Pods of a role that are not on their way out."""
    return sum(1 for pod in view.pods if pod.role is role and not pod.deleting)


def _removal_order(pod: Pod) -> tuple[bool, int]:
    return (bool(pod.ranks), -pod.ordinal)
