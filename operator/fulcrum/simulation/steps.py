"""The steps of one worker: of its engine, or of all its ranks of data parallel, which take each step together.

The slowest rank sets the time of a step; a rank with nothing to do takes an empty one. Steps without chunks of prompts
are taken together (`decode_run`), for as long as the same rank is the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Protocol

from fulcrum.simulation.decode_run import DecodeRun
from fulcrum.simulation.shared_machine import SharedMachine
from fulcrum.simulation.timeline import Timeline


class SteppingRank(Protocol):
    """What takes the steps (`worker.SimulatedWorker`)."""

    decode_run: DecodeRun
    """What decodes on it."""
    prefills: bool
    """Its next step has chunks of prompts."""

    @property
    def started(self) -> Sequence[object]:
        """What has its first token after the next step."""

    def pulls_first(self, now: float) -> bool:
        """Pull what is to be there before the next step; report whether any KV is on its way."""

    def ended(self, steps: int, seconds: float, now: float) -> None:
        """So many steps are over, which took so long in all."""

    def choose(self, now: float) -> int:
        """Choose what the next step computes; returns how often it may be taken until something changes, 0: never."""

    def step_seconds(self) -> float:
        """Time that its next step takes by itself."""

    def bring_first(self, now: float, step_seconds: float) -> None:
        """What is in `started` has its first token after so many seconds."""


class WorkerSteps:
    """Runs of steps, advanced from change to change."""

    __slots__ = ("_began", "_clock", "_cut", "_machine", "_run", "_steps", "_timeline", "event", "ranks")

    def __init__(self, timeline: Timeline, machine: SharedMachine | None) -> None:
        """`machine`: shared with other workers."""
        self._timeline, self._machine = timeline, machine
        self.ranks: Sequence[SteppingRank] = ()
        self.event = -1
        self._clock = 0.0  # begin of the run under way
        self._began = 0.0  # the same on the machine's clock
        self._run: DecodeRun | None = None  # of the slowest rank, whose steps set the time
        self._steps = -1  # of the run under way; -1: idle
        self._cut = False  # the run already ends at its next boundary

    @property
    def shared(self) -> bool:
        """Whether they take longer while other workers compute, so that it is not known beforehand when they end."""
        return self._machine is not None

    def over(self, now: float) -> int:
        """Return how many steps of the run under way are over."""
        if self._steps <= 1 or self._run is None:
            return 0
        elapsed_seconds = self._elapsed_seconds(now)
        steps, seconds = self._run.boundary(elapsed_seconds)
        return min(steps if seconds <= elapsed_seconds else steps - 1, self._steps)

    def _elapsed_seconds(self, now: float) -> float:
        return now - self._clock if self._machine is None else self._machine.clock(now) - self._began

    def wake(self, now: float) -> None:
        """Something changed: look at it at the next step boundary, which is now if there is no step under way."""
        if self._steps < 0:
            self._steps = 0
            self._cut = True
            self._begin(now)
            self._plan(0.0, now)
        elif not self._cut:
            self._cut = True
            assert self._run is not None
            steps, seconds = self._run.boundary(self._elapsed_seconds(now))
            if steps < self._steps:
                self._steps = steps
                self._plan(seconds, now)

    def fire(self, now: float) -> None:
        """A run of steps is over."""
        steps, seconds = self._steps, now - self._clock
        self._begin(now)
        self._cut = True  # what comes meanwhile is looked at below
        for rank in self.ranks:
            rank.ended(steps, seconds, now)
        self._schedule(now)

    def stop(self, now: float) -> None:
        """The engine dies."""
        self.event = -1
        self._rest(now)

    def _begin(self, now: float) -> None:
        """A run begins."""
        self._clock = now
        if self._machine is not None:
            self._began = self._machine.clock(now)

    def _plan(self, seconds: float, now: float) -> None:
        """Let the run under way end so many seconds after its begin, or later on a shared machine."""
        if self._machine is None:
            self._timeline.plan(self._clock + seconds, self)
        else:
            self._machine.plan(self._began + seconds, self, now)

    def _rest(self, now: float) -> None:
        """There is nothing to compute."""
        self._steps = -1
        if self._machine is not None:
            self._machine.leave(self, now)

    def _schedule(self, now: float) -> None:
        """Begin the next step, or the next run of steps."""
        ranks, steps = self.ranks, 0
        waits = [rank.pulls_first(now) for rank in ranks]
        if not any(waits):
            for rank in ranks:
                wanted = rank.choose(now)
                if wanted and not 0 < steps < wanted:
                    steps = wanted
        self._cut = False
        if not steps:
            self._rest(now)
            return
        run = self._run = _slowest([rank.decode_run for rank in ranks if not rank.prefills and rank.decode_run.batch])
        prefills = [rank.step_seconds() for rank in ranks if rank.prefills]
        if prefills:
            self._cut = True
            self._steps = 1
            seconds = max(prefills) if run is None else max(*prefills, run.seconds(1))
        else:
            assert run is not None
            self._steps = self._while_slowest(run, steps)
            seconds = run.seconds(self._steps)
        for rank in ranks:
            if rank.started:
                rank.bring_first(now, seconds if run is None or self._steps == 1 else run.seconds(1))
        self._plan(seconds, now)

    def _while_slowest(self, slowest: DecodeRun, steps: int) -> int:
        """How many of the next `steps` steps take longest on the rank that is the slowest now."""
        for rank in self.ranks:
            run = rank.decode_run
            faster = run.growth_seconds - slowest.growth_seconds
            if run.batch and faster > 0:
                steps = min(steps, floor((slowest.seconds(1) - run.seconds(1)) / faster) + 1)
        return max(steps, 1)


def _slowest(runs: Sequence[DecodeRun]) -> DecodeRun | None:
    if len(runs) < 2:
        return runs[0] if runs else None
    return max(runs, key=lambda run: (run.seconds(1), run.growth_seconds))
