"""Runs vLLM's API server so that none of its processes outlives its parent, or keeps a core busy for nothing.

vLLM's engine process survives a killed API server (vLLM 0.32.0) and keeps memory, ports and accelerator. vLLM makes
its processes with multiprocessing's `spawn`, which runs the main module again in each child (as `__mp_main__`);
because this is the main module, every one of them ends when its parent goes.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from typing import Final

from fulcrum_worker.engine_imports import ENGINE_MODULE, SERVER_MODULE, import_without_collecting, inspect_in_process
from fulcrum_worker.engine_limits import publish_limits
from fulcrum_worker.engine_start import run_headless, run_server
from fulcrum_worker.engine_steps import publish_steps
from fulcrum_worker.kv.registration import TIER_CONNECTOR, register_tier_connector
from fulcrum_worker.nixl_idle import ENV_POLL_MICROSECONDS, sleep_when_idle

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


if __name__ == "__main__":
    if ENV_PARENT in os.environ:
        die_with_parent(int(os.environ.pop(ENV_PARENT)))
    import_without_collecting(SERVER_MODULE)
    inspect_in_process()
    for what, publish in (("limits", publish_limits), ("steps", publish_steps)):
        try:
            publish()
        except (ImportError, AttributeError) as error:
            print(f"vLLM's {what} stay unknown: {error!r}", file=sys.stderr)
    if any(TIER_CONNECTOR in argument for argument in sys.argv):
        register_tier_connector()
    if "--headless" in sys.argv:
        run_headless()
    else:
        run_server()
elif __name__ == "__mp_main__":
    # multiprocessing does not know the parent yet while it runs the main module, and does not say it on the command
    # line. Process 1 is never the one that made this child, only the one that inherits orphans.
    if (parent_pid := os.getppid()) == 1:
        sys.exit("the parent process is gone")
    end_with_parent(parent_pid)
    if ENV_POLL_MICROSECONDS in os.environ:
        try:
            sleep_when_idle(int(os.environ[ENV_POLL_MICROSECONDS]))
        except (ImportError, AttributeError) as error:
            print(f"NIXL's progress thread keeps a core busy: {error!r}", file=sys.stderr)
    import_without_collecting(ENGINE_MODULE)
