"""Deleting the object removes everything that was made for it, also with nobody there to do it."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]
import pytest
from local_cluster import Cluster, wait_until
from processes import processes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

CHILDREN = "pods,deployments,replicasets,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets"


def children(cluster: Cluster) -> list[str]:
    selector = f"fulcrum.dev/cluster={cluster.name}"
    return cluster.kubectl("get", CHILDREN, "-l", selector, "-o", "name").split()


def test_delete_while_the_operator_is_down(quickstart: Cluster) -> None:
    namespace = "fulcrum-system"
    running: list[psutil.Process] = []
    for component in ("worker", "gateway"):
        for pod in quickstart.pods(component):
            running += processes(quickstart, pod=pod["metadata"]["name"])
    assert len(children(quickstart)) >= 10
    quickstart.kubectl("-n", namespace, "scale", "deployment", "fulcrum-operator", "--replicas=0")
    wait_until("no operator", lambda: not quickstart.read("pods", namespace=namespace)["items"], seconds=120)
    quickstart.kubectl("delete", "ic", quickstart.name, "--wait=false")
    try:
        # The agents drain on SIGTERM, which with no load is quick.
        wait_until("nothing to be left", lambda: not children(quickstart), seconds=240, every_seconds=1)
        assert quickstart.read("inferenceclusters")["items"] == []
        wait_until("no process to be left", lambda: not [p for p in running if p.is_running()], seconds=120)
    finally:
        quickstart.kubectl("-n", namespace, "scale", "deployment", "fulcrum-operator", "--replicas=1")
