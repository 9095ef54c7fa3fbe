"""Queues of the textbooks, request by request: what each waits on workers that serve one request at a time."""

from __future__ import annotations

import heapq
import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


def waits(arrivals: Seconds, services: Seconds, servers: int = 1) -> Seconds:
    """Seconds in one queue before `servers`, first come, first served."""
    free_at = [0.0] * servers
    waited = []
    for arrival, service in zip(arrivals.tolist(), services.tolist(), strict=True):
        begin = max(arrival, heapq.heappop(free_at))
        heapq.heappush(free_at, begin + service)
        waited.append(begin - arrival)
    return np.array(waited)


def waits_by_class(arrivals: Seconds, services: Seconds, premium: NDArray[np.bool_]) -> Seconds:
    """Seconds before one server that takes premium requests first and interrupts none."""
    waited = np.zeros(len(arrivals))
    queues: tuple[deque[int], deque[int]] = (deque(), deque())
    now, come = 0.0, 0
    while come < len(arrivals) or any(queues):
        if not any(queues):
            now = max(now, float(arrivals[come]))
        while come < len(arrivals) and arrivals[come] <= now:
            queues[0 if premium[come] else 1].append(come)
            come += 1
        one = (queues[0] or queues[1]).popleft()
        waited[one] = now - arrivals[one]
        now += float(services[one])
    return waited


def erlang_c(servers: int, offered: float) -> float:
    """Probability of waiting in M/M/k."""
    below = sum(offered**n / math.factorial(n) for n in range(servers))
    full = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return full / (below + full)
