"""No disaggregation: every worker prefills in chunks next to its decodes (Sarathi-Serve, Dynamic SplitFuse)."""

from __future__ import annotations

from collections.abc import Sequence

from fulcrum.api.names import Role
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.policy import Policy


class Aggregated(Policy):
    """All workers of one pool are mixed."""

    def __init__(self, *, pool: str, workers: int) -> None:
        if workers < 1:
            raise ValueError("at least one worker is needed")
        self.name = f"aggregated {workers}M"
        self._workers = [(pool, Role.MIXED)] * workers

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return self._workers
