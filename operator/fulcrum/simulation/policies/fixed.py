"""Workers whose roles never change, in any number of pools, behind a gateway with any rule of admission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy, AdmissionQueue, QosClass
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.policy import Policy

_LETTERS = {Role.PREFILL: "P", Role.DECODE: "D", Role.MIXED: "M"}


class Fixed(Policy):
    """What a cluster without a planner does: each worker keeps its role for ever."""

    def __init__(
        self,
        workers: Sequence[tuple[str, Role]],
        *,
        admission: AdmissionPolicy = AdmissionPolicy.OFF,
        classes: Sequence[QosClass] = (),
        queue: AdmissionQueue | None = None,
    ) -> None:
        """`workers` are (pool, role), one per worker."""
        if not workers:
            raise ValueError("at least one worker is needed")
        self.name = layout_name(workers) + ("" if admission is AdmissionPolicy.OFF else f" {admission.value}")
        self._workers, self.admission, self.classes = tuple(workers), admission, tuple(classes)
        self.queue = queue

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return self._workers


def layout_name(workers: Sequence[tuple[str, Role]]) -> str:
    """Return a layout as people write it: `3P:5D`, `4M`; of several pools `a 3P + b 2P:2D`."""
    pools = list(dict.fromkeys(pool for pool, _ in workers))
    parts = []
    for pool in pools:
        counts = Counter(role for each, role in workers if each == pool)
        name = ":".join(f"{counts[role]}{letter}" for role, letter in _LETTERS.items() if counts[role])
        parts.append(name if len(pools) == 1 else f"{pool} {name}")
    return " + ".join(parts)
