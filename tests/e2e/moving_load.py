"""Load that moves between prompts and answers, at rates that workers can just bear in the right ratio."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

from local_cluster import Cluster

from fulcrum.replay import Client, Report, Slo, discover, replay, summarise
from fulcrum.simulation.traffic import Phase, generate

SLO = Slo(ttft_seconds=3.0, tpot_seconds=0.3)
"""As in examples/auto.yaml."""
WORKERS_NEEDED = 2.3
"""Of the four: too much for two workers of a role, and bearable for three."""
_PROMPT_TOKENS = 500
_ANSWER_TOKENS = 40
_SHORT = 32
_PROMPT_ANSWER_TOKENS = 4
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
    prompts = _served_per_second(cluster, _PROMPT_TOKENS, _PROMPT_ANSWER_TOKENS) / 2
    answers = _served_per_second(cluster, _SHORT, _ANSWER_TOKENS) / 2
    print(f"one worker: {prompts:.2f} prompts/s, {answers:.2f} answers/s")
    return Mix(
        prompts=_phase(seconds, WORKERS_NEEDED * prompts, _PROMPT_TOKENS, _PROMPT_ANSWER_TOKENS),
        answers=_phase(seconds, WORKERS_NEEDED * answers, _SHORT, _ANSWER_TOKENS),
    )


def run(cluster: Cluster, phases: Sequence[Phase], *, seed: int) -> Report:
    """Replay the phases one after the other; the same seed gives the same arrivals and lengths, never the same text."""
    requests = generate(phases, seed=seed)

    async def go() -> Report:
        async with Client(cluster.endpoint(), timeout_seconds=120) as client:
            records = await replay(client, await discover(client), requests, seed=next(_SEEDS))
        return summarise(records, offered=len(requests), slo=SLO)

    return asyncio.run(go())


def _phase(seconds: float, rate: float, prompt_tokens: float, output_tokens: float) -> Phase:
    return Phase(
        seconds=seconds,
        requests_per_second=rate,
        prompt_tokens_mean=prompt_tokens,
        output_tokens_mean=output_tokens,
        spread=_SPREAD,
    )


def _served_per_second(cluster: Cluster, prompt_tokens: int, output_tokens: int) -> float:
    """Requests per second with always a few waiting."""
    ended: list[float] = []
    url = cluster.endpoint()
    until = time.monotonic() + _MEASURED_SECONDS

    def ask_on(client: int) -> None:
        while time.monotonic() < until:
            _ask(url, cluster.name, f"{client} {next(_SEEDS)} " + "word " * prompt_tokens, output_tokens)
            ended.append(time.monotonic())

    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(ask_on, range(_CLIENTS)))
    # The first ones found an idle cluster, the last ones leave one.
    middle = [at for at in sorted(ended) if at <= until][_CLIENTS:]
    return (len(middle) - 1) / (middle[-1] - middle[0])


def _ask(url: str, model: str, prompt: str, output_tokens: int) -> None:
    body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()
