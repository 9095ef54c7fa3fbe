"""Processes of a fleet, an API server and one operator, and what they cost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from _loopback.launch import tidy_on_sigterm

from fulcrum.kube import APPLY, Api, Json, Resource

NAMESPACE = "default"
CLUSTER = Resource(api_version="fulcrum.dev/v1alpha1", kind="InferenceCluster", plural="inferenceclusters")
BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[2]


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


def metrics_url(folder: Path) -> str:
    """Where the operator of this folder shows its metrics; it chose the port."""
    found = re.search(r"health=(\S+)", (folder / "operator.log").read_text())
    assert found is not None
    return f"http://{found[1]}/metrics"


async def apply(api: Api, name: str, body: Json) -> None:
    """Create or change an InferenceCluster."""
    params = {"fieldManager": "user", "force": "true"}
    await api.patch(CLUSTER.path((NAMESPACE, name)), body, content_type=APPLY, params=params)


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
