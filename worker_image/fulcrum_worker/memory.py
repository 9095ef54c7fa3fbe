"""How much memory this container may take: its limit, and the size of /dev/shm."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

_SHM: Final = Path("/dev/shm")  # noqa: S108 (where vLLM offloads to)
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""cgroup v2, v1."""
_CAP_IPC_LOCK: Final = 14
"""Number of the capability in capabilities(7)."""
_NO_LIMIT: Final = 1 << 60
"""From here on a cgroup v1 limit means that there is none."""


def shm_bytes(shm: Path = _SHM) -> int | None:
    """Size of /dev/shm; None where there is none."""
    try:
        found = os.statvfs(shm)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def may_lock_memory(status: Path = Path("/proc/self/status")) -> bool:
    """Whether processes here may lock as much memory as they want: no limit, or the capability to ignore it."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        return True
    try:
        lines = status.read_text(encoding="ascii").splitlines()
        held = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    except (OSError, StopIteration, ValueError):
        return False
    return bool(held >> _CAP_IPC_LOCK & 1)


def memory_limit_bytes(files: tuple[Path, ...] = _LIMITS) -> int | None:
    """The container's memory limit; None where it has none, or where it cannot be read."""
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        limit = int(text) if text.isdecimal() else _NO_LIMIT
        return limit if limit < _NO_LIMIT else None
    return None
