"""Runs vLLM's API server so that none of its processes outlives its parent, or keeps a core busy for nothing.

vLLM's engine process survives a killed API server (vLLM 0.32.0) and keeps memory, ports and accelerator. vLLM makes
its processes with multiprocessing's `spawn`, which runs the main module again in each child (as `__mp_main__`), or on a
CPU from a copy of this process (`engine_forks`). Either way `begin_child` comes first, and ends each with its parent.
"""

from __future__ import annotations

import os
import sys

from fulcrum_worker.engine_adapters import ENABLED as ADAPTERS_ENABLED
from fulcrum_worker.engine_adapters import skip_rows_without_adapter
from fulcrum_worker.engine_experts import ENV_EXPERTS_ON_CPU, share_experts_on_cpu
from fulcrum_worker.engine_forks import fork_children
from fulcrum_worker.engine_imports import (
    ENGINE_MODULE,
    SERVER_MODULE,
    import_without_collecting,
    inspect_in_process,
    is_on_cpu,
)
from fulcrum_worker.engine_limits import publish_limits
from fulcrum_worker.engine_ranks import end_with_lost_rank, refuse_dense_ranks
from fulcrum_worker.engine_start import run_headless, run_server
from fulcrum_worker.engine_steps import publish_steps
from fulcrum_worker.kv.registration import TIER_CONNECTOR, register_tier_connector
from fulcrum_worker.nixl_idle import ENV_POLL_MICROSECONDS, sleep_when_idle
from fulcrum_worker.parent_death import ENV_PARENT, die_with_parent, end_with_parent


def begin_child() -> None:
    """What every process that vLLM makes does first."""
    # multiprocessing does not know the parent yet, and does not say it on the command line. Process 1 is never the one
    # that made this child, only the one that inherits orphans.
    if (parent_pid := os.getppid()) == 1:
        sys.exit("the parent process is gone")
    end_with_parent(parent_pid)
    if ENV_POLL_MICROSECONDS in os.environ:
        try:
            sleep_when_idle(int(os.environ[ENV_POLL_MICROSECONDS]))
        except (ImportError, AttributeError) as error:
            print(f"NIXL's progress thread keeps a core busy: {error!r}", file=sys.stderr)
    if ENV_EXPERTS_ON_CPU in os.environ:
        try:
            share_experts_on_cpu()
        except (ImportError, AttributeError) as error:
            print(f"vLLM's ranks share no experts on this CPU: {error!r}", file=sys.stderr)
    import_without_collecting(ENGINE_MODULE)
    if ADAPTERS_ENABLED in sys.argv and is_on_cpu():
        try:
            skip_rows_without_adapter()
        except (ImportError, AttributeError) as error:
            print(f"vLLM mixes adapters into answers of the model on this CPU: {error!r}", file=sys.stderr)


if __name__ == "__main__":
    if ENV_PARENT in os.environ:
        die_with_parent(int(os.environ.pop(ENV_PARENT)))
    import_without_collecting(SERVER_MODULE)
    if is_on_cpu():
        import_without_collecting(ENGINE_MODULE)
        fork_children(begin_child)
        inspect_in_process()
    for what, publish in (
        ("limits", publish_limits),
        ("steps", publish_steps),
        ("lost ranks", end_with_lost_rank),
        ("ranks without experts", refuse_dense_ranks),
    ):
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
    begin_child()
