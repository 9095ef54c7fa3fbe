"""A cluster as its users have it: driven by `fulcrum` and `kubectl` from the command line."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from _loopback.launch import tidy_on_sigterm
from kubernetes import config
from kubernetes.client import ApiClient
from this_machine import deadline_seconds, suited
from urllib3.exceptions import HTTPError

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parent.parent
QUICKSTART = REPOSITORY / "examples" / "quickstart.yaml"
BIN = Path(sys.executable).parent
PATHS = {
    "events": "/api/v1",
    "nodes": "/api/v1",
    "pods": "/api/v1",
    "secrets": "/api/v1",
    "deployments": "/apis/apps/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "inferenceclusters": "/apis/fulcrum.dev/v1alpha1",
}
"""Where the API server has what `Cluster.read` reads."""
EVERYWHERE = ""
"""In place of a namespace."""
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{.*\})? (?P<value>\S+)", re.MULTILINE)


class CommandError(Exception):
    """A command that failed, with what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker Pod, as the API server has it."""

    name: str
    uid: str
    role: str
    epoch: int
    """How often the worker has changed its role."""
    ip: str
    ready: bool
    restarts: int
    deleting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One InferenceCluster behind a kubeconfig."""

    kubeconfig: Path
    name: str
    namespace: str = "default"

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """What kubectl printed; raises CommandError when it fails, unless `check` is False."""
        return run(BIN / "kubectl", "-n", self.namespace, *arguments, env=self.env, check=check)

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def read(
        self, kind: str, name: str = "", *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> Any:
        """One object, or a list of those that both selectors match; raises CommandError when there is no answer.

        Not by kubectl: waiting for something asks often, and each start of kubectl takes as much as twenty answers.
        """
        place = self.namespace if namespace is None else namespace
        scope = f"/namespaces/{place}" if place else ""
        selectors = [("labelSelector", labels), ("fieldSelector", fields)]
        return read_path(self.kubeconfig, f"{PATHS[kind]}{scope}/{kind}{name and f'/{name}'}", selectors)

    def cluster(self) -> Any:
        return self.read("inferenceclusters", self.name)

    def patch(self, spec: dict[str, Any]) -> None:
        self.kubectl("patch", "ic", self.name, "--type", "merge", "-p", json.dumps({"spec": spec}))

    def add_engine_args(self, *arguments: str) -> None:
        """Starts a new revision. A patch replaces a list as a whole, so what is there already is named again."""
        self.patch({"engine": {"args": [*self.cluster()["spec"]["engine"].get("args", []), *arguments]}})

    def patch_ratio(self, prefill: int, decode: int) -> None:
        self.patch({"balance": {"ratio": {"prefill": prefill, "decode": decode}}})

    def token(self) -> str:
        """What its workers ask for."""
        secret = self.read("secrets", f"{self.name}-internal")
        return base64.b64decode(secret["data"]["token"]).decode()

    def ask_engine(self, path: str, body: dict[str, Any], *, of: Worker | None = None) -> Any:
        """What one engine answers by itself, the first one unless `of` names another."""
        worker = of or self.workers()[0]
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token()}"}
        request = urllib.request.Request(f"http://{worker.ip}:8000{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=deadline_seconds(120)) as response:
            return json.load(response)

    def endpoint(self) -> str:
        return str(self.cluster()["status"]["endpoint"])

    def pods(self, component: str) -> list[Any]:
        selector = f"fulcrum.dev/cluster={self.name},app.kubernetes.io/component={component}"
        return list(self.read("pods", labels=selector)["items"])

    def workers(self) -> list[Worker]:
        """Worker Pods by name."""
        return sorted((_worker(pod) for pod in self.pods("worker")), key=lambda worker: worker.name)

    def roles(self) -> dict[str, int]:
        """Ready workers per role, by the Pods' labels."""
        roles = [worker.role for worker in self.workers() if worker.ready and not worker.deleting]
        return {role: roles.count(role) for role in set(roles)}

    def flips(self) -> int:
        """Role changes so far, over all workers."""
        return sum(worker.epoch for worker in self.workers())

    def condition(self, kind: str) -> str:
        """Status of a condition, or `Unknown`."""
        conditions = self.cluster().get("status", {}).get("conditions", [])
        return next((str(c["status"]) for c in conditions if c["type"] == kind), "Unknown")

    def rolled_out(self) -> bool:
        """Whether the operator has acted on the spec, and every gateway is of the Deployment that it made of it."""
        found = self.cluster()
        if found["status"].get("observedGeneration") != found["metadata"]["generation"]:
            return False
        gateway = self.read("deployments", f"{self.name}-gateway")
        wanted, status = gateway["spec"]["replicas"], gateway["status"]
        return bool(
            status.get("observedGeneration") == gateway["metadata"]["generation"]
            and status.get("replicas") == status.get("updatedReplicas") == status.get("readyReplicas") == wanted
        )

    def described(self) -> str:
        """Pods, the end of the operator's log, also from before its last restart, and the gateways' warnings."""
        of_operator = ("logs", "-n", "fulcrum-system", "deployment/fulcrum-operator", "--tail=40")
        asked = (("get", "ic", "-A"), ("get", "pods", "-A", "-o", "wide"), of_operator, (*of_operator, "--previous"))
        return "\n".join([*(self.kubectl(*arguments, check=False) for arguments in asked), *self._gateway_warnings()])

    def _gateway_warnings(self) -> list[str]:
        selector = "app.kubernetes.io/component=gateway"
        names = self.kubectl("get", "pods", "-l", selector, "-o", "name", check=False).split()
        logs = [self.kubectl("logs", name, check=False).splitlines() for name in names]
        said = [[line for line in log if "level=WARNING" in line or "level=ERROR" in line] for log in logs]
        return [line for lines in said for line in lines[-40:]]

    def kv_bytes_moved(self) -> int:
        """Bytes that NIXL has moved between the engines, as vLLM itself counts them."""
        name = "vllm:nixl_bytes_transferred_sum"
        return int(sum(metric(f"http://{worker.ip}:8000/metrics", name) for worker in self.workers()))


def read_path(kubeconfig: Path, path: str, query: Sequence[tuple[str, str]] = ()) -> Any:
    """What the API server has at a path, over a connection that stays open; raises CommandError."""
    client = _client(kubeconfig)
    method, url, headers, *_ = client.param_serialize(
        "GET", path, query_params=[(name, value) for name, value in query if value], auth_settings=["BearerToken"]
    )
    try:
        response = client.call_api(method, url, headers, _request_timeout=deadline_seconds(30))
        content = response.read()
    except HTTPError as error:
        raise CommandError(f"GET {path}: {error}") from error
    if response.status != HTTPStatus.OK:
        raise CommandError(f"GET {path}: {response.status} {content.decode(errors='replace')}")
    return json.loads(content)


@cache
def _client(kubeconfig: Path) -> ApiClient:
    return config.new_client_from_config(str(kubeconfig))


@contextmanager
def local_cluster(
    home: Path,
    *,
    manifest: Path = QUICKSTART,
    name: str = "quickstart",
    options: Sequence[str] = (),
    model: str | None = None,
) -> Iterator[Cluster]:
    """`fulcrum up -f manifest OPTIONS` with its state under `home`, and `fulcrum down` at the end, whatever happened.

    `model`, a tiny one, replaces the manifest's, which for all our examples is `smollm2`; it is prepared first, where
    it is not there. It is computed in float32, and so is all on a CPU without FP8 kernels.
    """
    home.mkdir(parents=True, exist_ok=True)
    prepared = model or "smollm2"
    if subprocess.run([BIN / "fulcrum", "model", prepared], check=False).returncode != 0:
        raise CommandError(f"fulcrum model {prepared} failed")
    env = {**os.environ, "FULCRUM_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
    with tidy_on_sigterm():
        try:
            # Inherits the terminal: users see its progress.
            command = [BIN / "fulcrum", "up", "-f", suited(manifest, home, model=model), *options]
            if subprocess.run(command, env=env, check=False).returncode != 0:
                raise CommandError(f"fulcrum up -f {manifest} failed")
            kubeconfig = Path(run(BIN / "fulcrum", "kubeconfig", "--path", env=env).strip())
            yield Cluster(kubeconfig=kubeconfig, name=name)
        finally:
            subprocess.run([BIN / "fulcrum", "down"], env=env, check=False)


def run(*arguments: str | Path, env: dict[str, str], check: bool = True) -> str:
    """Standard output of a command; raises CommandError with its standard error when it fails."""
    command = [str(argument) for argument in arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=deadline_seconds(600))
    if check and done.returncode != 0:
        raise CommandError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def metric(url: str, name: str) -> float:
    """Sum over the series of a metric at a Prometheus endpoint; 0 when it has none yet."""
    with urllib.request.urlopen(url, timeout=deadline_seconds(10)) as response:
        text = response.read().decode()
    return sum(float(sample["value"]) for sample in _SAMPLE.finditer(text) if sample["name"] == name)


def wait_until(what: str, probe: Callable[[], T | None], *, seconds: float, every_seconds: float = 0.25) -> T:
    """First true answer of `probe`; raises TimeoutError that says what was waited for, and the last error.

    In tests `seconds` are those of a quick machine.
    """
    seconds = deadline_seconds(seconds)
    deadline = time.monotonic() + seconds
    problem: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if answer := probe():
                return answer
        except (CommandError, OSError, KeyError) as error:
            problem = error
        time.sleep(every_seconds)
    raise TimeoutError(f"{what}: not within {seconds:g} s" + (f"; last error: {problem}" if problem else ""))


def _worker(pod: Any) -> Worker:
    status = pod.get("status", {})
    return Worker(
        name=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        role=pod["metadata"]["labels"].get("fulcrum.dev/role", ""),
        epoch=int(pod["metadata"].get("annotations", {}).get("fulcrum.dev/role-epoch", 0)),
        ip=status.get("podIP", ""),
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])),
        restarts=sum(c.get("restartCount", 0) for c in status.get("containerStatuses", [])),
        deleting="deletionTimestamp" in pod["metadata"],
    )
