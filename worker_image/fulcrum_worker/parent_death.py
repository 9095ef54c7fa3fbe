"""Processes that end with their parent, however it ends: vLLM 0.32's engine process survives a killed API server."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from typing import Final

ENV_PARENT: Final = "FULCRUM_WORKER_AGENT_PID"
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent `parent_pid` ends; ends at once if it already has.

    For a process that the parent's main thread has made: the kernel means the thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    _check_parent(parent_pid)


def end_with_parent(parent_pid: int) -> None:
    """Kill this process when its parent `parent_pid` ends, whichever of its threads made it; at once if it already has.

    vLLM starts its ranks from threads that end (0.33, `MultiprocExecutor._start_workers_concurrently`).
    """
    parent = os.pidfd_open(parent_pid)
    _check_parent(parent_pid)

    def watch() -> None:
        select.select([parent], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


def _check_parent(parent_pid: int) -> None:
    if os.getppid() != parent_pid:
        sys.exit(f"the parent process {parent_pid} is gone")
