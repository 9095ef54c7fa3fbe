"""One container of one Pod: its runs one after another, its probes, its end."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fulcrum_local.kubelet import probers
from fulcrum_local.kubelet.backoff import Backoff
from fulcrum_local.kubelet.environment import quantity
from fulcrum_local.kubelet.events import Report
from fulcrum_local.kubelet.logs import termination_message
from fulcrum_local.kubelet.probers import Target
from fulcrum_local.kubelet.probes import ProbeSpec
from fulcrum_local.kubelet.probing import Probing
from fulcrum_local.kubelet.processes import MARK_CONTAINER, MARK_POD_UID, Shim, environment_of, kill_marked, read_json
from fulcrum_local.kubelet.statuses import ContainerView, Exited, Running, Waiting

Json = dict[str, Any]
logger = logging.getLogger(__name__)

_KEPT_RUNS: Final = 2
_KILL_SECONDS: Final = 5.0


class Container:
    """State of one container.

    `changed` is called whenever something happened that a status or a decision depends on; `unhealthy` when a startup
    or liveness probe has failed for good, with the grace period in seconds that the probe asks for: the owner stops
    the container, and the restart policy does the rest.
    """

    def __init__(
        self,
        spec: Json,
        *,
        directory: Path,
        pod_uid: str,
        changed: Callable[[], None],
        report: Report,
        unhealthy: Callable[[Container, int | None], None],
    ) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.exit: Exited | None = None
        """How the newest run ended; None while it runs, or when there was none."""
        self.running: Running | None = None
        self.waiting: Waiting | None = None
        self.restart_count = 0
        self.not_before = 0.0
        """Monotonic time before which it must not start again."""
        self.stopping = False
        self._runs = 0
        self._before: Exited | None = None
        self._directory = directory
        self._pod_uid = pod_uid
        self._changed = changed
        self._report = report
        self._unhealthy = unhealthy
        self._backoff = Backoff()
        self._probing: Probing | None = None
        self._shim: Shim | None = None
        self._watch: asyncio.Task[None] | None = None
        self._begun = 0.0

    # What it looks like.

    def view(self) -> ContainerView:
        """Frozen picture for the Pod's status."""
        state: Waiting | Running | Exited
        if self.running is not None:
            state, last = self.running, self._before
        elif self.waiting is not None or self.exit is None:
            state, last = self.waiting or Waiting(reason="ContainerCreating"), self.exit or self._before
        else:
            state, last = self.exit, self._before
        return ContainerView(
            name=self.name,
            image=self.spec.get("image", ""),
            state=state,
            last=last,
            restart_count=self.restart_count,
            ready=self._probing is not None and self._probing.ready,
            started=self._probing is not None and self._probing.started,
        )

    def log_directory(self, *, previous: bool) -> Path | None:
        """Folder of the log of the newest run, or of the one before; None when there is none."""
        run = self._runs - (2 if previous else 1)
        directory = self._directory / str(run)
        return directory if run >= 0 and directory.is_dir() else None

    @property
    def backoff_seconds(self) -> float:
        return self._backoff.delay_seconds

    # Its runs.

    async def start(self, argv: list[str], target: Target, *, log_bytes: int) -> None:
        """Start a run. An error to start it is an ended run with reason StartError."""
        assert self.running is None
        if self._runs:
            self.restart_count += 1
            self._backoff = self._backoff.restarted()
        directory = self._run_directory(self._runs)
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._runs += 1
        self._before, self.exit = self.exit or self._before, None
        self._forget_old_runs()
        started_at = _timestamp()
        try:
            shim = Shim.start(
                directory, argv, target.env, target.cwd, log_bytes=log_bytes, cpu_limit=_cpu_limit(self.spec)
            )
        except OSError as error:
            self._ended(None, error=str(error), started_at=started_at)
            return
        self.waiting = None
        if await shim.started():
            # The shim's own time, which a later kubelet reads, too: an adopted run must look unchanged.
            begun = read_json(directory / "started.json")
            self._run(shim, target, _seconds(begun["startedAt"]) if begun is not None else started_at)
            self._report("Started", f"Started container {self.name}")
        else:
            await shim.ended()
            self._ended(read_json(directory / "exit.json"), error="the shim ended", started_at=started_at)

    def adopt(self, previous: Json | None, target: Target) -> None:
        """Take over what an earlier kubelet left: the newest run, running or ended. `previous` is its API status."""
        runs = sorted(int(entry.name) for entry in self._directory.glob("*") if entry.name.isdigit())
        if not runs:
            return
        self._runs = runs[-1] + 1
        self.restart_count = runs[-1]
        directory = self._run_directory(runs[-1])
        before = read_json(self._run_directory(runs[-1] - 1) / "exit.json")
        if before is not None:
            self._before = self._as_exited(before, run=runs[-1] - 1)
        shim, begun = Shim.adopt(directory), read_json(directory / "started.json")
        if shim is not None and begun is not None:
            target = replace(target, env=environment_of(begun["pid"]) or target.env)
            probing = self._run(shim, target, _seconds(begun["startedAt"]))
            if previous is not None and previous.get("containerID") == self._container_id(runs[-1]):
                probing.started, probing.ready = bool(previous.get("started")), bool(previous.get("ready"))
            logger.info("container_adopted pod=%s container=%s pid=%d", self._pod_uid, self.name, shim.identity.pid)
        else:
            if shim is not None:
                shim.kill()
            self._ended(read_json(directory / "exit.json"), error=None, started_at=_timestamp())

    def _run(self, shim: Shim, target: Target, started_at: str) -> Probing:
        self._shim = shim
        self._begun = time.monotonic()
        self.waiting = None
        self.running = Running(started_at=started_at, container_id=self._container_id(self._runs - 1))
        probing = Probing(
            self.spec,
            target,
            begun=self._begun,
            changed=self._changed,
            has_started=shim.limit if _cpu_limit(self.spec) is not None else lambda: None,
            failed=self._give_up,
            report=self._report,
        )
        self._probing = probing
        self._watch = asyncio.create_task(self._follow(shim, probing, started_at))
        self._changed()
        return probing

    async def _follow(self, shim: Shim, probing: Probing, started_at: str) -> None:
        """Probes while the run lasts; then its end."""
        probes = asyncio.create_task(probing.run())
        try:
            await shim.ended()
        finally:
            probes.cancel()
        await asyncio.gather(probes, return_exceptions=True)
        self._ended(read_json(self._run_directory(self._runs - 1) / "exit.json"), error=None, started_at=started_at)

    def _ended(self, record: Json | None, *, error: str | None, started_at: str) -> None:
        run = self._runs - 1
        if record is None and error is None:
            # The shim was killed: its children are killed by the kernel or here, and the status is lost.
            kill_marked({MARK_POD_UID: self._pod_uid, MARK_CONTAINER: self.name})
            record = {"exitCode": 137, "signal": 9, "startedAt": started_at, "finishedAt": _timestamp()}
        elif record is None:
            record = {"exitCode": 128, "error": error, "startedAt": started_at, "finishedAt": _timestamp()}
        self.exit = self._as_exited(record, run=run)
        self.running = self._shim = self._probing = None
        self._backoff = self._backoff.ended(ran_seconds=time.monotonic() - self._begun if self._begun else 0.0)
        self.not_before = time.monotonic() + self._backoff.delay_seconds
        logger.info(
            "container_ended pod=%s container=%s exit_code=%d reason=%s restart_in_seconds=%.0f",
            self._pod_uid, self.name, self.exit.exit_code, self.exit.reason, self._backoff.delay_seconds,
        )  # fmt: skip
        self._changed()

    def _as_exited(self, record: Json, *, run: int) -> Exited:
        code = int(record["exitCode"])
        error = record.get("error")
        message = f"failed to start: {error}" if error else ""
        if not error and code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = termination_message(self._run_directory(run))
        return Exited(
            exit_code=code,
            signal=int(record.get("signal") or 0),
            reason="StartError" if error else "Error" if code else "Completed",
            message=message,
            started_at=_seconds(record["startedAt"]),
            finished_at=_seconds(record["finishedAt"]),
            container_id=self._container_id(run),
        )

    def _give_up(self, spec: ProbeSpec) -> None:
        self._report("Killing", f"Container {self.name} failed {spec.kind.value} probe, will be restarted")
        self._unhealthy(self, spec.grace_seconds)

    # Its end.

    async def stop(self, target: Target, *, deadline: Callable[[], float]) -> None:
        """preStop, SIGTERM, and SIGKILL once `deadline()` (monotonic; it may move closer) has passed; then returns."""
        shim, watch = self._shim, self._watch
        if shim is None or watch is None or self.running is None:
            return
        if not self.stopping:
            self.stopping = True
            self._report("Killing", f"Stopping container {self.name}")
            hook = ((self.spec.get("lifecycle") or {}).get("preStop")) or {}
            left = deadline() - time.monotonic()
            if hook and left > 0:
                outcome = await probers.carry_out(hook, target, timeout_seconds=left)
                if not outcome.ok:
                    self._report("FailedPreStopHook", outcome.message, warning=True)
            shim.terminate()
        while not watch.done() and (left := deadline() - time.monotonic()) > 0:
            # Short slices: a second DELETE with a shorter grace moves the deadline.
            await asyncio.wait({watch}, timeout=min(left, 0.5))
        if not watch.done():
            shim.kill()
            await asyncio.wait({watch}, timeout=_KILL_SECONDS)
        if not watch.done():
            kill_marked({MARK_POD_UID: self._pod_uid, MARK_CONTAINER: self.name})
            await asyncio.wait({watch})
        self.stopping = False
        self._changed()  # a restart that was due meanwhile was put off

    async def abandon(self) -> None:
        """Stop watching; the container runs on for the next kubelet."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    def _run_directory(self, run: int) -> Path:
        return self._directory / str(run)

    def _container_id(self, run: int) -> str:
        return f"process://{self._pod_uid}.{self.name}.{run}"

    def _forget_old_runs(self) -> None:
        for run in range(max(0, self._runs - _KEPT_RUNS - 8), self._runs - _KEPT_RUNS):
            shutil.rmtree(self._run_directory(run), ignore_errors=True)


def _timestamp() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(stamp: str) -> str:
    """An RFC 3339 time without its fraction, as Kubernetes' Time type is."""
    return stamp[:19] + "Z"


def _cpu_limit(spec: Json) -> float | None:
    """Cores that a container may use (`resources.limits.cpu`); None when it says nothing."""
    limits = (spec.get("resources") or {}).get("limits") or {}
    return quantity(limits["cpu"]) if limits.get("cpu") is not None else None
