"""The Kubernetes API as the controller uses it: JSON-like values, absence as None, every call counted."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx2
from lightkube import ALL_NS, ApiError, AsyncClient
from lightkube.core.resource import ApiInfo
from lightkube.generic_resource import GenericNamespacedResource, GenericNamespacedStatus, create_api_info
from lightkube.types import PatchType

from fulcrum.api.names import FIELD_MANAGER, GROUP, KIND, PLURAL, VERSION
from fulcrum.controller.children import Manifest
from fulcrum.controller.metrics import Metrics

REQUEST_TIMEOUT_SECONDS: Final = 15.0
CONNECT_TIMEOUT_SECONDS: Final = 5.0

ApiFailure = (httpx2.HTTPError, OSError)
"""What a call raises when the API server refuses or cannot be reached; `ApiError` is among them."""

Resource = type[GenericNamespacedResource]
_T = TypeVar("_T")


def _resource(group: str, version: str, kind: str, plural: str) -> Resource:
    # Not through lightkube's registry, which is global and would clash with its typed classes.
    return type(kind, (GenericNamespacedResource,), {"_api_info": create_api_info(group, version, kind, plural)})


INFERENCE_CLUSTER: Final = _resource(GROUP, VERSION, KIND, PLURAL)
POD: Final = _resource("", "v1", "Pod", "pods")
EVENT: Final = _resource("", "v1", "Event", "events")
SERVICE: Final = _resource("", "v1", "Service", "services")
SERVICE_ACCOUNT: Final = _resource("", "v1", "ServiceAccount", "serviceaccounts")
DEPLOYMENT: Final = _resource("apps", "v1", "Deployment", "deployments")
ROLE: Final = _resource("rbac.authorization.k8s.io", "v1", "Role", "roles")
ROLE_BINDING: Final = _resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
DISRUPTION_BUDGET: Final = _resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
LEASE: Final = _resource("coordination.k8s.io", "v1", "Lease", "leases")

CHILD_RESOURCES: Final = {
    resource.__name__: resource
    for resource in (SERVICE, SERVICE_ACCOUNT, DEPLOYMENT, ROLE, ROLE_BINDING, DISRUPTION_BUDGET)
}


class _InferenceClusterStatus(GenericNamespacedStatus):
    _api_info = ApiInfo(
        resource=create_api_info(GROUP, VERSION, KIND, PLURAL).resource,
        parent=create_api_info(GROUP, VERSION, KIND, PLURAL).resource,
        plural=PLURAL,
        verbs=["get", "patch", "put"],
        action="status",
    )


class NotLeadingError(Exception):
    """A write was held back: another operator may be acting by now."""


class Kube:
    """An API client. Use as an async context manager.

    Calls raise `ApiFailure` except for what a level-triggered controller expects: an absent object (404) reads as None
    and is no error to change or delete, one that exists already (409) is no error to create.
    """

    def __init__(self, client: AsyncClient, metrics: Metrics, *, may_write: Callable[[], bool] = lambda: True) -> None:
        self._client = client
        self._metrics = metrics
        self._may_write = may_write

    def fenced(self, may_write: Callable[[], bool]) -> Kube:
        """Return the same client, whose writes raise NotLeadingError, unsent, once `may_write` says no."""
        return Kube(self._client, self._metrics, may_write=may_write)

    @classmethod
    def from_environment(cls, metrics: Metrics) -> Kube:
        """Return a client for `$KUBECONFIG`, or for the Pod's service account."""
        timeout = httpx2.Timeout(REQUEST_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS)
        return cls(AsyncClient(timeout=timeout, field_manager=FIELD_MANAGER), metrics)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """Return an object, None where there is none."""
        return await self._call("get", resource, self._client.get(resource, name, namespace=namespace), absent=(404,))

    async def list(self, resource: Resource, namespace: str | None, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the objects with all of `labels`, in one namespace or (None) in all."""

        async def gather() -> list[Manifest]:
            found = self._client.list(resource, namespace=namespace or ALL_NS, labels=dict(labels) or None)
            return [dict(item) async for item in found]

        return await self._call("list", resource, gather()) or []

    async def create(self, resource: Resource, manifest: Manifest) -> Manifest | None:
        """Create an object in the namespace of its metadata and return it; None when the name is taken."""
        self._check_fence()
        made: Any = resource.from_dict(manifest)
        call: Awaitable[Manifest] = self._client.create(made)
        return await self._call("create", resource, call, absent=(409,))

    async def replace(self, resource: Resource, manifest: Manifest) -> Manifest | None:
        """Replace the object that `manifest` was read as; None when it is gone or was changed meanwhile."""
        self._check_fence()
        changed: Any = resource.from_dict(manifest)
        call: Awaitable[Manifest] = self._client.replace(changed)
        return await self._call("update", resource, call, absent=(404, 409))

    async def merge(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Manifest | None:
        """Merge `patch` into an object; None when it is gone, or is another one than the patch's uid names."""
        self._check_fence()
        call = self._client.patch(resource, name, patch, namespace=namespace, patch_type=PatchType.MERGE)
        return await self._call("patch", resource, call, absent=(404, 409))

    async def apply(self, resource: Resource, namespace: str, name: str, manifest: Manifest) -> Manifest | None:
        """Apply `manifest` (server-side), taking over fields that others hold; None when its parent is gone."""
        self._check_fence()
        call = self._client.patch(resource, name, manifest, namespace=namespace, patch_type=PatchType.APPLY, force=True)
        return await self._call("apply", resource, call)

    async def apply_status(self, namespace: str, name: str, status: Manifest) -> Manifest | None:
        """Apply the whole status of an InferenceCluster; None when it is gone."""
        self._check_fence()
        manifest = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "status": status}
        call = self._client.patch(
            _InferenceClusterStatus, name, manifest, namespace=namespace, patch_type=PatchType.APPLY, force=True
        )
        return await self._call("apply_status", INFERENCE_CLUSTER, call, absent=(404,))

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object, which may be gone already."""
        self._check_fence()
        await self._call("delete", resource, self._client.delete(resource, name, namespace=namespace), absent=(404,))

    def _check_fence(self) -> None:
        if not self._may_write():
            raise NotLeadingError("the lease is not held")

    async def _call(
        self, verb: str, resource: Resource, call: Awaitable[_T], *, absent: tuple[int, ...] = ()
    ) -> _T | None:
        began = time.monotonic()
        outcome = "error"
        try:
            answer = await call
        except ApiError as error:
            outcome = str(error.status.code)
            if error.status.code in absent:
                return None
            raise
        else:
            outcome = "ok"
            return answer
        finally:
            self._metrics.api_call(verb, resource.__name__, outcome, time.monotonic() - began)
