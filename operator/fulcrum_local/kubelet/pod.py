"""One Pod: a level-triggered loop from what the API wants and what its processes do to the next step and the status."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime as dt
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any, Final

from fulcrum.kube import ApiError, ApiFailure
from fulcrum_local.kubelet.alarm import Alarm
from fulcrum_local.kubelet.container import Container
from fulcrum_local.kubelet.environment import ConfigError, command_line
from fulcrum_local.kubelet.inputs import Node, PodInputs
from fulcrum_local.kubelet.probers import Target
from fulcrum_local.kubelet.processes import MARK_POD_UID, MARK_STATE, kill_marked
from fulcrum_local.kubelet.statuses import Waiting, init_done, pod_status, restarts
from fulcrum_local.kubelet.volumes import translated

Json = dict[str, Any]
logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 2.0
_FORCED_GRACE_SECONDS: Final = 2.0
"""What a Pod gets that was deleted by force, as the kubelet does."""
_DEFAULT_GRACE_SECONDS: Final = 30


class PodWorker:
    """Runs one Pod (by uid) until it is gone; `done` is set when nothing of it is left here."""

    def __init__(self, node: Node, pod: Json, *, address: str, directory: Path) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.address = address
        self.done = asyncio.Event()
        self._node = node
        self._directory = directory
        self._wake = asyncio.Event()
        self._wake.set()
        self._alarm = Alarm(self._wake.set)
        self._tasks: set[asyncio.Task[None]] = set()
        self._inputs = PodInputs(node, address=address, directory=directory)
        self._start_time = (pod.get("status") or {}).get("startTime") or _now()
        self._written: Json | None = None
        self._gone = False
        self._deadline = float("inf")
        self._termination: asyncio.Task[None] | None = None
        spec = pod["spec"]
        self.inits = [self._container(item) for item in spec.get("initContainers") or []]
        self.containers = [self._container(item) for item in spec["containers"]]

    def _container(self, spec: Json) -> Container:
        return Container(
            spec,
            directory=self._directory / "containers" / spec["name"],
            pod_uid=self.uid,
            changed=self._wake.set,
            report=self._report,
            unhealthy=self._unhealthy,
        )

    # What comes in.

    def update(self, pod: Json) -> None:
        """Another version of the object; an older one than we have (it crossed our own write) is of no use."""
        if _version(pod) >= _version(self.pod):
            self.pod = pod
            self._wake.set()

    def vanished(self) -> None:
        """The object is no longer there: deleted by force, or while it was not watched."""
        self._gone = True
        self._wake.set()

    def find(self, container: str) -> Container | None:
        """The container of that name."""
        return next((item for item in [*self.inits, *self.containers] if item.name == container), None)

    def adopt(self) -> None:
        """Take over the processes that an earlier kubelet left."""
        status = self.pod.get("status") or {}
        known = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        previous = {item["name"]: item for item in known}
        for container in [*self.inits, *self.containers]:
            container.adopt(previous.get(container.name), self._target(container, self._node.environment))

    # The loop.

    async def run(self) -> None:
        """Until nothing is left of the Pod, or the task is cancelled (then its processes run on)."""
        try:
            while not self.done.is_set():
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._sync()
                except (ApiFailure, OSError) as error:
                    logger.warning("pod_sync_failed pod=%s error=%s", self._key, error)
                    self._alarm.within(_RETRY_SECONDS)
        finally:
            self._alarm.off()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for container in [*self.inits, *self.containers]:
                await container.abandon()

    async def _sync(self) -> None:
        if self._gone or self.pod["metadata"].get("deletionTimestamp"):
            await self._sync_ending()
            return
        phase = (self.pod.get("status") or {}).get("phase")
        if phase not in ("Succeeded", "Failed") and await self._prepare():
            await self._advance()
        await self._write_status()

    async def _advance(self) -> None:
        """Start what should run now: init containers one by one, then all containers."""
        policy = self.pod["spec"].get("restartPolicy") or "Always"
        init_policy = "Never" if policy == "Never" else "OnFailure"
        for container in self.inits:
            if init_done(container.view()):
                continue
            await self._start_if_due(container, init_policy)
            if not init_done(container.view()):
                for later in self.containers:
                    later.waiting = Waiting(reason="PodInitializing")
                return
        for container in self.containers:
            await self._start_if_due(container, policy)

    async def _start_if_due(self, container: Container, policy: str) -> None:
        if container.running is not None or container.stopping:
            return
        if container.exit is not None and not restarts(policy, container.exit.exit_code):
            return
        left_seconds = container.not_before - time.monotonic()
        if container.exit is not None and left_seconds > 0:
            which = f"container={container.name} pod={self._key}"
            message = f"back-off {container.backoff_seconds:.0f}s restarting failed {which}"
            if container.waiting is None or container.waiting.reason != "CrashLoopBackOff":
                self._report("BackOff", message, warning=True)
            container.waiting = Waiting(reason="CrashLoopBackOff", message=message)
            self._alarm.within(left_seconds)
            return
        await self._start(container)

    async def _start(self, container: Container) -> None:
        try:
            await self._inputs.refresh(self.pod)
            env = self._inputs.environment(self.pod, container.spec)
            folders = self._inputs.mount_folders(container.spec)
            argv = [translated(part, folders) for part in command_line(container.spec, env)]
        except ConfigError as error:
            self._wait(container, "CreateContainerConfigError", str(error))
            return
        if not argv:
            self._wait(
                container,
                "ErrImageNeverPull",
                f"container {container.name} has no command: this node runs Pods as processes and has no images, "
                "so that an image's own entry point is not known; set `command`",
            )
            return
        target = self._target(container, env)
        if not os.path.isdir(target.cwd):  # noqa: ASYNC240, PTH112 - one stat of a local folder
            self._wait(container, "CreateContainerConfigError", f"workingDir {target.cwd} does not exist")
            return
        await container.start(argv, target, log_bytes=self._node.log_bytes)

    def _wait(self, container: Container, reason: str, message: str) -> None:
        if container.waiting is None or container.waiting.message != message:
            self._report("Failed", f"Error: {message}", warning=True)
        container.waiting = Waiting(reason=reason, message=message)
        self._alarm.within(_RETRY_SECONDS)

    # What a container gets.

    async def _prepare(self) -> bool:
        """Folder, credentials and volumes, once; False while something is missing."""
        if self._inputs.prepared:
            return True
        try:
            await self._inputs.prepare(self.pod)
        except (ConfigError, ApiError) as error:
            for container in [*self.inits, *self.containers]:
                if container.running is None:
                    container.waiting = Waiting(reason="ContainerCreating", message=str(error))
            self._report("FailedMount", str(error), warning=True)
            self._alarm.within(_RETRY_SECONDS)
            return False
        if self._inputs.credentials is not None:
            self._spawn(self._inputs.credentials.keep(self._inputs.renew_in_seconds))
        self._spawn(self._inputs.keep_volumes(lambda: self.pod))
        return True

    def _target(self, container: Container, env: dict[str, str]) -> Target:
        ports = {port["name"]: port["containerPort"] for port in container.spec.get("ports") or [] if port.get("name")}
        folders = self._inputs.mount_folders(container.spec)
        cwd = translated(container.spec.get("workingDir") or str(self._directory), folders)
        return Target(host=self.address, ports=ports, env=env, cwd=cwd)

    # The end.

    async def _sync_ending(self) -> None:
        grace = self._grace_seconds()
        self._deadline = min(self._deadline, time.monotonic() + grace)
        if self._termination is None:
            logger.info("pod_terminating pod=%s grace_seconds=%.0f", self._key, grace)
            self._termination = self._spawn(self._terminate())
        if not self._termination.done():
            if not self._gone:
                await self._write_status()
            return
        if not self._gone:
            await self._write_status()
            with contextlib.suppress(ApiError):  # gone already, or another Pod of that name by now
                await self._node.api.delete(self._path, uid=self.uid, grace_seconds=0)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._node.devices.release(self.uid)
        logger.info("pod_gone pod=%s", self._key)
        self.done.set()

    def _grace_seconds(self) -> float:
        metadata = self.pod["metadata"]
        stamp = metadata.get("deletionTimestamp")
        if stamp is None:
            return _FORCED_GRACE_SECONDS
        grace = metadata.get("deletionGracePeriodSeconds")
        grace = _DEFAULT_GRACE_SECONDS if grace is None else grace
        # deletionTimestamp is when the grace ends; clocks may differ, so never more than the grace itself.
        ends = dt.datetime.fromisoformat(stamp)
        left = (ends - dt.datetime.now(dt.UTC)).total_seconds()
        # Whole seconds on the wire: a grace of 1 s would otherwise often be none.
        return max(0.0, min(left + 1.0, float(grace)))

    async def _terminate(self) -> None:
        async with asyncio.TaskGroup() as group:
            for container in [*self.inits, *self.containers]:
                target = self._target(container, self._hook_environment(container))
                group.create_task(container.stop(target, deadline=lambda: self._deadline))
        # What left its session and its shim, too.
        kill_marked({MARK_POD_UID: self.uid, MARK_STATE: str(self._node.state_directory)})
        self._wake.set()

    def _hook_environment(self, container: Container) -> dict[str, str]:
        try:
            return self._inputs.environment(self.pod, container.spec)
        except ConfigError:  # what it refers to may be deleted already
            return self._node.environment

    def _unhealthy(self, container: Container, grace_seconds: int | None) -> None:
        grace = grace_seconds
        if grace is None:
            grace = self.pod["spec"].get("terminationGracePeriodSeconds")
        deadline = time.monotonic() + (_DEFAULT_GRACE_SECONDS if grace is None else grace)
        target = self._target(container, self._hook_environment(container))
        self._spawn(container.stop(target, deadline=lambda: min(deadline, self._deadline)))

    # What goes out.

    async def _write_status(self) -> None:
        ending = self._termination is not None
        status = pod_status(
            self.pod,
            [container.view() for container in self.inits],
            [container.view() for container in self.containers],
            pod_ip=self.address,
            host_ip=self._node.address,
            start_time=self._start_time,
            now=_now(),
            terminating=ending,
            stopped=ending and self._termination is not None and self._termination.done(),
        )
        current = self.pod.get("status") or {}
        if current.get("phase") in ("Succeeded", "Failed"):
            # A terminal phase is for ever; the containers of such a Pod are not run again.
            return
        if status == self._written or _contains(current, status):
            return
        body = {"metadata": {"uid": self.uid}, "status": status}
        try:
            answer = await self._node.api.patch(f"{self._path}/status", body)
        except ApiError as error:
            if error.code in (404, 409):  # gone, or another Pod of that name: the watch will say so
                return
            raise
        self._written = status
        if _version(answer) >= _version(self.pod):
            self.pod = answer

    def _report(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._node.recorder.record(self.pod, reason, message, warning=warning)

    # Odds and ends.

    @property
    def _key(self) -> str:
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"

    @property
    def _path(self) -> str:
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _version(pod: Json) -> int:
    """Order of an object's versions (API servers count up); 0 for a record of ours that has none."""
    return int(pod["metadata"].get("resourceVersion") or 0)


def _contains(current: Json, wanted: Json) -> bool:
    """Whether what the API has already says what we would write (conditions by type)."""
    current = copy.copy(current)
    mine = {item["type"]: item for item in wanted["conditions"]}
    current["conditions"] = [item for item in current.get("conditions") or [] if item["type"] in mine]
    theirs = {item["type"]: item for item in current["conditions"]}
    for kind, item in mine.items():
        found = theirs.get(kind, {})
        if any(found.get(key) != value for key, value in item.items()):
            return False
    return all(current.get(key) == value for key, value in wanted.items() if key != "conditions")


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
