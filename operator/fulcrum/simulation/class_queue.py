"""What waits in an engine that schedules by priority: the highest class first, each class in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain

from fulcrum.simulation.simulated_request import SimulatedRequest


class ClassQueue:
    """A queue with the methods of a deque, of which each end is that of the request's own rank."""

    __slots__ = ("_lane_of", "_lanes")

    def __init__(self, ranks: Mapping[str | None, int]) -> None:
        """`ranks` by the name of the class; the lowest is served first, equal ones share an order."""
        lanes: dict[int, deque[SimulatedRequest]] = {rank: deque() for rank in sorted(set(ranks.values()))}
        self._lanes = tuple(lanes.values())
        self._lane_of = {name: lanes[rank] for name, rank in ranks.items()}

    def __len__(self) -> int:
        """Return how many wait."""
        return sum(map(len, self._lanes))

    def __bool__(self) -> bool:
        """Report whether any request waits."""
        return any(self._lanes)

    def __iter__(self) -> Iterator[SimulatedRequest]:
        """Yield those that wait, the next one first."""
        return chain.from_iterable(self._lanes)

    def __getitem__(self, index: int) -> SimulatedRequest:
        """Return the request that has `index` others before it."""
        for lane in self._lanes:
            if index < len(lane):
                return lane[index]
            index -= len(lane)
        raise IndexError("so many do not wait")

    def append(self, request: SimulatedRequest) -> None:
        """Wait behind all of its rank."""
        self._lane_of[request.qos_class].append(request)

    def appendleft(self, request: SimulatedRequest) -> None:
        """Wait before all of its rank."""
        self._lane_of[request.qos_class].appendleft(request)

    def popleft(self) -> SimulatedRequest:
        """Take out the next one."""
        for lane in self._lanes:
            if lane:
                return lane.popleft()
        raise IndexError("no request waits")

    def remove(self, request: SimulatedRequest) -> None:
        """Take out a request that waits."""
        self._lane_of[request.qos_class].remove(request)
