"""What a source hands to the dashboard. None is unknown, which is never zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fulcrum.api.worker import LoadReport
from fulcrum.load.traffic import Traffic

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """One InferenceCluster as it stands."""

    document: Json
    """The object as the API server has it."""
    pods: Sequence[Json] = ()
    """Pods of its workers."""
    loads: Mapping[str, LoadReport] = field(default_factory=dict)
    """Last load of each worker that answered, by Pod name."""
    traffic: Traffic | None = None
    events: Sequence[Json] = ()
    """Kubernetes Events about the object, in any order."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.document['metadata']['namespace']}/{self.document['metadata']['name']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All clusters at one moment."""

    clusters: Sequence[ClusterFacts]
    behind_seconds: float | None = None
    """How long the Kubernetes API has told of no change, in seconds; None while the watches stand."""


class Source(Protocol):
    """Where the dashboard reads."""

    async def read(self, watched: frozenset[str]) -> Reading:
        """Return what is known now. The workers of the clusters with the keys `watched` are on an open page."""
