"""A release by real helm and kubectl in a local Kubernetes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.machine import deadline_seconds, wait_until

BIN = Path(sys.executable).parent
CHARTS = Path(__file__).resolve().parents[2] / "charts"
OPERATOR_NAMESPACE = "fulcrum-system"


class Release:
    """Helm and kubectl against a local Kubernetes of this test's own."""

    def __init__(self, home: Path, values: dict[str, Any]) -> None:
        self._env = {**os.environ, "FULCRUM_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
        for folder in ("CACHE", "CONFIG", "DATA"):
            self._env[f"HELM_{folder}_HOME"] = str(home.parent / "helm" / folder.lower())
        self.values = home.parent / "cluster.yaml"
        self.values.write_text(yaml.safe_dump(values))
        self.run("fulcrum", "up", "--no-operator")
        self.kubeconfig = Path(self.run("fulcrum", "kubeconfig", "--path").strip())
        self._env["KUBECONFIG"] = str(self.kubeconfig)

    @staticmethod
    def kubernetes_duration(seconds: float) -> str:
        """For `--timeout`: what takes less than `seconds` on a quick machine."""
        return f"{deadline_seconds(seconds):.0f}s"

    def run(self, *command: str, seconds: float = 180) -> str:
        done = subprocess.run(
            command, env=self._env, capture_output=True, text=True, timeout=deadline_seconds(seconds), check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}\n{self._described(command[0])}"
        return done.stdout

    def _described(self, program: str) -> str:
        if program not in ("helm", "kubectl"):
            return ""
        asked = (
            ("get", "ic,pods,events", "-A"),
            ("logs", "-n", OPERATOR_NAMESPACE, "deployment/fulcrum-operator", "--tail=30"),
        )
        answers = [
            subprocess.run(("kubectl", *each), env=self._env, capture_output=True, text=True, check=False)
            for each in asked
        ]
        return "\n".join(answer.stdout + answer.stderr for answer in answers)

    def kubectl(self, *arguments: str) -> str:
        return self.run("kubectl", *arguments)

    def read(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def helm_operator(self, verb: str, *settings: str) -> str:
        values = [word for setting in settings for word in ("--set", setting)]
        return self.run(
            "helm", verb, "fulcrum", str(CHARTS / "fulcrum"), "--namespace", OPERATOR_NAMESPACE, "--create-namespace",
            "--wait", "--timeout", self.kubernetes_duration(120), *values,
        )  # fmt: skip

    def helm_cluster(self, verb: str, *settings: str) -> str:
        values = [word for setting in settings for word in ("--set", setting)]
        chart = str(CHARTS / "fulcrum-cluster")
        return self.run("helm", verb, "chat", chart, "-n", "default", "-f", str(self.values), *values)

    def wait_available(self, *, seconds: int = 150) -> None:
        self.kubectl("wait", "ic/chat", "--for=condition=Available", f"--timeout={self.kubernetes_duration(seconds)}")

    def address(self) -> str:
        return str(self.read("service", "chat-gateway")["spec"]["clusterIP"])

    def until(self, what: str, check: Callable[[], Any], *, seconds: float = 120) -> None:
        wait_until(
            check, what=lambda: f"{what}\n{self._described('kubectl')}", seconds=seconds, pause_seconds=0.1,
        )  # fmt: skip


@contextmanager
def local_release(folder: Path, values: dict[str, Any]) -> Iterator[Release]:
    """Bring a local Kubernetes up without Fulcrum; `values` are those of the chart `fulcrum-cluster`."""
    if not (BIN / "helm").exists() or not (BIN / "kubectl").exists():
        pytest.skip("helm or kubectl is not installed")
    try:
        yield Release(folder / "home", values)
    finally:
        env = {**os.environ, "FULCRUM_HOME": str(folder / "home"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        command = ["fulcrum", "down", "--purge"]
        subprocess.run(command, env=env, check=True, capture_output=True, timeout=deadline_seconds(180))


def left_over(release: Release, namespace: str) -> list[str]:
    """Names of what is in a namespace beyond what every namespace has; Events end by themselves."""
    kinds = "pods,services,deployments,replicasets,serviceaccounts,roles,rolebindings,configmaps,secrets,leases"
    more = ",poddisruptionbudgets.policy,networkpolicies.networking.k8s.io"
    found = release.kubectl("get", kinds + more, "-n", namespace, "-o", "name").split()
    return sorted(set(found) - {"serviceaccount/default", "configmap/kube-root-ca.crt"})
