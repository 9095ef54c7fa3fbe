"""Holds a container to its CPU limit (`resources.limits.cpu`) without cgroups, which a user's session may not have.

The limit begins when the kubelet says that the container has started (its startup probe has succeeded; without one, at
once). Until then a program sets itself up, which serves nobody: on a small machine imports at a third of a core are
most of the minutes until a worker is ready. A worker's startup probe succeeds when its engine is up and before the
agent measures it, and the agent waits for that probe. So what it measures is the speed that it will have.

Like the kernel's CFS quota: processor time is a bucket that fills at the limit and holds a few milliseconds; a process
that has emptied it is stopped (SIGSTOP) until there is some again (SIGCONT). The bucket is small, and idle containers
are watched closely, so that a worker is as slow for its first prompt as under load: promises are made from either.
Loaded by the shim, so standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

_BURST_SECONDS = 0.005
"""Processor time that an idle container may use at once."""
_TICK_SECONDS = 0.01
_IDLE_TICK_SECONDS = 0.02
_LONGEST_STOP_SECONDS = 0.5
_LOOK_SECONDS = 0.5
"""How often the process tree is read anew; what a new process has used by then counts, too."""


class CpuLimit:
    """The bucket of one container. Call `tick` when it says, until the container has ended, then `release`."""

    def __init__(self, main: int, cores: float) -> None:
        self._main = main
        self._cores = cores
        self._bucket_seconds = _BURST_SECONDS
        self._filled_at = time.monotonic()
        self._looked_at = 0.0
        self._used_seconds: dict[int, float] = {}
        self._stopped: list[int] = []

    def tick(self) -> float:
        """Stop or continue the container; returns seconds until the next tick."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            known = self._used_seconds
            self._used_seconds = {pid: known.get(pid, 0.0) for pid in _tree(self._main)}
        spent_seconds = self._spent_seconds()
        refill_seconds = (now - self._filled_at) * self._cores
        self._filled_at = now
        self._bucket_seconds += refill_seconds - spent_seconds
        self._bucket_seconds = max(-_LONGEST_STOP_SECONDS * self._cores, min(_BURST_SECONDS, self._bucket_seconds))
        if self._bucket_seconds <= 0 and not self._stopped:
            self._stopped = list(self._used_seconds)
            _signal_all(self._stopped, signal.SIGSTOP)
        elif self._bucket_seconds > 0 and self._stopped:
            self.release()
        if self._stopped:
            return max(0.001, -self._bucket_seconds / self._cores)
        return _IDLE_TICK_SECONDS if spent_seconds < _TICK_SECONDS * self._cores / 4 else _TICK_SECONDS

    def release(self) -> None:
        """Let everything run."""
        _signal_all(self._stopped, signal.SIGCONT)
        self._stopped = []

    def _spent_seconds(self) -> float:
        spent_seconds = 0.0
        for pid, before_seconds in self._used_seconds.items():
            used_seconds = _used_seconds(pid)
            spent_seconds += max(0.0, used_seconds - before_seconds)
            self._used_seconds[pid] = max(used_seconds, before_seconds)
        return spent_seconds


def _used_seconds(pid: int) -> float:
    """Processor time of all threads of a process; 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), for any process
    except OSError:
        return 0.0


def _tree(main: int) -> list[int]:
    """`main` and everything below it."""
    pids = [main]
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib would double the shim's start-up
                with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:  # noqa: PTH123 - as above
                    pids.extend(int(child) for child in file.read().split())
    return pids


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
