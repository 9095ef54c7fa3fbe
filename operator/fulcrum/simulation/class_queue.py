"""What waits in an engine that schedules by priority: the highest class first, each class in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain

from fulcrum.simulation.job import Job


class ClassQueue:
    """A queue with the methods of a deque, of which each end is that of the job's own rank."""

    __slots__ = ("_lane_of", "_lanes")

    def __init__(self, ranks: Mapping[str | None, int]) -> None:
        """`ranks` by the name of the class; the lowest is served first, equal ones share an order."""
        lanes: dict[int, deque[Job]] = {rank: deque() for rank in sorted(set(ranks.values()))}
        self._lanes = tuple(lanes.values())
        self._lane_of = {name: lanes[rank] for name, rank in ranks.items()}

    def __len__(self) -> int:
        """Return how many wait."""
        return sum(map(len, self._lanes))

    def __bool__(self) -> bool:
        """Report whether any request waits."""
        return any(self._lanes)

    def __iter__(self) -> Iterator[Job]:
        """Yield those that wait, the next one first."""
        return chain.from_iterable(self._lanes)

    def __getitem__(self, index: int) -> Job:
        """Return the job that has `index` others before it."""
        for lane in self._lanes:
            if index < len(lane):
                return lane[index]
            index -= len(lane)
        raise IndexError("so many do not wait")

    def append(self, job: Job) -> None:
        """Wait behind all of its rank."""
        self._lane_of[job.qos_class].append(job)

    def appendleft(self, job: Job) -> None:
        """Wait before all of its rank."""
        self._lane_of[job.qos_class].appendleft(job)

    def popleft(self) -> Job:
        """Take out the next one."""
        for lane in self._lanes:
            if lane:
                return lane.popleft()
        raise IndexError("no request waits")

    def remove(self, job: Job) -> None:
        """Take out a job that waits."""
        self._lane_of[job.qos_class].remove(job)
