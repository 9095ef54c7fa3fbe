"""Load that moves between prompts and answers, at rates that workers can just bear in the right ratio."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

from local_cluster import Cluster

from fulcrum.replay import Client, Report, Slo, discover, replay, summarise
from fulcrum.simulation.traffic import Phase, generate

SLO = Slo(ttft_seconds=3.0, tpot_seconds=0.3)
"""As in examples/auto.yaml."""
WORKERS_NEEDED = 2.2
"""Of the four: too much for two workers of a role, and bearable for three."""
PROMPTS = (500, 2)
ANSWERS = (32, 40)
"""Prompt and output tokens of either mix."""
_CLIENTS = 8
_MEASURED_SECONDS = 15.0
_SPREAD = 0.3
_SEEDS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Two mixes of requests, each of which wants three of four workers in one role."""

    prompts: Phase
    answers: Phase


def measured_mix(cluster: Cluster, *, seconds: float) -> Mix:
    """The mixes that are right for how fast workers are here and now; the cluster has two of each role meanwhile."""
    rates = []
    for mix in (PROMPTS, ANSWERS):
        with Pressure(cluster, mix) as pressure:
            time.sleep(_MEASURED_SECONDS)  # a duration to measure over, not a wait for something
        rates.append(pressure.served_per_second / 2)
    print(f"one worker: {rates[0]:.2f} prompts/s, {rates[1]:.2f} answers/s")
    return Mix(
        prompts=_phase(seconds, WORKERS_NEEDED * rates[0], PROMPTS),
        answers=_phase(seconds, WORKERS_NEEDED * rates[1], ANSWERS),
    )


def run(cluster: Cluster, phases: Sequence[Phase], *, seed: int, to_the_end: bool = True) -> Report:
    """Replay the phases one after the other; the same seed gives the same arrivals and lengths, never the same text.

    Not `to_the_end`: leave when whatever is still under way is outside the SLO already.
    """
    requests = generate(phases, seed=seed)
    decided_seconds = max(
        request.arrival_seconds + SLO.ttft_seconds + request.output_tokens * SLO.tpot_seconds for request in requests
    )

    async def go() -> Report:
        stop = asyncio.Event()
        async with Client(cluster.endpoint(), timeout_seconds=120) as client:
            endpoint = await discover(client)
            if not to_the_end:
                asyncio.get_running_loop().call_later(decided_seconds + 1, stop.set)
            records = await replay(client, endpoint, requests, seed=next(_SEEDS), stop=stop)
        return summarise(records, offered=len(requests), slo=SLO)

    return asyncio.run(go())


class Pressure:
    """From `__enter__` to `__exit__` there are always a few requests waiting."""

    def __init__(self, cluster: Cluster, mix: tuple[int, int]) -> None:
        self._url = cluster.endpoint()
        self._model = cluster.name
        self._mix = mix
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(_CLIENTS)
        self._clients: list[Future[None]] = []
        self._ended: list[float] = []

    @property
    def served_per_second(self) -> float:
        """Without the first ones, which found an idle cluster."""
        middle = sorted(self._ended)[_CLIENTS:]
        return (len(middle) - 1) / (middle[-1] - middle[0])

    def __enter__(self) -> Self:
        self._clients = [self._pool.submit(self._ask_on) for _ in range(_CLIENTS)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown()
        if error is None:
            for client in self._clients:
                client.result()

    def _ask_on(self) -> None:
        prompt_tokens, output_tokens = self._mix
        while not self._stop.is_set():
            body = {
                "model": self._model,
                "prompt": f"{next(_SEEDS)} " + "word " * prompt_tokens,
                "max_tokens": output_tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            request = urllib.request.Request(
                f"{self._url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=120) as response:
                response.read()
            if not self._stop.is_set():
                self._ended.append(time.monotonic())


def _phase(seconds: float, rate: float, mix: tuple[int, int]) -> Phase:
    return Phase(
        seconds=seconds,
        requests_per_second=rate,
        prompt_tokens_mean=mix[0],
        output_tokens_mean=mix[1],
        spread=_SPREAD,
    )
