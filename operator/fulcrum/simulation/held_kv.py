"""KV that a worker keeps for its peers: of prompts that are prefilled, until a decode worker has pulled them."""

from __future__ import annotations

from fulcrum.simulation.job import Job
from fulcrum.simulation.kv_blocks import KvBlocks


class HeldKv:
    """The jobs whose KV one worker holds, the longest held first."""

    __slots__ = ("_jobs", "_kv", "blocks")

    def __init__(self, kv: KvBlocks) -> None:
        self._kv = kv
        self._jobs: dict[int, Job] = {}
        self.blocks = 0
        """Blocks that are held (shared prefixes not counted)."""

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs, the longest held first."""
        return tuple(self._jobs.values())

    def hold(self, job: Job) -> None:
        """Keep the KV of a prompt; what it shares here stays pinned, while it may pin anew where it goes."""
        self._jobs[job.index] = job
        self.blocks += self._kv.blocks_of(job, job.prompt)
        job.held_pins, job.pinned = job.pinned, 0

    def release(self, job: Job) -> None:
        """Give the blocks back."""
        del self._jobs[job.index]
        pinned_elsewhere, job.pinned = job.pinned, job.held_pins
        blocks = self._kv.blocks_of(job, job.prompt)
        self.blocks -= blocks
        self._kv.give_back(job, blocks)
        job.pinned, job.held_by, job.held_pins = pinned_elsewhere, None, 0
