"""Where load comes from: one interface, whose failures are a value and never a zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fulcrum.forecast.series import LoadSeries
from fulcrum.load.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRef:
    """The InferenceCluster whose gateways are meant."""

    namespace: str
    name: str
    gateways: int = 1
    """Gateways that are expected to answer (ready Pods); an answer about fewer of them is partial, hence unknown."""

    @property
    def key(self) -> tuple[str, str]:
        """What stays the same while gateways come and go."""
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing can be said now. `reason` is for people: it names the source and what to look at."""

    reason: str


class TelemetrySource(Protocol):
    """A source of load. `now` is Unix time in seconds; nothing is raised for a source that is down."""

    async def load_series(
        self, cluster: ClusterRef, *, interval_seconds: float, history_seconds: float, now: float
    ) -> LoadSeries | Unknown:
        """Return the load of the whole intervals up to `now`, oldest first; NaN where none was measured."""

    async def traffic(self, cluster: ClusterRef, *, window_seconds: float, now: float) -> Traffic | Unknown:
        """Return what arrived over the last `window_seconds`, and how it was served."""
