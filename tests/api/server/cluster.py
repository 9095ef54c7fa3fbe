"""Access to the cluster under test: processes, kubectl, HTTP, watches and waiting."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import requests
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config
from tests.machine import deadline_seconds

from fulcrum_local.certificates import self_signed, server_context

Json = dict[str, Any]
T = TypeVar("T")
START_SECONDS = 90.0  # engines of other tests may have the machine


def wait_for(probe: Callable[[], T | None], what: str, seconds: float = 90.0) -> T:
    """The first result of `probe` that is not None or False; AssertionError after `seconds`."""
    deadline = time.monotonic() + deadline_seconds(seconds)
    while True:
        result = probe()
        if result is not None and result is not False:
            return result
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def kubelet_context(folder: Path) -> ssl.SSLContext:
    """TLS of a kubelet on loopback."""
    file = folder / "kubelet.pem"
    file.write_bytes(self_signed("system:node:one", "127.0.0.1"))
    return server_context(file, file)


class ServerProcess:
    """`fulcrum apiserver` as a process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.unlink(missing_ok=True)
        self._log = (folder / "apiserver.log").open("ab")
        command = [sys.executable, "-m", "fulcrum.cli.app", "apiserver", f"--state-dir={folder / 'state'}"]
        self.process = subprocess.Popen(
            [*command, f"--kubeconfig-out={self.kubeconfig}", *options], stdout=self._log, stderr=self._log
        )
        try:
            wait_for(self._is_ready, "API server ready", START_SECONDS)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log()
        return self.kubeconfig.exists()  # written once it listens

    def log(self) -> str:
        return (self.folder / "apiserver.log").read_text()[-4000:]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Exit code, after the signal (unless the process has ended already)."""
        self.process.send_signal(number)
        code = self.process.wait(deadline_seconds(60))
        self._log.close()
        return code


@contextlib.contextmanager
def local_api_server(folder: Path) -> Iterator[Path]:
    """A `fulcrum apiserver`; yields the administrator's kubeconfig."""
    server = ServerProcess(folder)
    try:
        yield server.kubeconfig
    finally:
        server.stop()


class Http(requests.Session):
    """A session whose paths are below one server."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self.trust_env = False
        self._server = server

    def request(self, method: str, path: str, **options: Any) -> requests.Response:  # type: ignore[override]
        options.setdefault("timeout", 60)
        return super().request(method, self._server + path, **options)


def client_of(kubeconfig: Path, *, credentials: bool = True) -> Http:
    """HTTP client for the server of a kubeconfig, with its credentials or none."""
    config = Configuration()
    load_kube_config(config_file=str(kubeconfig), client_configuration=config)
    client = Http(config.host)
    if config.ssl_ca_cert:
        client.verify = config.ssl_ca_cert
    if credentials and config.cert_file:
        client.cert = (config.cert_file, config.key_file)
    token = config.get_api_key_with_prefix("BearerToken", alias="authorization")
    if credentials and token:
        client.headers["Authorization"] = token
    return client


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """Runs the real kubectl."""

    kubeconfig: Path
    cache: Path
    namespace: str = ""

    def in_namespace(self, namespace: str) -> Kubectl:
        return dataclasses.replace(self, namespace=namespace)

    def command(self, *arguments: str) -> list[str]:
        program = Path(sys.executable).with_name("kubectl")
        options = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}"]
        if self.namespace:
            options.append(f"--namespace={self.namespace}")
        return [str(program), *options, *arguments]

    def run(self, *arguments: str, stdin: str | Json | None = None) -> subprocess.CompletedProcess[str]:
        """Run to the end, whatever the outcome."""
        text = stdin if isinstance(stdin, str) or stdin is None else json.dumps(stdin)
        return subprocess.run(
            self.command(*arguments),
            input=text,
            capture_output=True,
            text=True,
            timeout=deadline_seconds(180),
            check=False,
        )

    def __call__(self, *arguments: str, stdin: str | Json | None = None) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def fails(self, *arguments: str, stdin: str | Json | None = None) -> str:
        """Standard error of a command that must fail."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} succeeded: {done.stdout}"
        return done.stderr

    def get(self, *arguments: str) -> Json:
        """`kubectl get ... -o json`."""
        obj: Json = json.loads(self("get", *arguments, "-o", "json"))
        return obj


def delete_namespace(api: Http, name: str) -> None:
    """Delete a namespace without waiting for it; what holds its content back is removed."""
    api.delete(f"/api/v1/namespaces/{name}")
    for pod in api.get(f"/api/v1/namespaces/{name}/pods").json().get("items", []):
        api.delete(f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0")


class WatchStream:
    """Events of one watch, read line by line."""

    def __init__(self, api: Http, path: str, **parameters: str | int) -> None:
        query = {"watch": "true", "timeoutSeconds": 60, **parameters}
        self.response = api.get(path, params=query, stream=True, timeout=None)
        self._lines = self.response.iter_lines()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.response.close()

    def next(self) -> Json:
        """The next event; StopIteration at the end of the watch."""
        event: Json = json.loads(next(self._lines))
        return event

    def next_names(self, count: int) -> list[tuple[str, str]]:
        """`(type, name)` of the next events."""
        events = [self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]

    def rest(self) -> list[Json]:
        """Every event until the watch ends."""
        return [json.loads(line) for line in self._lines]


def config_map(name: str, labels: dict[str, str] | None = None, **entries: str) -> Json:
    """A ConfigMap's manifest."""
    metadata: Json = {"name": name, **({"labels": labels} if labels else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": entries}


def pod(name: str, **spec: Any) -> Json:
    """A Pod's manifest; its command is never run by an API server alone."""
    container = {"name": "main", "image": "example.com/none:1", "command": ["sleep", "1000"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def deployment(name: str, replicas: int = 1, image: str = "example.com/none:1") -> Json:
    """A Deployment's manifest."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": image}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }
