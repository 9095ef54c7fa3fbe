"""The Kubernetes API as the controller uses it: its resources, every call counted, writes only while it leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, TypeVar

from fulcrum import kube
from fulcrum.api.names import (
    API_VERSION,
    FIELD_MANAGER,
    FRONT_KIND,
    FRONT_PLURAL,
    KIND,
    PLURAL,
    SCALE_KIND,
    SCALE_PLURAL,
)
from fulcrum.controller.metrics import Metrics
from fulcrum.kube import ApiError, ApiFailure, Json, Key, Resource

__all__ = ["ApiFailure", "Kube", "NamespaceEndsError", "NotLeadingError", "Resource", "StopTickError"]

_T = TypeVar("_T")

_ENDS: Final = "because it is being terminated"
"""What every API server says of a namespace that is being deleted; the Status has no reason of its own for it."""
RBAC: Final = "rbac.authorization.k8s.io/v1"

INFERENCE_CLUSTER: Final = Resource(api_version=API_VERSION, kind=KIND, plural=PLURAL)
INFERENCE_SCALE: Final = Resource(api_version=API_VERSION, kind=SCALE_KIND, plural=SCALE_PLURAL)
INFERENCE_GATEWAY: Final = Resource(api_version=API_VERSION, kind=FRONT_KIND, plural=FRONT_PLURAL)
POD: Final = Resource(api_version="v1", kind="Pod", plural="pods")
EVENT: Final = Resource(api_version="v1", kind="Event", plural="events")
SERVICE: Final = Resource(api_version="v1", kind="Service", plural="services")
SERVICE_ACCOUNT: Final = Resource(api_version="v1", kind="ServiceAccount", plural="serviceaccounts")
DEPLOYMENT: Final = Resource(api_version="apps/v1", kind="Deployment", plural="deployments")
ROLE: Final = Resource(api_version=RBAC, kind="Role", plural="roles")
ROLE_BINDING: Final = Resource(api_version=RBAC, kind="RoleBinding", plural="rolebindings")
DISRUPTION_BUDGET: Final = Resource(api_version="policy/v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets")
NETWORK_POLICY: Final = Resource(api_version="networking.k8s.io/v1", kind="NetworkPolicy", plural="networkpolicies")
SECRET: Final = Resource(api_version="v1", kind="Secret", plural="secrets")
CLAIM: Final = Resource(api_version="v1", kind="PersistentVolumeClaim", plural="persistentvolumeclaims")
CONFIG_MAP: Final = Resource(api_version="v1", kind="ConfigMap", plural="configmaps")
LEADER_WORKER_SET: Final = Resource(
    api_version="leaderworkerset.x-k8s.io/v1", kind="LeaderWorkerSet", plural="leaderworkersets"
)
POD_GROUP: Final = Resource(api_version="scheduling.volcano.sh/v1beta1", kind="PodGroup", plural="podgroups")
JOB: Final = Resource(api_version="batch/v1", kind="Job", plural="jobs")
LEASE: Final = Resource(api_version="coordination.k8s.io/v1", kind="Lease", plural="leases")

CHILD_RESOURCES: Final = {
    resource.kind: resource
    for resource in (SERVICE, SERVICE_ACCOUNT, DEPLOYMENT, ROLE, ROLE_BINDING, DISRUPTION_BUDGET, NETWORK_POLICY)
}


class StopTickError(Exception):
    """Nothing more can be written in this tick. No failure of one write: it passes what handles those."""


class NotLeadingError(StopTickError):
    """A write was held back: another operator may be acting by now."""


class NamespaceEndsError(StopTickError):
    """The API server makes nothing new in a namespace that is being deleted."""


class Kube(kube.Kube):
    """The client of `fulcrum.kube`, with metrics and a fence in front of writes."""

    def __init__(self, api: kube.Api, metrics: Metrics, *, may_write: Callable[[], bool] = lambda: True) -> None:
        super().__init__(api, field_manager=FIELD_MANAGER)
        self._metrics = metrics
        self._may_write = may_write
        self.note: Callable[[Resource, Json], None] = lambda _resource, _obj: None
        """Called with what each write returned."""
        self.note_deletion: Callable[[Resource, Key, str], None] = lambda _resource, _key, _uid: None
        """Called with resource, key and uid of each accepted deletion."""

    def fenced(self, may_write: Callable[[], bool]) -> Kube:
        """Return the same client, whose writes raise NotLeadingError, unsent, once `may_write` says no."""
        return Kube(self.api, self._metrics, may_write=may_write)

    @classmethod
    def from_environment(cls, metrics: Metrics) -> Kube:
        """Return a client for `$KUBECONFIG`, or for the Pod's service account."""
        return cls(kube.Api(), metrics)

    async def _counted(
        self, verb: str, resource: Resource, call: Awaitable[_T], *, absent: tuple[int, ...] = ()
    ) -> _T | None:
        try:
            return await super()._counted(verb, resource, call, absent=absent)
        except ApiError as error:
            if error.code == HTTPStatus.FORBIDDEN and _ENDS in str(error) and resource is not LEASE:
                raise NamespaceEndsError(str(error)) from error
            raise

    def _before_write(self) -> None:
        if not self._may_write():
            raise NotLeadingError("the lease is not held")

    def _written(self, resource: Resource, obj: Json | None) -> Json | None:
        if obj is not None:
            self.note(resource, obj)
        return obj

    def _deleted(self, resource: Resource, key: Key, uid: str) -> None:
        self.note_deletion(resource, key, uid)

    def _count(self, verb: str, resource: Resource, outcome: str, seconds: float) -> None:
        self._metrics.api_call(verb, resource.kind, outcome, seconds)
