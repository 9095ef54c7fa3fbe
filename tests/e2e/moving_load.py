"""Load that moves between prompts and answers, at rates that workers can bear in the right ratio."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import TracebackType
from typing import Self

from local_cluster import Cluster, wait_until
from tests.machine import deadline_seconds

from fulcrum.replay import Client, LatencyLimits, Report, discover, replay, summarise
from fulcrum.simulation.traffic import Phase, generate

SLO = LatencyLimits(ttft_seconds=3.0, tpot_seconds=0.3)
"""As in examples/auto.yaml."""
PART = 0.8
"""Of what the right ratio serves: bearable for three workers of a role, and too much for two."""
PROMPTS = (500, 2)
ANSWERS = (32, 40)
"""Prompt and output tokens of either mix, on a machine that is quick enough for the SLO."""
QUICK_SECONDS = 1.25
"""What one of `PROMPTS` takes alone there. Where it takes longer, both mixes are shorter."""
_CLIENTS = 8
_CLIENTS_MEASURING = {PROMPTS: 5, ANSWERS: 7}
"""As many as three workers of the role have room for, and few more: what would wait longer than the promise for a
prefill worker is prefilled on a decode worker, and the rate that came of that could not be kept up inside the SLO."""
_MEASURED_SECONDS = 15.0
_MEASURED_ALONE = 6
_SPREAD = 0.3
_SEEDS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Two mixes of requests, each of which wants three of four workers in one role."""

    prompts: Phase
    answers: Phase


def fix_ratio(cluster: Cluster, prefill: int, decode: int) -> None:
    cluster.patch({"balance": {"mode": "Manual", "ratio": {"prefill": prefill, "decode": decode}}})
    wait_until(f"{prefill}P:{decode}D", partial(_has_roles, cluster, prefill, decode), seconds=30)


def _has_roles(cluster: Cluster, prefill: int, decode: int) -> bool:
    return cluster.roles() == {"prefill": prefill, "decode": decode}


def measured_mix(cluster: Cluster, *, seconds: float) -> Mix:
    """The mixes that are right for how fast workers are here and now, each measured at the ratio that it wants."""
    shorter = _shorter(cluster)
    mixes = {}
    for mix, ratio in ((ANSWERS, (1, 3)), (PROMPTS, (3, 1))):
        fix_ratio(cluster, *ratio)
        lengths = (round(shorter * mix[0]), max(round(shorter * mix[1]), 2))
        with Pressure(cluster, lengths, clients=_CLIENTS_MEASURING[mix]) as pressure:
            time.sleep(_MEASURED_SECONDS)  # a duration to measure over, not a wait for something
            wait_until("three answers for each client", partial(pressure.served, 3), seconds=120)
        rate = pressure.served_per_second
        print(f"{lengths[0]} + {lengths[1]} tokens: {rate:.2f} requests/s at {ratio[0]}P:{ratio[1]}D")
        mixes[mix] = _phase(seconds, PART * rate, lengths)
    return Mix(prompts=mixes[PROMPTS], answers=mixes[ANSWERS])


def _shorter(cluster: Cluster) -> float:
    """How much shorter requests have to be for the SLO here, at most 1."""
    fix_ratio(cluster, 2, 2)
    with Pressure(cluster, PROMPTS, clients=1) as alone:
        wait_until("prompts with nothing beside them", partial(alone.served, _MEASURED_ALONE), seconds=120)
    print(f"a prompt of {PROMPTS[0]} tokens alone takes {1 / alone.served_per_second:.2f} s")
    return min(QUICK_SECONDS * alone.served_per_second, 1.0)


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
        async with Client(cluster.endpoint(), timeout_seconds=deadline_seconds(120)) as client:
            endpoint = await discover(client)
            if not to_the_end:
                asyncio.get_running_loop().call_later(decided_seconds + 1, stop.set)
            records = await replay(client, endpoint, requests, seed=next(_SEEDS), stop=stop)
        return summarise(records, offered=len(requests), slo=SLO)

    return asyncio.run(go())


class Pressure:
    """From `__enter__` to `__exit__` there are always a few requests waiting."""

    def __init__(self, cluster: Cluster, mix: tuple[int, int], *, clients: int = _CLIENTS) -> None:
        self._url = cluster.endpoint()
        self._model = cluster.name
        self._mix = mix
        self._stop = threading.Event()
        self._number = clients
        self._pool = ThreadPoolExecutor(clients)
        self._clients: list[Future[None]] = []
        self._ended: list[float] = []

    def served(self, rounds: int) -> bool:
        """Whether as many answers as this came for each client: on a slow machine that takes a while."""
        return len(self._ended) >= rounds * self._number

    @property
    def served_per_second(self) -> float:
        """Without the first ones, which found an idle cluster."""
        middle = sorted(self._ended)[self._number :]
        return (len(middle) - 1) / (middle[-1] - middle[0])

    def __enter__(self) -> Self:
        self._clients = [self._pool.submit(self._ask_on) for _ in range(self._number)]
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
            with urllib.request.urlopen(request, timeout=deadline_seconds(300)) as response:  # ends one that hangs
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
