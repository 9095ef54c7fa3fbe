"""What the operator's caches keep of objects: the fields that it reads, so that 10,000 Pods fit into its memory.

A field that is not named here does not exist for the controller. `Informer` turns these into plain dictionaries again.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Part(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Part of an object, as on the wire; what is None there or absent is left out."""


class _Metadata(_Part):
    name: str
    uid: str
    resource_version: str
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _WholeMetadata(_Metadata):
    generation: int | None = None
    owner_references: list[dict[str, Any]] | None = None


class SeenObject(_Part):
    """An InferenceCluster, or a child that is compared with what it should be: all but the field managers."""

    metadata: _WholeMetadata
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    unreadable: str | None = None
    """Why nothing but metadata and status was read; see `fulcrum.kube.reading`."""


class SeenGroup(_Part):
    """Identity of a LeaderWorkerSet. The labels and annotations of its leader are on itself, too."""

    metadata: _WholeMetadata


class _Owner(_Part):
    kind: str | None = None
    name: str | None = None
    uid: str | None = None


class _PodMetadata(_Metadata):
    owner_references: list[_Owner] | None = None


class _Container(_Part):
    name: str
    image: str | None = None


class _PodSpec(_Part):
    containers: list[_Container]
    node_name: str | None = None
    host_network: bool | None = None


class _Condition(_Part):
    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _Waiting(_Part):
    reason: str | None = None
    message: str | None = None


class _Terminated(_Part):
    exit_code: int | None = None
    message: str | None = None
    finished_at: str | None = None


class _ContainerState(_Part):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(_Part):
    name: str
    restart_count: int | None = None
    started: bool | None = None
    state: _ContainerState | None = None
    last_state: _ContainerState | None = None


class _PodStatus(_Part):
    phase: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class _About(_Part):
    name: str | None = None
    uid: str | None = None


class SeenEvent(_Part):
    """A Kubernetes Event about an InferenceCluster; for the dashboard."""

    metadata: _Metadata
    involved_object: _About
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class SeenPod(_Part):
    """A Pod of a worker or a gateway."""

    metadata: _PodMetadata
    spec: _PodSpec
    status: _PodStatus | None = None
