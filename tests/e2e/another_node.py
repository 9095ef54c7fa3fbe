"""One more node of a local cluster, with a kubelet of its own, that can be lost like a machine whose power is cut."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil  # type: ignore[import-untyped]
from local_cluster import BIN, EVERYWHERE, Cluster, wait_until
from tests.machine import deadline_seconds


class AnotherNode:
    """A kubelet process beside the one of `fulcrum up`."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self._home = cluster.kubeconfig.parent / f"kubelet-{name}"
        log = cluster.kubeconfig.parent / "logs" / f"kubelet-{name}.log"
        with log.open("ab") as output:
            self._kubelet = subprocess.Popen(
                [
                    BIN / "fulcrum", "kubelet", "--kubeconfig", cluster.kubeconfig, "--node-name", name,
                    "--state-dir", self._home, "--pod-cidr", f"127.{random.randint(100, 250)}.0.0/16", "--no-taint",
                ],
                stdout=output, stderr=output, env={**os.environ, "PATH": cluster.env["PATH"]},
            )  # fmt: skip
        wait_until(f"node {name}", self._is_ready, seconds=60)

    def _is_ready(self) -> bool:
        assert self._kubelet.poll() is None, f"the kubelet of {self.name} ended"
        conditions = self._cluster.read("nodes", self.name, namespace=EVERYWHERE)["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def pods(self) -> list[str]:
        """Names of the Pods that it has."""
        found = self._cluster.read("pods", namespace=EVERYWHERE, fields=f"spec.nodeName={self.name}")["items"]
        return [pod["metadata"]["name"] for pod in found]

    def cut_power(self) -> None:
        """SIGKILL the kubelet and every process of its Pods at once."""
        self._kubelet.kill()
        self._kubelet.wait(deadline_seconds(60))
        self._kill_pods()

    def close(self) -> None:
        """End what is left of it, also in the API server: nobody else would report that its Pods have ended."""
        if self._kubelet.poll() is None:
            self._kubelet.send_signal(signal.SIGTERM)
            self._kubelet.wait(deadline_seconds(60))
        self._kill_pods()
        self._cluster.kubectl("delete", "node", self.name, "--ignore-not-found")
        of_node = ("--field-selector", f"spec.nodeName={self.name}")
        for namespace in (self._cluster.namespace, "fulcrum-system"):
            self._cluster.kubectl("-n", namespace, "delete", "pods", *of_node, "--force", "--grace-period=0")

    def _kill_pods(self) -> None:
        mains: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get("FULCRUM_NODE_STATE") == str(self._home):
                    mains.append(process)
        # Engines rename themselves, which overwrites the environment by which the others are found.
        everyone = {*mains}
        for process in mains:
            with suppress(psutil.NoSuchProcess):
                everyone.update(process.children(recursive=True))
        for process in everyone:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def another_node(cluster: Cluster, name: str) -> Iterator[AnotherNode]:
    """A node that is there until the end of the block, unless it is lost before."""
    node = AnotherNode(cluster, name)
    try:
        yield node
    finally:
        node.close()
