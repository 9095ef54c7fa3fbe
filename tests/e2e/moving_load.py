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
_BATCH = 2
_SPREAD = 0.3
_SEEDS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Two mixes of requests, each of which wants three of four workers in one role."""

    prompts: Phase
    answers: Phase


def measured_mix(cluster: Cluster, *, seconds: float) -> Mix:
    """The mixes that are right for how fast the workers are here and now; asks one engine directly."""
    url = f"http://{cluster.workers()[0].ip}:8000"
    _ask(url, cluster.name, "warm up", 4)
    prompt_seconds = sorted(_ask(url, cluster.name, f"{number} " + "word " * _PROMPT_TOKENS, 1) for number in range(5))[
        2
    ]
    with ThreadPoolExecutor(_BATCH) as pool:
        asked = [pool.submit(_ask, url, cluster.name, f"{n} " + "word " * _SHORT, _ANSWER_TOKENS) for n in range(6)]
        answer_seconds = sorted(each.result() for each in asked)[3]
    prompts_per_second = WORKERS_NEEDED / prompt_seconds
    answers_per_second = WORKERS_NEEDED * _BATCH / answer_seconds
    print(f"one worker: {prompt_seconds:.2f} s a prompt, {answer_seconds:.2f} s for {_BATCH} answers at once")
    return Mix(
        prompts=_phase(seconds, prompts_per_second, _PROMPT_TOKENS, 4),
        answers=_phase(seconds, answers_per_second, _SHORT, _ANSWER_TOKENS),
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


def _ask(url: str, model: str, prompt: str, output_tokens: int) -> float:
    """Seconds that one request takes."""
    body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()
    return time.monotonic() - began
