"""What a Pod's containers get before they start: folders, credentials, ConfigMaps and Secrets, environment, devices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fulcrum.kube import Api, ApiError, Unreachable
from fulcrum_local.kubelet.credentials import Credentials, wants_token
from fulcrum_local.kubelet.devices import GPU, Devices
from fulcrum_local.kubelet.environment import ConfigError, build_environment, quantity
from fulcrum_local.kubelet.events import Recorder
from fulcrum_local.kubelet.processes import MARK_CONTAINER, MARK_POD_UID, MARK_STATE
from fulcrum_local.kubelet.service_links import api_server_variables, service_variables
from fulcrum_local.kubelet.volumes import live, materialise, mount_folders, references, translated, update, write_token

Json = dict[str, Any]
logger = logging.getLogger(__name__)

_UPDATE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What all Pods of a node share."""

    name: str
    address: str
    api: Api
    recorder: Recorder
    state_directory: Path
    environment: dict[str, str]
    capacity: dict[str, float]
    devices: Devices
    log_bytes: int


class PodInputs:
    """Inputs of one Pod. Errors of all methods: ConfigError and ApiError for what is missing, Unreachable, OSError."""

    def __init__(self, node: Node, *, address: str, directory: Path) -> None:
        self._node = node
        self._address = address
        self._directory = directory
        self._variables: dict[str, str] | None = None
        self._objects: dict[tuple[str, str], Json] = {}
        self._services: dict[str, str] = {}
        self.credentials: Credentials | None = None
        self.renew_in_seconds = 0.0

    @property
    def prepared(self) -> bool:
        """Whether `prepare` has succeeded."""
        return self._variables is not None

    async def prepare(self, pod: Json) -> None:
        """Make the Pod's folder, volumes and credentials."""
        self._directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        await self.refresh(pod)
        variables = materialise(
            pod,
            self._directory / "volumes",
            claims=self._node.state_directory / "claims",
            lookup=self._lookup,
            pod_ip=self._address,
            host_ip=self._node.address,
        )
        if wants_token(pod):
            volumes = self._directory / "volumes"
            self.credentials = Credentials(
                self._node.api, pod, self._directory, lambda token: write_token(pod, volumes, token)
            )
            self.renew_in_seconds = await self.credentials.write()
            variables["KUBECONFIG"] = str(self.credentials.kubeconfig)
        self._variables = variables

    async def keep_volumes(self, pod: Callable[[], Json]) -> None:
        """Let the volumes follow their ConfigMaps and Secrets, for as long as the Pod is there."""
        while live(pod()):
            await asyncio.sleep(_UPDATE_SECONDS)
            key = "{namespace}/{name}".format_map(pod()["metadata"])
            try:
                await self._read_objects(pod())
                changed = update(
                    pod(), self._directory / "volumes", lookup=self._lookup, pod_ip=self._address,
                    host_ip=self._node.address,
                )  # fmt: skip
            except (ConfigError, ApiError, Unreachable, OSError) as error:
                logger.warning("volumes_not_updated pod=%s error=%s", key, error)
                continue
            if changed:
                logger.info("volumes_updated pod=%s volumes=%s", key, ",".join(changed))

    async def refresh(self, pod: Json) -> None:
        """Read ConfigMaps, Secrets and Services as they are now: a container that restarts sees what is new."""
        await self._read_objects(pod)
        self._services = api_server_variables((await self._node.api.connect()).configuration.host)
        if pod["spec"].get("enableServiceLinks") is not False:
            found = await self._node.api.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/services")
            self._services = {**service_variables(found["items"]), **self._services}

    async def _read_objects(self, pod: Json) -> None:
        namespace = pod["metadata"]["namespace"]
        found: dict[tuple[str, str], Json] = {}
        for kind, name in references(pod):
            plural = "configmaps" if kind == "ConfigMap" else "secrets"
            try:
                found[kind, name] = await self._node.api.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}")
            except ApiError as error:
                if error.code != 404:
                    raise
        self._objects = found

    def environment(self, pod: Json, container: Json) -> dict[str, str]:
        """A container's whole environment."""
        if container.get("restartPolicy"):
            raise ConfigError("restartPolicy of a single container is not supported in process mode")
        env = build_environment(
            container,
            pod,
            base={
                **self._services,
                **self._node.environment,
                "HOSTNAME": pod["metadata"]["name"],
                **(self._variables or {}),
            },
            pod_ip=self._address,
            host_ip=self._node.address,
            capacity=self._node.capacity,
            lookup=self._lookup,
        )
        folders, inherited = self.mount_folders(container), self._node.environment
        env = {key: text if inherited.get(key) == text else translated(text, folders) for key, text in env.items()}
        uid, name = pod["metadata"]["uid"], container["name"]
        limits = (container.get("resources") or {}).get("limits") or {}
        env.update(self._node.devices.variables(uid, name, count=int(quantity(limits.get(GPU) or 0))))
        marks = {MARK_POD_UID: uid, MARK_CONTAINER: name, MARK_STATE: str(self._node.state_directory)}
        return {**env, **marks}

    def mount_folders(self, container: Json) -> dict[str, str]:
        """Mount path -> folder of this machine, for a container's mounts."""
        return mount_folders(container, self._variables or {})

    def _lookup(self, kind: str, name: str) -> Json | None:
        return self._objects.get((kind, name))
