"""The demo's traffic, scaled to what its engines measured, and what came of it before and after the flips."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import aiohttp
import msgspec
from calibration import quickest, reports
from local_cluster import Cluster

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.replay import Client, Progress, Record, Slo, discover, replay
from fulcrum.simulation.traffic import Phase, Request, generate
from fulcrum_worker.engine_access import headers_of
from fulcrum_worker.measure import LONGEST_BUDGET_SECONDS, measure_engine

PROMPTS_SECONDS: Final = 40.0
ANSWERS_SECONDS: Final = 90.0
"""Length of either phase: the second is long enough to see what came after its flips."""
WARM_UP_SECONDS: Final = 10.0
"""Of either phase, at `WARM_UP_SHARE` of its load, before what counts: the gateway learns how fast the engines are now
that none is starting any more."""
WARM_UP_SHARE: Final = 0.5
OBSERVE_SECONDS: Final = 20.0
"""Start of the second phase in which the operator only observes: what a ratio that nothing changes would serve."""
SEED: Final = 4
"""Of arrivals and lengths."""
SPREAD: Final = 0.2
"""Sigma of the log-normal lengths."""
ARRIVALS_CV: Final = 0.5
"""Steadier than Poisson arrivals: what a few seconds show is the ratio's work, not the luck of the draw."""
PROMPTS_SPLIT: Final = 3, 1
ANSWERS_SPLIT: Final = 1, 3
"""The split (prefill, decode) of the four workers that is right for either phase, and wrong for the other one."""
PROMPTS_SHARE: Final = 0.4
ANSWERS_SHARE: Final = 0.6
"""Load of either phase, as a share of what its split serves at most: the other split serves a third of that."""
PROMPT_TOKENS: Final = 600
PROMPT_OF_TTFT: Final = 0.3
"""A long prompt is as long as can be prefilled in this share of the promised TTFT, and at most `PROMPT_TOKENS`."""
LONG_PROMPT_OUTPUT_TOKENS: Final = 3
SHORT_PROMPT_TOKENS: Final = 32
OUTPUT_TOKENS: Final = 24
STEP_OF_TPOT: Final = 0.6
"""A full decode batch takes at most this share of the promised TPOT: a slower machine promises a longer one."""
_POLL_SECONDS: Final = 0.5
_decoder: Final = msgspec.json.Decoder(LoadReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Two phases: one that wants most workers to prefill, and one that wants most of them to decode."""

    speed: WorkerSpeed
    slo: Slo
    prompts: Phase
    answers: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A replay as its clients saw it, with seconds since its start."""

    records: tuple[Record, ...]
    """In the order in which they were due."""
    start_seconds: float
    ratios: tuple[tuple[float, str], ...]
    """Every ratio that the workers had, and since when."""

    def due(self, record: Record) -> float:
        return record.due_seconds - self.start_seconds

    def between(self, first: float, last: float) -> list[Record]:
        return [record for record in self.records if first <= self.due(record) < last]


def load_for(speed: WorkerSpeed, slo: Slo) -> Load:
    """Return the traffic for four engines of this speed, and the promise that such engines can keep."""
    batch = float(speed.max_batch)
    context = SHORT_PROMPT_TOKENS + OUTPUT_TOKENS / 2
    step_seconds = speed.decode_step_seconds(batch, batch * context)
    slo = replace(slo, tpot_seconds=max(slo.tpot_seconds, round(step_seconds / STEP_OF_TPOT, 2)))
    long_prompt = PROMPT_TOKENS
    while (
        long_prompt > 2 * SHORT_PROMPT_TOKENS
        and prefill_seconds(speed, long_prompt) > PROMPT_OF_TTFT * slo.ttft_seconds
    ):
        long_prompt -= 8
    return Load(
        speed=speed,
        slo=slo,
        prompts=_phase(
            PROMPTS_SECONDS,
            PROMPTS_SHARE * served(speed, PROMPTS_SPLIT, long_prompt, LONG_PROMPT_OUTPUT_TOKENS),
            long_prompt,
            LONG_PROMPT_OUTPUT_TOKENS,
        ),
        answers=_phase(
            ANSWERS_SECONDS,
            ANSWERS_SHARE * served(speed, ANSWERS_SPLIT, SHORT_PROMPT_TOKENS, OUTPUT_TOKENS),
            SHORT_PROMPT_TOKENS,
            OUTPUT_TOKENS,
        ),
    )


def prefill_seconds(speed: WorkerSpeed, tokens: float) -> float:
    return speed.prefill_seconds(tokens, tokens**2)


def served(speed: WorkerSpeed, split: tuple[int, int], prompt_tokens: int, output_tokens: int) -> float:
    """Return the most requests/s that a split (prefill, decode) serves."""
    prefill, decode = split
    batch = float(speed.max_batch)
    step_seconds = speed.decode_step_seconds(batch, batch * (prompt_tokens + output_tokens / 2))
    return min(prefill / prefill_seconds(speed, prompt_tokens), decode * batch / (output_tokens * step_seconds))


def _phase(seconds: float, requests_per_second: float, prompt_tokens: int, output_tokens: int) -> Phase:
    return Phase(
        seconds=seconds,
        requests_per_second=requests_per_second,
        prompt_tokens_mean=prompt_tokens,
        output_tokens_mean=output_tokens,
        spread=SPREAD,
    )


def measured(cluster: Cluster) -> WorkerSpeed:
    """Return the speed of a worker while all of them work. Raises LookupError.

    Measured now: at their start other engines were starting, too.
    """
    found = {}
    for (name, report), speed in zip(reports(cluster).items(), asyncio.run(_measured(cluster)), strict=True):
        found[name] = msgspec.structs.replace(report, speed=speed or report.speed)
    if all(report.speed is None for report in found.values()):
        raise LookupError("no engine could be measured: see the log of a worker Pod")
    return quickest(found).speed


async def _measured(cluster: Cluster) -> list[SpeedCoefficients | None]:
    async with aiohttp.ClientSession(headers=headers_of(cluster.token())) as session:
        return await asyncio.gather(
            *(
                measure_engine(
                    session,
                    f"http://{worker.ip}:8000",
                    cluster.name,
                    max_model_len=None,
                    budget_seconds=LONGEST_BUDGET_SECONDS,
                )
                for worker in cluster.workers()
            )
        )


def send(
    cluster: Cluster, load: Load, let_act: Callable[[], None], tell: Callable[[float, Progress, str], None]
) -> tuple[Sequence[Request], Seen]:
    """Replay both phases, after a warm-up. `let_act` is called once, `OBSERVE_SECONDS` into the second; `tell` hears
    (seconds, progress, ratio) all the while.
    """
    phases = load.prompts, load.answers
    requests = generate(phases, seed=SEED, cv=ARRIVALS_CV)
    warm_up = [
        replace(phase, seconds=WARM_UP_SECONDS, requests_per_second=WARM_UP_SHARE * phase.requests_per_second)
        for phase in phases
    ]
    return requests, asyncio.run(_send(cluster, warm_up, requests, let_act, tell))


async def _send(
    cluster: Cluster,
    warm_up: Sequence[Phase],
    requests: Sequence[Request],
    let_act: Callable[[], None],
    tell: Callable[[float, Progress, str], None],
) -> Seen:
    addresses = [worker.ip for worker in cluster.workers()]
    ratios: list[tuple[float, str]] = []
    now = Progress(sent=0, ended=0, lost=0, of=len(requests))

    def noted(progress: Progress) -> None:
        nonlocal now
        now = progress

    async with Client(cluster.endpoint(), timeout_seconds=120) as client:
        endpoint = await discover(client)
        await replay(client, endpoint, generate(warm_up, seed=SEED + 1), seed=SEED + 1)
        start_seconds = time.perf_counter()

        async def watch() -> None:
            while True:
                ratio = await asyncio.to_thread(_ratio, addresses)
                seconds = time.perf_counter() - start_seconds
                if ratio is not None and (not ratios or ratios[-1][1] != ratio):
                    ratios.append((seconds if ratios else 0.0, ratio))
                if ratios:
                    tell(seconds, now, ratios[-1][1])
                await asyncio.sleep(_POLL_SECONDS)

        async def act() -> None:
            await asyncio.sleep(PROMPTS_SECONDS + OBSERVE_SECONDS)
            await asyncio.to_thread(let_act)

        async with asyncio.TaskGroup() as group:
            watching, acting = group.create_task(watch()), group.create_task(act())
            records = await replay(client, endpoint, requests, seed=SEED, on_progress=noted)
            await acting
            watching.cancel()
    in_order = tuple(sorted(records, key=lambda record: record.due_seconds))
    return Seen(records=in_order, start_seconds=start_seconds, ratios=tuple(ratios))


def _ratio(addresses: Sequence[str]) -> str | None:
    """The ratio by what the agents say; None when one of them does not answer."""
    roles = []
    for address in addresses:
        try:
            with urllib.request.urlopen(f"http://{address}:8001/load", timeout=2) as response:
                roles.append(_decoder.decode(response.read()).role)
        except OSError:
            return None
    return f"{roles.count(Role.PREFILL)}P:{roles.count(Role.DECODE)}D"


def attainment(records: Sequence[Record], slo: Slo) -> float | None:
    """Share of the records inside the SLO; None without any."""
    return sum(slo.met_by(record) for record in records) / len(records) if records else None
