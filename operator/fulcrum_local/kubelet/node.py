"""The Node object, its status and its heartbeat (Lease)."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fulcrum import __version__
from fulcrum.kube import MERGE, STRATEGIC, Api, ApiError, ApiFailure
from fulcrum_local.kubelet.config import KubeletConfig
from fulcrum_local.kubelet.environment import quantity

Json = dict[str, Any]
logger = logging.getLogger(__name__)

LABEL_PROCESS_KUBELET: Final = "fulcrum.dev/process-kubelet"

_LEASE_SECONDS: Final = 40
_RENEW_SECONDS: Final = 10.0
_STATUS_SECONDS: Final = 300.0
_MAX_PODS: Final = 250
_CONDITIONS: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the node has: as quantities for the API and as numbers for resourceFieldRef."""

    quantities: dict[str, str]
    amounts: dict[str, float]


def measure(extended_resources: dict[str, str]) -> Capacity:
    """CPUs and memory of this machine plus what was announced. Errors: ValueError for what is no quantity."""
    cpus = len(os.sched_getaffinity(0))
    memory_kib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    quantities = {"cpu": str(cpus), "memory": f"{memory_kib}Ki", "pods": str(_MAX_PODS), **extended_resources}
    return Capacity(quantities=quantities, amounts={name: quantity(text) for name, text in quantities.items()})


class NodeRegistration:
    """Creates the Node, keeps its status true and renews its Lease, for ever."""

    def __init__(self, api: Api, config: KubeletConfig, capacity: Capacity, *, address: str, port: int) -> None:
        self._api = api
        self._config = config
        self._capacity = capacity
        self._address = address
        self._port = port
        self._path = f"/api/v1/nodes/{config.node_name}"
        self._uid: str | None = None
        self._posted_at = -_STATUS_SECONDS

    async def run(self) -> None:
        """Until cancelled; an API server that does not answer is waited for."""
        while True:
            try:
                if await self._keep_node():
                    await self._renew_lease()
            except ApiFailure as error:
                logger.warning("node_not_updated node=%s error=%s", self._config.node_name, error)
                await asyncio.sleep(1.0)
                continue
            await asyncio.sleep(_RENEW_SECONDS)

    async def _keep_node(self) -> bool:
        """Post the node's status where it is missing, wrong or old; False when the Node object is not ours (any more).

        A Node that was deleted stays away until the kubelet is started again, as in a real cluster: its Pods
        are to move.
        """
        node = await self._node()
        if node is None:
            return False
        labels = self._labels()
        have = node["metadata"].get("labels") or {}
        if any(have.get(key) != value for key, value in labels.items()):
            await self._api.patch(self._path, {"metadata": {"labels": labels}}, content_type=MERGE)
        status = self._status(node)
        old = time.monotonic() - self._posted_at >= _STATUS_SECONDS
        if old or _changing_part(status) != _changing_part(node.get("status") or {}):
            await self._api.patch(f"{self._path}/status", {"status": status}, content_type=STRATEGIC)
            self._posted_at = time.monotonic()
        return True

    async def _node(self) -> Json | None:
        try:
            node = await self._api.get(self._path)
        except ApiError as error:
            if error.code != 404:
                raise
            if self._uid is not None:
                name = self._config.node_name
                logger.warning("node_deleted node=%s: restart this kubelet to register it again", name)
                return None
            node = await self._create()
        self._uid = node["metadata"]["uid"]
        return node

    async def _create(self) -> Json:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._config.node_name, "labels": self._labels()},
            "spec": {"taints": list(self._config.taints)},
        }
        created = await self._api.create("/api/v1/nodes", node)
        logger.info("node_registered node=%s", self._config.node_name)
        return created

    def _labels(self) -> dict[str, str]:
        return {
            "kubernetes.io/hostname": self._config.node_name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
            LABEL_PROCESS_KUBELET: "true",
            **self._config.labels,
        }

    def _status(self, node: Json) -> Json:
        before = {item["type"]: item for item in (node.get("status") or {}).get("conditions") or []}
        now = _now()
        conditions = []
        for kind, status, reason, message in (
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "not measured in process mode"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "not measured in process mode"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "not measured in process mode"),
            ("Ready", "True", "KubeletReady", "the process kubelet runs"),
        ):
            same = before.get(kind, {}).get("status") == status
            since = before[kind].get("lastTransitionTime") if same else None
            conditions.append(
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": since or now,
                }
            )
        uname = os.uname()
        return {
            "capacity": self._capacity.quantities,
            "allocatable": self._capacity.quantities,
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._config.node_name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "conditions": conditions,
            "nodeInfo": {
                "architecture": platform.machine(),
                "operatingSystem": "linux",
                "kernelVersion": uname.release,
                "osImage": _os_image(),
                "containerRuntimeVersion": f"process://{__version__}",
                "kubeletVersion": f"v{__version__}-process",
                "kubeProxyVersion": "",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
            },
        }

    async def _renew_lease(self) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._config.node_name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": now,
        }
        try:
            await self._api.patch(f"{path}/{self._config.node_name}", {"spec": spec}, content_type=MERGE)
        except ApiError as error:
            if error.code != 404:
                raise
            await self._create_lease(path, spec)

    async def _create_lease(self, path: str, spec: Json) -> None:
        name = self._config.node_name
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": self._uid}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease", "ownerReferences": [owner]},
            "spec": spec,
        }
        try:
            await self._api.create(path, lease)
        except ApiError as error:
            if error.code != 404:
                raise
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}
            await self._api.create("/api/v1/namespaces", namespace)
            await self._api.create(path, lease)


def _changing_part(status: Json) -> Json:
    """What others may have written over (a silent node's conditions) or what differs from run to run."""
    conditions = {entry["type"]: (entry["status"], entry.get("reason")) for entry in status.get("conditions") or ()}
    return {
        "conditions": {kind: conditions.get(kind) for kind in _CONDITIONS},
        "addresses": status.get("addresses"),
        "port": (status.get("daemonEndpoints") or {}).get("kubeletEndpoint"),
    }


def _os_image() -> str:
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "Linux"
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("PRETTY_NAME=")), "Linux")


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
