"""EndpointSlices: which Pods stand behind a Service."""

from __future__ import annotations

import hashlib
import json
import logging

from fulcrum_local.controllers.cluster import Cluster
from fulcrum_local.controllers.pods import is_finished, is_ready, is_terminating
from fulcrum_local.controllers.queue import WorkQueue
from fulcrum_local.controllers.resources import (
    ENDPOINT_SLICES,
    PODS,
    SERVICES,
    Json,
    Key,
    controller_reference,
    key_of,
)

logger = logging.getLogger(__name__)
_SERVICE_NAME = "kubernetes.io/service-name"
_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
_MANAGER = "endpointslice-controller.k8s.io"


class Endpoints:
    """Keeps the EndpointSlices of Services that have a selector."""

    def __init__(self, cluster: Cluster) -> None:
        """Follows Services, Pods and EndpointSlices."""
        self._cluster = cluster
        self._queue = WorkQueue[Key]("endpoints")
        self.services, self.pods = cluster.informer(SERVICES), cluster.informer(PODS)
        self.slices = cluster.informer(ENDPOINT_SLICES)
        self.informers = (self.services, self.pods, self.slices)

    async def run(self) -> None:
        """Work until cancelled."""
        self.services.subscribe(self._note_service)
        self.pods.subscribe(self._note_pod)
        self.slices.subscribe(self._note_slice)
        await self._queue.run(self._reconcile)

    def _note_service(self, old: Json | None, new: Json | None) -> None:
        for service in (old, new):
            if service is not None:
                self._queue.add(key_of(service))

    def _note_pod(self, old: Json | None, new: Json | None) -> None:
        for pod in (old, new):
            if pod is None:
                continue
            labels = pod["metadata"].get("labels") or {}
            for service in self.services.in_namespace(pod["metadata"]["namespace"]):
                if _selects(service, labels):
                    self._queue.add(key_of(service))

    def _note_slice(self, old: Json | None, new: Json | None) -> None:
        changed = new or old
        labels = (changed or {"metadata": {}})["metadata"].get("labels") or {}
        if changed is not None and labels.get(_MANAGED_BY) == _MANAGER and _SERVICE_NAME in labels:
            self._queue.add((changed["metadata"]["namespace"], labels[_SERVICE_NAME]))

    async def _reconcile(self, key: Key) -> None:
        service = self.services.get(key)
        wanted = {}
        if service is not None and "deletionTimestamp" not in service["metadata"] and service["spec"].get("selector"):
            members = [
                pod for pod in self.pods.in_namespace(key[0]) if _selects(service, pod["metadata"].get("labels") or {})
            ]
            wanted = {key_of(each): each for each in slices_of(service, members)}
        current = {
            key_of(each): each
            for each in self.slices.in_namespace(key[0])
            if (each["metadata"].get("labels") or {}).items() >= {_SERVICE_NAME: key[1], _MANAGED_BY: _MANAGER}.items()
        }
        for slice_key, each in wanted.items():
            await self._write(each, current.get(slice_key))
        for slice_key, each in current.items():
            if slice_key not in wanted:
                await self._cluster.delete(ENDPOINT_SLICES, each)

    async def _write(self, wanted: Json, current: Json | None) -> None:
        if current is None:
            await self._cluster.create(ENDPOINT_SLICES, wanted)
            return
        changed = {name: wanted[name] for name in ("endpoints", "ports") if (current.get(name) or []) != wanted[name]}
        if changed:
            ready = sum(each["conditions"]["ready"] for each in wanted["endpoints"])
            logger.info("endpoints_changed", extra={"slice": wanted["metadata"]["name"], "ready": ready})
            await self._cluster.patch(ENDPOINT_SLICES, current, changed)


def _selects(service: Json, labels: dict[str, str]) -> bool:
    selector = service["spec"].get("selector")
    return bool(selector) and selector.items() <= labels.items()


def slices_of(service: Json, pods: list[Json]) -> list[Json]:
    """The EndpointSlices of a Service: one for each way in which its ports resolve, and always at least one."""
    members = sorted((pod for pod in pods if _has_address(pod)), key=key_of)
    groups: dict[str, tuple[list[Json], list[Json]]] = {}
    for pod in members:
        ports = _ports(service, pod)
        groups.setdefault(json.dumps(ports, sort_keys=True), (ports, []))[1].append(_endpoint(service, pod))
    if not groups:
        groups[""] = ([], [])
    return [_slice(service, ports, endpoints) for ports, endpoints in groups.values()]


def _has_address(pod: Json) -> bool:
    return bool((pod.get("status") or {}).get("podIP")) and not is_finished(pod)


def _ports(service: Json, pod: Json) -> list[Json]:
    ports = []
    for port in service["spec"].get("ports") or ():
        protocol = port.get("protocol", "TCP")
        target = port.get("targetPort", port["port"])
        number = _named_port(pod, target, protocol) if isinstance(target, str) else target or port["port"]
        if number is not None:
            ports.append({"name": port.get("name", ""), "port": number, "protocol": protocol})
    return ports


def _named_port(pod: Json, name: str, protocol: str) -> int | None:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name and port.get("protocol", "TCP") == protocol:
                number: int = port["containerPort"]
                return number
    return None


def _endpoint(service: Json, pod: Json) -> Json:
    serving = is_ready(pod)
    terminating = is_terminating(pod)
    ready = (serving and not terminating) or bool(service["spec"].get("publishNotReadyAddresses"))
    namespace, name = key_of(pod)
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "nodeName": pod["spec"].get("nodeName", ""),
        "targetRef": {"kind": "Pod", "name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
    }


def _slice(service: Json, ports: list[Json], endpoints: list[Json]) -> Json:
    namespace, name = key_of(service)
    # Ports with equal names resolve alike as long as the Service does not change: the slice's name stays.
    identity = json.dumps([service["metadata"]["uid"], ports], sort_keys=True).encode()
    return {
        "metadata": {
            "name": f"{name[:240]}-{hashlib.sha256(identity).hexdigest()[:8]}",
            "namespace": namespace,
            "labels": {
                **(service["metadata"].get("labels") or {}),
                _SERVICE_NAME: name,
                _MANAGED_BY: _MANAGER,
            },
            "ownerReferences": [controller_reference(SERVICES, service)],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    }
