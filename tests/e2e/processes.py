"""Processes of a local cluster's Pods, so that tests can kill them."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]
from local_cluster import Cluster


def processes(cluster: Cluster, *, pod: str) -> list[psutil.Process]:
    """Processes of a Pod of this cluster, the main one first."""
    home = str(cluster.kubeconfig.parent)
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get("POD_NAME") == pod and environment.get("FULCRUM_NODE_STATE", "").startswith(home):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    pids = {process.pid for process in found}
    found.sort(key=lambda process: process.ppid() in pids)
    if not found:
        raise AssertionError(f"no process has POD_NAME={pod} and its node's state under {home}")
    return found
