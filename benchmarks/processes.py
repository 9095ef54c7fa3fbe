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


def engine_core(agent: psutil.Process) -> psutil.Process:
    """The process that runs the model, below an agent."""
    for process in agent.children(recursive=True):
        # It renames itself, which also overwrites the environment that `processes` looks for.
        if "EngineCore" in " ".join(process.cmdline()):
            return process
    raise AssertionError(f"no EngineCore runs below {agent}")
