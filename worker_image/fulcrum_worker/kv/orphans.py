"""Host memory that a killed engine left behind: vLLM keeps it in a file under /dev/shm, which outlives the process."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

SHM: Final = Path("/dev/shm")  # noqa: S108 (where vLLM puts it)
_PATTERN: Final = "vllm_offload_*.mmap"


def remove_orphans(*, shm: Path = SHM, proc: Path = Path("/proc")) -> list[Path]:
    """Remove the regions that no process has open, and return them; an engine has its region open from its creation on.

    Several agents may share /dev/shm (`fulcrum up`), so regions in use are those of other engines.
    """
    regions = list(shm.glob(_PATTERN))
    if not regions:
        return []
    in_use = _open_files(proc)
    removed = []
    for region in regions:
        if str(region) in in_use:
            continue
        with contextlib.suppress(OSError):  # another agent was quicker, or it belongs to another user
            size = region.stat().st_size
            region.unlink()
            removed.append(region)
            logger.info("host_memory_freed path=%s bytes=%d", region, size)
    return removed


def _open_files(proc: Path) -> set[str]:
    found = set()
    for link in proc.glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # the process ended meanwhile
            found.add(str(link.readlink()))
    return found
