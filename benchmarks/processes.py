"""Processes of a local cluster's Pods, so that tests can kill them."""

from __future__ import annotations

import contextlib

import psutil  # type: ignore[import-untyped]
from local_cluster import Cluster


def processes(cluster: Cluster, *, pod: str) -> list[psutil.Process]:
    """Processes of a Pod of this cluster, the main one first."""
    home = str(cluster.kubeconfig.parent)
    parents = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get("POD_NAME") == pod and environment.get("FULCRUM_NODE_STATE", "").startswith(home):
                parents[process] = process.ppid()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    if not parents:
        raise AssertionError(f"no process has POD_NAME={pod} and its node's state under {home}")
    pids = {process.pid for process in parents}
    return sorted(parents, key=lambda process: parents[process] in pids)


def engine_core(agent: psutil.Process) -> psutil.Process:
    """The process that runs the model, below an agent."""
    for process in agent.children(recursive=True):
        # It renames itself, which also overwrites the environment that `processes` looks for.
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends meanwhile
            if "EngineCore" in " ".join(process.cmdline()):
                return process
    raise AssertionError(f"no EngineCore runs below {agent}")
