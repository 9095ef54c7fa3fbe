"""How much memory this container may take: its limit, and the size of /dev/shm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_SHM: Final = Path("/dev/shm")  # noqa: S108 (where vLLM offloads to)
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""cgroup v2, v1."""
_NO_LIMIT: Final = 1 << 60
"""From here on a cgroup v1 limit means that there is none."""


def shm_bytes(shm: Path = _SHM) -> int | None:
    """Size of /dev/shm; None where there is none."""
    try:
        found = os.statvfs(shm)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


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
