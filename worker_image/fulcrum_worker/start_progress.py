"""How far an engine's start is, and whether it gets on: from what vLLM logs and what its processes use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fulcrum.api.worker import Stage

SIGNS: Final = (
    ("Initializing a V1 LLM engine", Stage.WEIGHTS),
    ("Starting to load model", Stage.WEIGHTS),
    ("Loading weights took", Stage.KV_CACHE),
    ("KV cache size", Stage.KV_CACHE),
)
"""What vLLM 0.32.0 logs -> the stage that begins with it."""
_ORDER: Final = tuple(Stage)
LEAST_CPU_SHARE: Final = 0.02
"""Of one core: an engine that uses more works. One that waits uses less (NIXL's idle thread: 0.1 to 1 %)."""
LEAST_BYTES: Final = 1 << 20
"""Read or written since the last progress: more than the polls of processes that wait for each other."""
_POLL_SECONDS: Final = 2.0
_MOST_PROCESSES: Final = 1000
"""Bounds one look at the process tree."""


def stage_after(line: str, stage: Stage) -> Stage:
    """The stage once vLLM has logged `line`. Stages only go forward; a line that is not known changes nothing."""
    found = next((begun for sign, begun in SIGNS if sign in line), stage)
    return max(stage, found, key=_ORDER.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an engine has said and used since its start."""

    new_lines: int = 0
    """Log lines that say something that was not said before."""
    cpu_seconds: float = 0.0
    bytes: int = 0
    """Read and written by all processes: files, pipes and, where it is counted, the network."""

    def is_work_since(self, before: Usage, *, seconds: float) -> bool:
        """Whether an engine that did this in `seconds` gets on. A process that ends takes its figures with it."""
        return (
            self.new_lines > before.new_lines
            or self.cpu_seconds - before.cpu_seconds >= LEAST_CPU_SHARE * seconds
            or self.bytes - before.bytes >= LEAST_BYTES
        )


def usage_of(main_pid: int | None, *, new_lines: int) -> Usage:
    """Processor time and bytes of a process and everything below it; what cannot be read counts as nothing."""
    cpu_seconds, moved_bytes = 0.0, 0
    for pid in _tree(main_pid) if main_pid is not None else ():
        with contextlib.suppress(OSError):
            cpu_seconds += time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), for any process
        with contextlib.suppress(OSError, ValueError):
            lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
            counts = dict(line.split(": ") for line in lines)
            # rchar leaves out what is mapped into memory, read_bytes what the page cache had.
            moved_bytes += sum(int(counts[name]) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))
    return Usage(new_lines=new_lines, cpu_seconds=cpu_seconds, bytes=moved_bytes)


def _tree(main_pid: int) -> list[int]:
    pids = [main_pid]
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names only
                children = Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split()
                pids.extend(int(child) for child in children)
        if len(pids) > _MOST_PROCESSES:
            break
    return pids


async def wait_until_stuck(
    look: Callable[[], Usage],
    *,
    timeout_seconds: float,
    longest_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    poll_seconds: float | None = None,
    downloaded: Callable[[], int] = lambda: 0,
) -> str:
    """Poll until the engine has made no progress for `timeout_seconds`, or until `longest_seconds`; returns why.

    The second bound is for an engine that turns in circles: from outside that looks like work. Time in which
    `downloaded` (bytes on disk) grows does not count.
    """
    poll_seconds = min(_POLL_SECONDS, timeout_seconds / 4) if poll_seconds is None else poll_seconds
    begun = looked_at = moved_at = clock()
    last = marked = look()
    downloading_seconds, had_bytes = 0.0, downloaded()
    while True:
        await asyncio.sleep(poll_seconds)
        now, usage = clock(), look()
        # CPU time counts as a rate, which a slow poll does not sum up; bytes and words since the last progress.
        # The mark goes down with the bytes of a process that has ended.
        marked = Usage(new_lines=marked.new_lines, bytes=min(marked.bytes, usage.bytes))
        recent = Usage(new_lines=marked.new_lines, cpu_seconds=last.cpu_seconds, bytes=marked.bytes)
        if usage.is_work_since(recent, seconds=now - looked_at):
            moved_at, marked = now, usage
        if (have_bytes := downloaded()) >= had_bytes + LEAST_BYTES:
            downloading_seconds, had_bytes = downloading_seconds + now - looked_at, have_bytes
        last, looked_at = usage, now
        if now - moved_at >= timeout_seconds:
            return f"made no progress for {now - moved_at:.0f} s"
        if now - begun - downloading_seconds >= longest_seconds:
            return f"was not ready after {now - begun:.0f} s"
