"""What many clusters cost one operator: API calls, CPU, memory, time from a change to its Pods, and growth under churn.

    python benchmarks/fleet.py                       # 1, 100 and 1,000 clusters of 10 workers
    python benchmarks/fleet.py --clusters 1 100

The API server is `fulcrum apiserver`, the operator `fulcrum operator`, both as processes. Pods have no processes: a
hand in this process sets their status as kubelets would, and nothing answers at their addresses. Clusters are in mode
Manual. Churn is an hour of changes made as fast as the operator follows: a ratio changes (a flip) and a worker is lost,
in one cluster after the other. Exits with 0 only when every target holds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil
from _loopback.launch import tidy_on_sigterm

from fulcrum.controller.seen import SeenPod
from fulcrum.kube import APPLY, MERGE, Api, ApiFailure, Json, Resource, key_of
from fulcrum.kube.informer import Informer

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[1]
WORKERS = 10
NAMESPACE = "default"
CLUSTER = Resource(api_version="fulcrum.dev/v1alpha1", kind="InferenceCluster", plural="inferenceclusters")
POD = Resource(api_version="v1", kind="Pod", plural="pods")
DEPLOYMENT = Resource(api_version="apps/v1", kind="Deployment", plural="deployments")

IDLE_CALLS_PER_SECOND = 0.1
"""Of one idle cluster, watches not counted."""
CORES = 1.0
MEMORY_BYTES = 2**30
CHANGE_SECONDS = 5.0
"""Median from a change of a spec to the Pods that it asks for."""
GROWTH = 0.05
"""By how much memory may be larger in the last third of the churn than in the middle one."""


@dataclass(slots=True)
class Row:
    """What was measured with so many clusters."""

    clusters: int
    ready_seconds: float = 0.0
    calls_per_second: float = 0.0
    cores: float = 0.0
    memory_bytes: float = 0.0
    """Resident, at rest."""
    peak_bytes: float = 0.0
    """Resident, the most from start to end."""
    server_cores: float = 0.0
    server_bytes: float = 0.0
    """Of the API server, which is no part of the targets."""
    churn_cpu_seconds: float = 0.0
    change_seconds: list[float] = field(default_factory=list)
    churned: int = 0
    growth: float = 0.0

    def problems(self) -> Iterator[str]:
        """Targets that do not hold."""
        if self.calls_per_second / self.clusters > IDLE_CALLS_PER_SECOND:
            yield f"{self.calls_per_second / self.clusters:.2f} calls/s of an idle cluster"
        if self.cores > CORES:
            yield f"{self.cores:.2f} cores"
        if self.peak_bytes > MEMORY_BYTES:
            yield f"{self.peak_bytes / 2**20:.0f} MiB"
        if median(self.change_seconds) > CHANGE_SECONDS:
            yield f"{median(self.change_seconds):.1f} s from a change to its Pods"
        if self.growth > GROWTH:
            yield f"memory grew by {self.growth:.0%} under churn"


class Hand:
    """Plays kubelets and the Deployment controller, as fast as it can."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.pods = Informer(api, POD, shape=SeenPod)
        self.deployments = Informer(api, DEPLOYMENT)
        self.made: dict[str, int] = {}
        """Pods that each cluster has been given so far."""
        self._queue: asyncio.Queue[tuple[Resource, Json]] = asyncio.Queue()
        self._addresses = (f"127.{a}.{b}.{c}" for a in range(100, 200) for b in range(250) for c in range(1, 250))
        self.pods.subscribe(self._pod_changed)
        self.deployments.subscribe(
            lambda old, new: None if old or not new else self._queue.put_nowait((DEPLOYMENT, new))
        )

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pods.run())
            tasks.create_task(self.deployments.run())
            for _ in range(16):
                tasks.create_task(self._work())

    def _pod_changed(self, old: Json | None, new: Json | None) -> None:
        if new is None:
            return
        if old is None:
            cluster = new["metadata"]["labels"].get("fulcrum.dev/cluster", "")
            self.made[cluster] = self.made.get(cluster, 0) + 1
        if old is None or "deletionTimestamp" in new["metadata"]:
            self._queue.put_nowait((POD, new))

    def _deployment_changed(self, old: Json | None, new: Json | None) -> None:
        if old is None and new is not None:
            self._queue.put_nowait((DEPLOYMENT, new))

    async def _work(self) -> None:
        while True:
            resource, obj = await self._queue.get()
            with contextlib.suppress(ApiFailure):
                if "deletionTimestamp" in obj["metadata"]:
                    await self.api.delete(resource.path(key_of(obj)), uid=obj["metadata"]["uid"], grace_seconds=0)
                    continue
                status = self._ready_pod() if resource is POD else _available(obj)
                path = resource.path(key_of(obj), "status")
                await self.api.patch(path, {"status": status}, content_type=MERGE)

    def _ready_pod(self) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "phase": "Running",
            "podIP": next(self._addresses),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
        }

    def of_cluster(self, name: str) -> list[Json]:
        """A cluster's Pods."""
        return [pod for pod in self.pods if pod["metadata"]["labels"].get("fulcrum.dev/cluster") == name]

    def workers(self, name: str) -> int:
        """How many Pods a cluster has."""
        return len(self.of_cluster(name))

    def count(self) -> int:
        """Pods that there are."""
        return sum(1 for _ in self.pods)


def _available(deployment: Json) -> Json:
    count = deployment["spec"]["replicas"]
    return {"replicas": count, "readyReplicas": count, "availableReplicas": count, "updatedReplicas": count}


def document(name: str, workers: int, prefill: int) -> Json:
    """An InferenceCluster of so many workers, `prefill` of them in that role."""
    return {
        "apiVersion": CLUSTER.api_version,
        "kind": CLUSTER.kind,
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "m"},
            "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": workers}}],
            "balance": {"mode": "Manual", "ratio": {"prefill": prefill, "decode": workers - prefill}},
        },
    }


async def until(what: str, check: Callable[[], bool], *, seconds: float) -> float:
    """Seconds until `check` holds."""
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(0.02)
    return time.monotonic() - began


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[tuple[Path, psutil.Process]]:
    """A fresh API server with our CRD; yields its kubeconfig and its process."""
    kubeconfig = folder / "kubeconfig"
    command = [BIN / "fulcrum", "apiserver", "--state-dir", folder / "state", "--kubeconfig-out", kubeconfig]
    with (folder / "apiserver.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    with ended(process):
        while not kubeconfig.exists():
            time.sleep(0.1)
        kubectl = [BIN / "kubectl", f"--kubeconfig={kubeconfig}"]
        subprocess.run([*kubectl, "apply", "-k", REPOSITORY / "crds"], check=True, capture_output=True)
        wait = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]
        subprocess.run([*kubectl, *wait], check=True, capture_output=True)
        yield kubeconfig, psutil.Process(process.pid)


@contextlib.contextmanager
def operator(folder: Path) -> Iterator[psutil.Process]:
    """The operator; nobody else leads."""
    command = [BIN / "fulcrum", "operator", "--no-leader-election", "--health-address", "127.0.0.1:0"]
    with (folder / "operator.log").open("wb") as log:
        env = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    with ended(process):
        yield psutil.Process(process.pid)


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The process is stopped at the end."""
    with tidy_on_sigterm():
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


async def calls(api: Api) -> float:
    """Requests that the server has answered, watches not counted."""
    text = (await api.request("GET", "/metrics")).decode()
    lines = re.findall(r"^apiserver_request_total\{([^}]*)\} (\S+)$", text, re.MULTILINE)
    return sum(float(count) for labels, count in lines if 'verb="WATCH"' not in labels)


def peak_bytes(process: psutil.Process) -> float:
    """The most memory that was resident so far."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return float(found[1]) * 1024


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time so far."""
    spent = process.cpu_times()
    return spent.user + spent.system


async def measure(count: int, *, idle_seconds: float, changes: int, churn: int, patience_seconds: float) -> Row:
    """One fleet from nothing to its end."""
    row = Row(clusters=count)
    names = [f"c{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="fleet-") as name, api_server(Path(name)) as (kubeconfig, server):
        api = Api(kubeconfig, timeout_seconds=60)
        hand = Hand(api)
        playing = asyncio.create_task(hand.run())
        try:
            with operator(Path(name)) as process:
                began = time.monotonic()
                for each in names:
                    await _apply(api, each, document(each, WORKERS, WORKERS // 2))
                await until("all Pods", lambda: hand.count() >= count * WORKERS, seconds=patience_seconds)
                row.ready_seconds = time.monotonic() - began
                await _settled(api, patience_seconds)
                await _idle(row, api, process, server, idle_seconds)
                await _change(row, api, hand, names[:1] * changes if count < changes else names[:changes])
                await _churn(row, api, hand, names, process, churn=churn)
                row.peak_bytes = peak_bytes(process)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await api.close()
    return row


async def _apply(api: Api, name: str, body: Json) -> None:
    params = {"fieldManager": "user", "force": "true"}
    await api.patch(CLUSTER.path((NAMESPACE, name)), body, content_type=APPLY, params=params)


async def _settled(api: Api, patience_seconds: float) -> None:
    """Wait until statuses are written: few calls in five seconds."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        before = await calls(api)
        await asyncio.sleep(5)
        if await calls(api) - before <= 5 + 1:  # ours among them
            return


async def _idle(row: Row, api: Api, process: psutil.Process, server: psutil.Process, seconds: float) -> None:
    calls_before, cpu_before, began = await calls(api), cpu_seconds(process), time.monotonic()
    server_before = cpu_seconds(server)
    await asyncio.sleep(seconds)
    spent = time.monotonic() - began
    row.calls_per_second = max(0.0, await calls(api) - calls_before - 1) / spent
    row.cores = (cpu_seconds(process) - cpu_before) / spent
    row.memory_bytes = process.memory_info().rss
    row.server_cores = (cpu_seconds(server) - server_before) / spent
    row.server_bytes = server.memory_info().rss


async def _change(row: Row, api: Api, hand: Hand, names: list[str]) -> None:
    """One worker more, in one cluster after the other."""
    for name in names:
        made = hand.made[name]
        began = time.monotonic()
        await _apply(api, name, document(name, hand.workers(name) + 1, WORKERS // 2))
        await until(f"{name}'s new Pod", lambda name=name, made=made: hand.made[name] > made, seconds=300)
        row.change_seconds.append(time.monotonic() - began)


async def _churn(row: Row, api: Api, hand: Hand, names: list[str], process: psutil.Process, *, churn: int) -> None:
    """Flip a worker, lose another and see it replaced, in one cluster after the other."""
    memory: list[int] = []
    cpu_before = cpu_seconds(process)
    for number in range(churn):
        name = names[number * 7 % len(names)]
        made, workers = hand.made[name], hand.workers(name)
        lost = hand.of_cluster(name)[0]
        await _apply(api, name, document(name, workers, WORKERS // 2 - 1 + number // len(names) % 3))
        await api.delete(POD.path(key_of(lost)), uid=lost["metadata"]["uid"], grace_seconds=0)
        await until(f"{name}'s next Pod", lambda name=name, made=made: hand.made[name] > made, seconds=300)
        memory.append(process.memory_info().rss)
    third = len(memory) // 3
    row.churn_cpu_seconds = cpu_seconds(process) - cpu_before
    row.churned = len(memory)
    if third:
        row.growth = median(memory[-third:]) / median(memory[third : 2 * third]) - 1


def show(rows: list[Row]) -> int:
    """Print the table; 0 when every target holds."""
    print(
        "\n                                   operator, idle                                                 "
        "                    API server\n"
        "clusters  Pods  all made s  calls/s  per cluster  cores   MiB  peak MiB  change -> Pods s (max)  churn  "
        "CPU ms each  growth   cores   MiB"
    )
    problems = []
    for row in rows:
        print(
            f"{row.clusters:8d} {row.clusters * WORKERS:5d} {row.ready_seconds:11.1f} {row.calls_per_second:8.2f} "
            f"{row.calls_per_second / row.clusters:12.3f} {row.cores:6.2f} {row.memory_bytes / 2**20:5.0f} "
            f"{row.peak_bytes / 2**20:9.0f} {median(row.change_seconds):14.2f} ({max(row.change_seconds):5.2f}) "
            f"{row.churned:6d} {1000 * row.churn_cpu_seconds / max(1, row.churned):12.0f} {row.growth:7.1%} "
            f"{row.server_cores:7.2f} {row.server_bytes / 2**20:5.0f}"
        )
        problems += [f"{row.clusters} clusters: {problem}" for problem in row.problems()]
    print("every target holds" if not problems else "does not hold: " + "; ".join(problems))
    return 1 if problems else 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--churn", type=int, default=360, help="Lost workers and flips: an hour at one in ten seconds.")
    parser.add_argument("--patience-seconds", type=float, default=3600.0)
    arguments = parser.parse_args()
    rows = []
    for count in arguments.clusters:
        rows.append(
            asyncio.run(
                measure(
                    count,
                    idle_seconds=arguments.idle_seconds,
                    changes=arguments.changes,
                    churn=arguments.churn,
                    patience_seconds=arguments.patience_seconds,
                )
            )
        )
        print(rows[-1], flush=True)
    return show(rows)


if __name__ == "__main__":
    sys.exit(main())
