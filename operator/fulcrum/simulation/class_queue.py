"""What waits in an engine that schedules by priority: the highest class first, each class in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain

from fulcrum.simulation.simulated_request import SimulatedRequest


class ClassQueue:
    """A queue with the methods of a deque, of which each end is that of the request's own rank."""

    __slots__ = ("_queue_of", "_queues")

    def __init__(self, ranks: Mapping[str | None, int]) -> None:
        """`ranks` by the name of the class; the lowest is served first, equal ones share an order."""
        queues: dict[int, deque[SimulatedRequest]] = {rank: deque() for rank in sorted(set(ranks.values()))}
        self._queues = tuple(queues.values())
        self._queue_of = {name: queues[rank] for name, rank in ranks.items()}

    def __len__(self) -> int:
        """Return how many wait."""
        return sum(map(len, self._queues))

    def __bool__(self) -> bool:
        """Report whether any request waits."""
        return any(self._queues)

    def __iter__(self) -> Iterator[SimulatedRequest]:
        """Yield the requests that wait, the next one first."""
        return chain.from_iterable(self._queues)

    def __getitem__(self, index: int) -> SimulatedRequest:
        """Return the request that has `index` others before it."""
        for queue in self._queues:
            if index < len(queue):
                return queue[index]
            index -= len(queue)
        raise IndexError("so many do not wait")

    def append(self, request: SimulatedRequest) -> None:
        """Wait behind all of its rank."""
        self._queue_of[request.qos_class].append(request)

    def appendleft(self, request: SimulatedRequest) -> None:
        """Wait before all of its rank."""
        self._queue_of[request.qos_class].appendleft(request)

    def popleft(self) -> SimulatedRequest:
        """Take out the next one."""
        for queue in self._queues:
            if queue:
                return queue.popleft()
        raise IndexError("no request waits")

    def remove(self, request: SimulatedRequest) -> None:
        """Take out a request that waits."""
        self._queue_of[request.qos_class].remove(request)
