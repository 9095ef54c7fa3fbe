"""InferenceGateways: keep what each consists of, and say in its status which clusters its fronts may use."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.front_types import FrontConditionType, InferenceGateway, InferenceGatewayStatus
from fulcrum.api.names import FRONT_KIND, LABEL_FRONT, PORT_GATEWAY, front_name
from fulcrum.api.objects import load_inference_cluster, load_inference_gateway, to_dict
from fulcrum.api.reasons import Reason
from fulcrum.api.status import ConditionStatus, timestamp
from fulcrum.api.types import InferenceCluster
from fulcrum.controller.caches import Caches
from fulcrum.controller.child_sync import ChildSync, NameTakenError
from fulcrum.controller.children import Manifest, Owner
from fulcrum.controller.children.front import front_children
from fulcrum.controller.events import event_of_state
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import (
    DEPLOYMENT,
    EVENT,
    INFERENCE_CLUSTER,
    INFERENCE_GATEWAY,
    SERVICE,
    ApiFailure,
    Kube,
    Resource,
)
from fulcrum.controller.queue import KeyedQueue, Wake
from fulcrum.controller.seen import SeenObject
from fulcrum.front.report import Problem, Seen, named_clusters, report
from fulcrum.kube import Api, Key
from fulcrum.kube.informer import Informer
from fulcrum.report import PlanEvent

logger = logging.getLogger(__name__)

_RESYNC_SECONDS: Final = 300.0
"""How often children are compared although nothing has changed: someone may have changed them by hand."""


class Fronts:
    """All InferenceGateways of the operator's namespaces."""

    def __init__(
        self,
        kube: Kube,
        caches: Caches,
        namespaces: Sequence[str],
        *,
        identity: str,
        installation: Installation,
        now: Callable[[], datetime],
    ) -> None:
        """Of `namespaces`, or of all when there are none; `identity` is what events name as their author."""
        self._kube = kube
        self._caches = caches
        self._identity = identity
        self._installation = installation
        self._now = now
        self._child_sync = ChildSync(kube)
        self._compared: dict[Key, tuple[str, int, float]] = {}
        """Uid and generation of those whose children are as wanted, and since when (monotonic seconds)."""
        self._informers = {
            (resource, namespace): _informer(kube.api, resource, namespace)
            for namespace in namespaces or (None,)
            for resource in (INFERENCE_GATEWAY, DEPLOYMENT, SERVICE)
        }
        self._everywhere = not namespaces
        self._queue: KeyedQueue[Key] = KeyedQueue(self._reconcile, jitter=random.random)
        for (resource, _), informer in self._informers.items():
            informer.subscribe(self._object_changed if resource is INFERENCE_GATEWAY else self._child_changed)

    def cluster_changed(self, cluster: Key) -> None:
        """An InferenceCluster, or something of it, has changed."""
        named = "/".join(cluster)
        for obj in self._all():
            if named in _named(obj):
                self._queue.add((obj["metadata"]["namespace"], obj["metadata"]["name"]), Wake.EVENT)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`; what was begun is finished then."""
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(informer.run()) for informer in self._informers.values()]
            tasks.create_task(self._queue.run())
            await stop.wait()
            self._queue.stop()
            for each in following:
                each.cancel()

    def _all(self) -> list[Manifest]:
        return [
            obj for (resource, _), known in self._informers.items() if resource is INFERENCE_GATEWAY for obj in known
        ]

    def _find(self, resource: Resource, key: Key) -> Manifest | None:
        informer = self._informers.get((resource, None if self._everywhere else key[0]))
        return None if informer is None else informer.get(key)

    def _object_changed(self, old: Manifest | None, new: Manifest | None) -> None:
        metadata = (new or old or {})["metadata"]
        self._queue.add((metadata["namespace"], metadata["name"]), Wake.EVENT)

    def _child_changed(self, old: Manifest | None, new: Manifest | None) -> None:
        metadata = (new or old or {})["metadata"]
        key = (metadata["namespace"], metadata["labels"][LABEL_FRONT])
        if new is None:
            self._compared.pop(key, None)
        self._queue.add(key, Wake.EVENT)

    async def _reconcile(self, key: Key) -> float | None:
        """Bring one up to date; returns when to look again."""
        for informer in self._informers.values():
            await informer.synced.wait()
        await self._caches.any_synced()
        obj = self._find(INFERENCE_GATEWAY, key)
        if obj is None or "deletionTimestamp" in obj["metadata"]:
            self._compared.pop(key, None)
            return None
        try:
            gateway = load_inference_gateway({**obj, "apiVersion": INFERENCE_GATEWAY.api_version, "kind": FRONT_KIND})
        except InvalidValueError as error:
            logger.warning("inference_gateway_unreadable namespace=%s name=%s error=%s", *key, error)
            return None
        owner = Owner(name=key[1], namespace=key[0], uid=gateway.metadata.uid, kind=FRONT_KIND)
        failures = await self._sync_children(key, owner, gateway)
        status = report(self._seen(key, gateway, failures), timestamp(self._now()))
        await self._write(owner, gateway, obj, status)
        if failures:
            raise ApiFailure(failures[0].message)  # the queue tries again, ever more slowly
        return _RESYNC_SECONDS

    async def _sync_children(self, key: Key, owner: Owner, gateway: InferenceGateway) -> tuple[Problem, ...]:
        version = (gateway.metadata.uid, gateway.metadata.generation)
        compared = self._compared.get(key)
        if compared is not None and compared[:2] == version and time.monotonic() - compared[2] < _RESYNC_SECONDS:
            return ()
        child = (key[0], front_name(key[1]))
        live = {
            (resource.kind, child[1]): found
            for resource in (DEPLOYMENT, SERVICE)
            if (found := self._find(resource, child)) is not None
        }
        deployment = live.get((DEPLOYMENT.kind, child[1]))
        replicas = None if deployment is None else (deployment.get("spec") or {}).get("replicas")
        wanted = front_children(owner, gateway.spec, self._installation, live_replicas=replicas)
        try:
            for kind, name in await self._child_sync.sync(owner.namespace, wanted, live):
                logger.info("child_applied namespace=%s kind=%s name=%s", owner.namespace, kind, name)
        except NameTakenError as error:
            return (Problem(reason=Reason.NAME_TAKEN, message=str(error)),)
        except ApiFailure as error:
            return (Problem(reason=Reason.RECONCILE_FAILED, message=str(error)),)
        self._compared[key] = (*version, time.monotonic())
        return ()

    def _seen(self, key: Key, gateway: InferenceGateway, failures: tuple[Problem, ...]) -> Seen:
        child = (key[0], front_name(key[1]))
        deployment, service = self._find(DEPLOYMENT, child) or {}, self._find(SERVICE, child) or {}
        names = {name for model in gateway.spec.models for name in named_clusters(model, gateway)}
        address = (service.get("spec") or {}).get("clusterIP")
        return Seen(
            gateway=gateway,
            clusters={name: found for name in names if (found := self._cluster(name)) is not None},
            endpoint=f"http://{address}:{PORT_GATEWAY}" if address else None,
            ready_fronts=(deployment.get("status") or {}).get("readyReplicas") or 0,
            replicas=(deployment.get("spec") or {}).get("replicas") or gateway.spec.gateway.replicas,
            failures=failures,
        )

    def _cluster(self, named: str) -> InferenceCluster | None:
        namespace, _, name = named.partition("/")
        try:
            obj = self._caches.get(INFERENCE_CLUSTER, namespace, name)
        except KeyError:  # a namespace that this operator does not watch
            return None
        if obj is None or "deletionTimestamp" in obj["metadata"]:
            return None
        try:
            return load_inference_cluster(
                {**obj, "apiVersion": INFERENCE_CLUSTER.api_version, "kind": INFERENCE_CLUSTER.kind}
            )
        except InvalidValueError:
            return None  # its own status says so

    async def _write(
        self, owner: Owner, gateway: InferenceGateway, obj: Manifest, status: InferenceGatewayStatus
    ) -> None:
        if to_dict(gateway.status) == to_dict(status):
            return
        namespace, name = owner.namespace, owner.name
        written = await self._kube.apply_status(INFERENCE_GATEWAY, namespace, name, to_dict(status))
        if written is not None:
            self._informers[INFERENCE_GATEWAY, None if self._everywhere else namespace].record(written)
        await self._tell(owner, gateway, status)

    async def _tell(self, owner: Owner, gateway: InferenceGateway, status: InferenceGatewayStatus) -> None:
        """An event for each condition whose reason is another one now."""
        before = {each.type: each.reason for each in gateway.status.conditions}
        for condition in status.conditions:
            if before.get(condition.type) is condition.reason:
                continue
            bad = (condition.type is FrontConditionType.AVAILABLE) is (condition.status is ConditionStatus.FALSE)
            event = PlanEvent(
                reason=condition.reason,
                message=condition.message,
                subject=f"{condition.type.value}/{condition.last_transition_time}",
                warning=bad,
            )
            await self._kube.create(EVENT, event_of_state(owner, event, self._now(), by=self._identity))


def _informer(api: Api, resource: Resource, namespace: str | None) -> Informer:
    own = resource is INFERENCE_GATEWAY
    return Informer(
        api, resource, namespace=namespace, labels=None if own else {LABEL_FRONT: ""}, shape=SeenObject, optional=own
    )


def _named(obj: Manifest) -> set[str]:
    """Clusters that an object names, as `<namespace>/<name>`."""
    own = obj["metadata"]["namespace"]
    return {
        f"{reference.get('namespace') or own}/{reference.get('cluster')}"
        for model in (obj.get("spec") or {}).get("models") or []
        for reference in (*(model.get("backends") or []), *(model.get("fallback") or []))
    }
