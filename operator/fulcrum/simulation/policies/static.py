"""A fixed number of prefill and decode workers: what a cluster without a planner does."""

from __future__ import annotations

from collections.abc import Sequence

from fulcrum.api.names import Role
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.policy import Policy


class StaticSplit(Policy):
    """P prefill and D decode workers, for ever; of one pool, or the decode workers of another."""

    def __init__(self, *, pool: str, prefill: int, decode: int, decode_pool: str | None = None) -> None:
        if prefill < 1 or decode < 1:
            raise ValueError("a static split needs at least one worker of each role")
        self.name = f"static {prefill}P:{decode}D"
        self._workers = [(pool, Role.PREFILL)] * prefill + [(decode_pool or pool, Role.DECODE)] * decode

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return self._workers
