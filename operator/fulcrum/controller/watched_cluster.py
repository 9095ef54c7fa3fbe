"""A cluster as its watch sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.capacity.profile import Profile
from fulcrum.decide import ObservedWorker
from fulcrum.telemetry.source import ClusterRef


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCluster:
    """What the last tick saw of a cluster."""

    namespace: str
    name: str
    spec: InferenceClusterSpec
    status: InferenceClusterStatus
    gateways: Mapping[str, str]
    """Address of each ready gateway Pod, by name."""
    workers: tuple[ObservedWorker, ...]
    batch: str | None = None
    """Address of the ready batch Pod."""
    generation: int = 0
    """Of the spec."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """What workers were measured to do, by pool."""
    model: ModelFacts | None = None
    """What is known of the model; None: what its name says."""

    @property
    def ref(self) -> ClusterRef:
        """The cluster as sources know it."""
        return ClusterRef(namespace=self.namespace, name=self.name, gateways=len(self.gateways))
