"""The other clients of a gateway under attack: requests at random times, the same number a second whatever happens.

    neighbours.py PORT

Reads lines `RATE SECONDS`; prints for each one JSON line: requests, failures, p50 and p99 in microseconds, counted from
when a request should have been sent.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

import uvloop

from load import Client, requests


class Neighbours:
    """Clients whose connections stay open from one period to the next."""

    def __init__(self, port: int) -> None:
        self._legs = [(port, requests({}, port))]
        self._idle: list[Client] = []
        self._chance = random.Random(7)
        self._latencies: list[float] = []
        self._failures = 0

    async def period(self, rate: float, seconds: float) -> dict[str, float]:
        """What they saw in `seconds`."""
        self._latencies, self._failures = [], 0
        due = began = time.perf_counter()
        async with asyncio.TaskGroup() as running:
            while (due := due + self._chance.expovariate(rate)) < began + seconds:
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                running.create_task(self._ask(due))
        latencies = sorted(self._latencies)
        return {
            "requests": len(latencies),
            "failures": self._failures,
            "p50": latencies[len(latencies) // 2] if latencies else 0.0,
            "p99": latencies[int(len(latencies) * 0.99)] if latencies else 0.0,
        }

    async def _ask(self, due: float) -> None:
        while self._idle and self._idle[-1].connections[0].closed:
            self._idle.pop()  # it was idle for too long
        client = self._idle.pop() if self._idle else Client(self._legs)
        try:
            if not client.connections:
                await client.connect()
            good = await client.ask()
        except OSError:
            good = False
        if good:
            self._latencies.append((time.perf_counter() - due) * 1e6)
            self._idle.append(client)
        else:
            self._failures += 1


async def main(port: int) -> None:
    neighbours = Neighbours(port)
    while line := await asyncio.to_thread(sys.stdin.readline):
        rate, seconds = map(float, line.split())
        print(json.dumps(await neighbours.period(rate, seconds)), flush=True)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
