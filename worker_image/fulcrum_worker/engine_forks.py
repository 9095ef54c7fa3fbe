"""Has vLLM's engine process begin with all that its API server has imported, where vLLM would import it once more.

On a CPU vLLM makes its processes with multiprocessing's `spawn`, because OpenMP's threads do not survive a fork; most
of a start is imports then. multiprocessing's own fork server is as safe as `spawn` where it is a copy of a process that
has one thread and has only imported. On a GPU vLLM forks by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import context, forkserver, resource_tracker, spawn, util
from pathlib import Path
from typing import Any, Final, NoReturn

from fulcrum_worker.parent_death import die_with_parent

_ENVIRONMENT: Final = "fulcrum_environment"
_NEWEST_PYTHON: Final = (3, 13)
"""Python 3.14 starts its fork server in another way."""


def fork_children(began: Callable[[], None]) -> None:
    """From here on make what vLLM would spawn by forking a copy of this process as it is now.

    `began` runs first in each of them. Nothing changes where this process has threads, whose locks a copy would keep
    forever.
    """
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1 or sys.version_info[:2] > _NEWEST_PYTHON:
        why = f"{threads} threads" if threads > 1 else f"Python {sys.version_info.major}.{sys.version_info.minor}"
        print(f"vLLM's processes import all of it themselves: {why}", file=sys.stderr)
        return
    resource_tracker.ensure_running()  # it is made by what is replaced below, and needs no copy
    make, told = util.spawnv_passfds, spawn.get_preparation_data

    def copied(path: object, args: object, passfds: Sequence[int]) -> int:  # noqa: ARG001 - it runs no program
        return _copy(passfds, began)

    util.spawnv_passfds = copied
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = make
    # The children get this process's environment as it is then, as if they were spawned.
    spawn.get_preparation_data = lambda name: {**told(name), _ENVIRONMENT: dict(os.environ)}
    contexts: dict[str, Any] = vars(context)["_concrete_contexts"]
    contexts["spawn"] = contexts["forkserver"]


def _copy(handed: Sequence[int], began: Callable[[], None]) -> int:
    """Return the process id of the fork server: `handed` are its listener and the pipe that ends with its parent."""
    original = os.getpid()
    pid = os.fork()
    if pid == 0:
        _serve(handed, began, original)
    return pid


def _serve(handed: Sequence[int], began: Callable[[], None], original: int) -> NoReturn:
    prepare = spawn.prepare

    def prepared(data: Mapping[str, Any]) -> None:
        theirs = data[_ENVIRONMENT]
        for name in os.environ.keys() - theirs.keys():
            del os.environ[name]
        # Only what differs: a new environment would take the room in which a process has its title.
        os.environ.update(theirs.items() - os.environ.items())
        prepare(data)
        began()

    spawn.prepare = prepared
    try:
        die_with_parent(original)
        listener, parent_pipe = handed
        forkserver.main(listener, parent_pipe, [])
    finally:
        os._exit(1)  # a copy must not run what its original has set up for its own end
