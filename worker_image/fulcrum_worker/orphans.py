"""Shared memory that a killed engine left behind: files under /dev/shm outlive processes, and containers of a Pod."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

SHM: Final = Path("/dev/shm")  # noqa: S108 (where they are)
_PATTERNS: Final = ("vllm_offload_*.mmap", "psm_*", "nccl-*", "nvshmem*")
"""vLLM's host tier, queues between its processes (Python's names), and what NCCL and NVSHMEM share between ranks."""


def remove_orphans(*, shm: Path = SHM, proc: Path = Path("/proc")) -> list[Path]:
    """Remove the files that no process has open or mapped, and return them; their makers have them open from the start.

    Several agents may share /dev/shm (`fulcrum up`), so files in use are those of other engines.
    """
    files = [file for pattern in _PATTERNS for file in shm.glob(pattern)]
    if not files:
        return []
    in_use = _used_files(shm, proc)
    removed = []
    for file in files:
        if str(file) in in_use:
            continue
        with contextlib.suppress(OSError):  # another agent was quicker, or it belongs to another user
            size = file.stat().st_size
            file.unlink()
            removed.append(file)
            logger.info("shared_memory_freed path=%s bytes=%d", file, size)
    return removed


def _used_files(shm: Path, proc: Path) -> set[str]:
    found = set()
    for link in proc.glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # the process ended meanwhile
            found.add(str(link.readlink()))
    for maps in proc.glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            lines = maps.read_text(errors="replace").splitlines()
            found.update(line.split(maxsplit=5)[5] for line in lines if f" {shm}/" in line)
    return found
