"""The kubelet's outer loop: which Pods are this node's, and a `PodWorker` for each."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from fulcrum.kube import Api, Changed, Interrupted, Listed, follow
from fulcrum_local.certificates import self_signed
from fulcrum_local.kubelet.addresses import AddressPool
from fulcrum_local.kubelet.callers import Callers
from fulcrum_local.kubelet.config import KubeletConfig
from fulcrum_local.kubelet.devices import GPU, Devices
from fulcrum_local.kubelet.environment import base_environment
from fulcrum_local.kubelet.events import Recorder
from fulcrum_local.kubelet.inputs import Node
from fulcrum_local.kubelet.logserver import LogServer
from fulcrum_local.kubelet.node import Capacity, NodeRegistration, measure
from fulcrum_local.kubelet.pod import PodWorker
from fulcrum_local.kubelet.processes import (
    MARK_POD_UID,
    MARK_STATE,
    kill_marked,
    read_json,
    sweep_orphans,
    write_private,
)

Json = dict[str, Any]
logger = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 5.0


class Kubelet:
    """Runs the node's Pods until cancelled; their processes run on for the next kubelet."""

    def __init__(self, config: KubeletConfig, api: Api) -> None:
        self._config = config
        self._api = api
        self._pods = config.state_directory / "pods"
        self._pods.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._addresses = AddressPool(config.pod_cidr, config.state_directory / "addresses.json")
        capacity: Capacity = measure(config.extended_resources)
        self._recorder = Recorder(api, config.node_name)
        self._node = Node(
            name=config.node_name,
            address=self._addresses.node_address,
            api=api,
            recorder=self._recorder,
            state_directory=config.state_directory,
            environment=base_environment(
                os.environ, bin_directory=str(Path(sys.executable).parent), also=config.pass_environment
            ),
            capacity=capacity.amounts,
            devices=Devices(int(capacity.amounts.get(GPU, 0)), config.state_directory / "devices.json"),
            log_bytes=config.log_bytes,
        )
        self._capacity = capacity
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._finished: set[str] = set()

    async def run(self) -> None:
        """Serve until cancelled. Errors: OSError when the log server cannot listen."""
        server = LogServer(self._find, Callers(self._api, self._config.node_name).check)
        port = await server.start(self._node.address, self._certificate())
        registration = NodeRegistration(self._api, self._config, self._capacity, address=self._node.address, port=port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(registration.run())
                group.create_task(self._recorder.run())
                if self._config.sweep_orphans:
                    group.create_task(self._sweep())
                group.create_task(self._follow())
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await server.stop()

    def _certificate(self) -> Path:
        """The file with this start's key and certificate."""
        file = self._config.state_directory / "kubelet.pem"
        write_private(file, self_signed(f"system:node:{self._config.node_name}", self._node.address))
        return file

    # Pods that come and go.

    async def _follow(self) -> None:
        selectors = {"fieldSelector": f"spec.nodeName={self._config.node_name}"}
        async for event in follow(self._api, "/api/v1/pods", dict[str, Any], selectors=selectors):
            match event:
                case Listed(items=pods):
                    self._on_list(pods)
                case Changed(kind=kind, object=pod):
                    self._on_event(kind, pod)
                case Interrupted(error=error):
                    logger.warning("pods_not_watched error=%s", error)

    def _on_list(self, pods: list[Json]) -> None:
        present = {pod["metadata"]["uid"] for pod in pods}
        # First the Pods that have an address, then the Pods that need one.
        records = {entry.name: read_json(entry / "pod.json") for entry in self._pods.iterdir() if entry.is_dir()}
        for record in records.values():
            if record is not None:
                self._addresses.keep(record["podIP"])
        for pod in pods:
            self._seen(pod)
        for uid in set(self._workers) - present:
            self._workers[uid].vanished()
        self._finished &= present
        for uid, record in records.items():
            if uid not in present and uid not in self._workers:
                self._clean_up(uid, record)

    def _on_event(self, kind: str, pod: Json) -> None:
        if kind == "DELETED":
            uid = pod["metadata"]["uid"]
            self._finished.discard(uid)
            if uid in self._workers:
                self._workers[uid].vanished()
        else:
            self._seen(pod)

    def _seen(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._finished:
            return
        worker = self._workers.get(uid)
        if worker is not None:
            worker.update(pod)
        else:
            self._begin(pod, adopt=True)

    def _begin(self, pod: Json, *, adopt: bool) -> PodWorker:
        uid = pod["metadata"]["uid"]
        directory = self._pods / uid
        record = read_json(directory / "pod.json")
        if record is not None:
            address = record["podIP"]
        elif pod["spec"].get("hostNetwork"):
            address = self._node.address
        else:
            address = self._addresses.allocate()
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        # What is needed to end the Pod properly when its object is gone.
        kept = {
            "metadata": {key: pod["metadata"].get(key) for key in ("name", "namespace", "uid")},
            "spec": pod["spec"],
        }
        write_private(directory / "pod.json", json.dumps({"podIP": address, "pod": kept}))
        worker = PodWorker(self._node, pod, address=address, directory=directory)
        if adopt:
            worker.adopt()
        self._workers[uid] = worker
        task = asyncio.create_task(worker.run())
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._ended(uid, done))
        logger.info(
            "pod_taken pod=%s/%s uid=%s ip=%s", pod["metadata"]["namespace"], pod["metadata"]["name"], uid, address
        )
        return worker

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        worker = self._workers.pop(uid)
        del self._tasks[uid]
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            # A defect in one Pod's worker: the others go on, this one begins again from what is on disk and in the API.
            logger.error("pod_worker_failed uid=%s", uid, exc_info=error)
            asyncio.get_running_loop().call_later(5.0, self._resume, worker)
            return
        self._finished.add(uid)
        self._addresses.release(worker.address)

    def _resume(self, worker: PodWorker) -> None:
        if worker.uid not in self._workers:
            self._begin(worker.pod, adopt=True)

    def _clean_up(self, uid: str, record: Json | None) -> None:
        """A Pod of an earlier kubelet that is no longer in the API."""
        if record is None:
            kill_marked({MARK_POD_UID: uid, MARK_STATE: str(self._config.state_directory)})
            return
        self._begin(record["pod"], adopt=True).vanished()

    def _find(self, namespace: str, name: str) -> PodWorker | None:
        for worker in self._workers.values():
            metadata = worker.pod["metadata"]
            if metadata["namespace"] == namespace and metadata["name"] == name:
                return worker
        return None

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            sweep_orphans()
