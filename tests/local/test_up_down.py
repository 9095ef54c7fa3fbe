"""`fulcrum up` to `fulcrum down` with a small program in place of an engine; everything is killed once on the way."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.machine import deadline_seconds

Json = dict[str, Any]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

WEB = """
apiVersion: v1
kind: ConfigMap
metadata: {name: kept}
data: {word: survives}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: web
        image: none
        command:
        - python3
        - -c
        - |
          import http.server as h, os
          print("serving")
          h.HTTPServer((os.environ["POD_IP"], 8000), h.SimpleHTTPRequestHandler).serve_forever()
        env:
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: PYTHONUNBUFFERED, value: "1"}
        readinessProbe: {httpGet: {path: /, port: 8000}, periodSeconds: 2}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8000}]
"""


class Local:
    """The command line in a home of its own."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.file = directory / "web.yaml"
        self.file.write_text(WEB)

    def fulcrum(self, *args: str, code: int = 0, seconds: float = 300) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fulcrum.cli.app", *args],
            capture_output=True,
            text=True,
            timeout=deadline_seconds(seconds),
            check=False,
            env={**os.environ, "FULCRUM_HOME": str(self.home)},
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def up(self, *args: str) -> str:
        return self.fulcrum("up", "-f", str(self.file), "--no-operator", "--timeout=240", *args)

    def status(self, *, code: int = 0) -> Json:
        found: Json = json.loads(self.fulcrum("status", "--json", code=code))
        return found

    def kubectl(self, *args: str) -> str:
        kubectl = Path(sys.executable).parent / "kubectl"
        command = [str(kubectl), f"--kubeconfig={self.home / 'kubeconfig'}", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=deadline_seconds(180), check=True).stdout

    def answers(self) -> bool:
        """Whether the Service is served."""
        address = self.kubectl("get", "service", "web", "-o=jsonpath={.spec.clusterIP}")
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=deadline_seconds(5)) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def serves(self) -> bool:
        """Whether the API server answers."""
        try:
            return self.kubectl("get", "--raw=/readyz") == "ok"
        except subprocess.CalledProcessError:
            return False

    def pids(self) -> dict[str, int]:
        """What runs by the supervisor's record, which leaves out a part that is just started again."""
        record = json.loads((self.home / "supervisor.json").read_text())
        return {name: int(part["pid"]) for name, part in record.items()}

    def pod_pids(self) -> list[int]:
        """Main processes of Pods (not their shims)."""
        found = []
        for process in self.processes("FULCRUM_NODE_STATE", self.home / "kubelet"):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends meanwhile
                if "shim.py" not in " ".join(process.cmdline()):
                    found.append(process.pid)
        return found

    def everything(self) -> list[psutil.Process]:
        """Whatever runs and belongs to this home."""
        pods = self.processes("FULCRUM_NODE_STATE", self.home / "kubelet")
        return pods + self.processes("FULCRUM_LOCAL_HOME", self.home)

    def processes(self, mark: str, value: Path) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(mark) == str(value) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in (self.home / "logs").glob("*.log"))

    def until(self, check: Callable[[], Any], *, seconds: float = 120) -> None:
        deadline = time.monotonic() + deadline_seconds(seconds)
        while not check():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    local = Local(tmp_path_factory.mktemp("local"))
    try:
        yield local
    finally:
        local.fulcrum("down", "--purge")
        assert local.everything() == []
        assert not local.home.exists()


def test_up_says_what_it_does_and_a_second_up_changes_nothing(local: Local) -> None:
    said = local.up()
    assert "Deployment default/web is available" in said
    assert "fulcrum down" in said
    assert local.answers()
    (url,) = re.findall(r"(http://127\.0\.0\.1:\d+/dashboard) ", said)
    assert local.status()["dashboard"] == url
    with urllib.request.urlopen(url, timeout=deadline_seconds(30)) as page:
        assert b"<title>Fulcrum</title>" in page.read()
    before = {process.pid for process in local.everything()}
    assert "Kubernetes runs already" in local.up()
    assert {process.pid for process in local.everything()} == before
    assert (local.home / "kubeconfig").stat().st_mode & 0o077 == 0
    assert local.fulcrum("kubeconfig", "--path").strip() == str(local.home / "kubeconfig")
    assert "certificate-authority-data" in local.fulcrum("kubeconfig")


def test_status_and_logs(local: Local) -> None:
    status = local.status()
    assert status["running"]
    programs = ["supervisor", "apiserver", "controllers", "kubelet", "dashboard"]
    assert [row["name"] for row in status["processes"]] == programs
    (pod,) = status["others"]
    assert (pod["ready"], pod["restarts"], pod["phase"]) == (True, 0, "Running")
    assert pod["name"] in local.fulcrum("status")
    assert "serving\n" in local.fulcrum("logs", pod["name"])
    assert "not found" in local.fulcrum("logs", "nobody", code=1)


def test_a_killed_process_comes_back(local: Local) -> None:
    (pid,) = local.pod_pids()
    os.kill(pid, signal.SIGKILL)
    local.until(lambda: local.status()["others"][0]["restarts"] == 1 and local.answers())


@pytest.mark.parametrize("name", ["kubelet", "apiserver", "controllers"])
def test_a_killed_part_comes_back_and_pods_run_on(local: Local, name: str) -> None:
    pods, killed = local.pod_pids(), local.pids()[name]
    os.kill(killed, signal.SIGKILL)
    local.until(lambda: local.pids().get(name, killed) != killed)
    local.until(local.serves)
    assert local.pod_pids() == pods
    # And it does its work: the old Pod is ended, a new one started, the Service follows.
    local.kubectl("rollout", "restart", "deployment/web")
    local.kubectl("rollout", "status", "deployment/web", f"--timeout={deadline_seconds(150):.0f}s")
    local.until(lambda: local.pod_pids() and not set(local.pod_pids()) & set(pods))
    local.until(local.answers)


def test_a_killed_supervisor_is_replaced_by_the_next_up(local: Local) -> None:
    pods = local.pod_pids()
    os.kill(local.pids()["supervisor"], signal.SIGKILL)
    assert local.status(code=3)["running"] is False
    local.up()
    assert local.pod_pids() == pods
    local.until(local.answers)


def test_down_leaves_no_process_and_up_finds_the_state_again(local: Local) -> None:
    assert "Stopped." in local.fulcrum("down")
    assert local.everything() == []
    assert "Nothing was running." in local.fulcrum("down")
    assert "Nothing runs" in local.fulcrum("status", code=3)
    assert "fulcrum up" in local.fulcrum("logs", "web", code=1)
    local.fulcrum("up", "--no-operator")
    assert local.kubectl("get", "configmap", "kept", "-o=jsonpath={.data.word}") == "survives"
    local.kubectl("rollout", "status", "deployment/web", f"--timeout={deadline_seconds(150):.0f}s")
    local.until(local.answers)


def test_down_after_everything_was_killed(local: Local) -> None:
    for name in ("supervisor", "kubelet", "apiserver", "controllers"):
        os.kill(local.pids()[name], signal.SIGKILL)
    assert local.pod_pids()
    local.fulcrum("down")
    assert local.everything() == []


def test_a_file_that_is_refused_says_why(local: Local) -> None:
    bad = local.home.parent / "bad.yaml"
    bad.write_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: Bad_Name}\nspec: {}\n")
    said = local.fulcrum("up", "--no-operator", "-f", str(bad), code=1)
    assert "was refused" in said
    assert "Bad_Name" in said
    bad.write_text("a: [")
    assert "cannot be read as YAML" in local.fulcrum("up", "--no-operator", "-f", str(bad), code=1)
    bad.write_text("kind: List\nmetadata: [1]\n")
    assert "List: items must be a list" in local.fulcrum("up", "--no-operator", "-f", str(bad), code=1)


def test_waiting_ends_with_what_is_wrong(local: Local) -> None:
    bad = local.home.parent / "crash.yaml"
    bad.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: crash}\n"
        "spec: {containers: [{name: main, image: none, terminationMessagePolicy: FallbackToLogsOnError,\n"
        "  command: [sh, -c, 'echo the last words; exit 7'], readinessProbe: {exec: {command: ['false']}}}]}\n"
    )
    said, seconds = "", 8
    while "CrashLoopBackOff" not in said and seconds <= 64:  # it has to crash twice before
        said = local.fulcrum("up", "--no-operator", f"--timeout={seconds}", "-f", str(bad), code=1)
        seconds *= 2
    assert "crash: CrashLoopBackOff (exit code 7): the last words" in said
    assert "is not ready after" in said
