"""Load of three QoS classes in bursts, open loop, against a cluster; and what its clients saw."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from fulcrum.replay import Client, Endpoint, LatencyLimits, Outcome, PromptWriter, Record
from fulcrum.simulation.traffic import Request

HEADER: Final = "x-customer-tier"
CLASSES: Final[list[dict[str, Any]]] = [
    {"name": "premium", "priority": 100, "reserved": 0.10, "match": {"header": HEADER, "value": "premium"}},
    {"name": "standard", "priority": 50, "reserved": 0.30, "match": {"header": HEADER, "value": "standard"}},
    {"name": "free", "priority": 10},
]
NAMES: Final = tuple(str(one["name"]) for one in CLASSES)
BURSTINESS: Final = 2.0
"""Coefficient of variation of the times between arrivals (Gamma); 1 would be Poisson."""
PROMPT_TOKENS: Final = 100.0
OUTPUT_TOKENS: Final = 12.0
_SPREAD: Final = 0.4
_WRITER_SEED: Final = 7
_PREEMPTED: Final = "HTTP 429: Preempted"
_KEPT: Final = "HTTP 429: ClassShare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request that is to be sent."""

    due_seconds: float
    qos: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A request and what its client was told; `again`: the same once more, after its `Retry-After`."""

    ask: Ask
    record: Record
    again: Record | None = None

    @property
    def rejected(self) -> bool:
        return self.record.outcome is Outcome.REJECTED

    @property
    def preempted(self) -> bool:
        """Let in, then turned away before its prefill began."""
        return self.rejected and self.record.detail == _PREEMPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a phase of load amounts to. Shares are 0 to 1; None: of nothing."""

    seconds: float
    told: tuple[Told, ...]
    slo: LatencyLimits
    machine_busy: float
    """Share of the machine's processors that was in use, by whomever."""

    def admitted(self, *qos: str) -> list[Told]:
        return [told for told in self.of(*qos) if not told.rejected]

    def of(self, *qos: str) -> list[Told]:
        return [told for told in self.told if not qos or told.ask.qos in qos]

    def met(self, *qos: str) -> int:
        return sum(self.slo.met_by(told.record) for told in self.of(*qos))

    def attainment(self, *qos: str) -> float | None:
        """Of those that were let in."""
        return _share(self.met(*qos), len(self.admitted(*qos)))

    def served(self, *qos: str) -> float | None:
        """Of all that came: let in, and inside the SLO."""
        return _share(self.met(*qos), len(self.of(*qos)))

    @property
    def whole(self) -> bool:
        """Everybody got a whole answer, or was turned away."""
        return all(told.record.outcome in {Outcome.OK, Outcome.REJECTED} for told in self.told)

    @property
    def goodput(self) -> float:
        """Requests inside the SLO, per second."""
        return self.met() / self.seconds

    @property
    def wasted_prefill(self) -> float | None:
        """Prompt tokens of admitted requests that missed the SLO, of those of all admitted."""
        admitted = self.admitted()
        missed = sum(told.ask.prompt_tokens for told in admitted if not self.slo.met_by(told.record))
        return _share(missed, sum(told.ask.prompt_tokens for told in admitted))

    @property
    def rejection_seconds(self) -> list[float]:
        """From sending to the end of the answer, of requests that were turned away at their arrival; sorted."""
        at_arrival = (told for told in self.told if told.rejected and not told.preempted)
        return sorted(told.record.end_seconds - told.record.sent_seconds for told in at_arrival)

    def came_back(self, *, kept: bool = False) -> list[bool]:
        """Of those that returned after their `Retry-After`: was it let in? By why they had been turned away.

        Not `kept`: the workers were too busy, which a while can change. `kept`: room was kept for other classes.
        """
        return [
            told.again.outcome is not Outcome.REJECTED
            for told in self.told
            if told.again is not None and (told.record.detail == _KEPT) is kept
        ]

    def missed(self) -> str:
        """Of those that were let in: how many were too late, how many too slow; the ninth decile of either."""
        records = [told.record for told in self.admitted()]
        ttfts = sorted(record.ttft_seconds or math.inf for record in records)
        tpots = sorted(record.tpot_seconds or math.inf for record in records)
        late = sum(ttft > self.slo.ttft_seconds for ttft in ttfts)
        slow = sum(tpot > self.slo.tpot_seconds for tpot in tpots)
        tenth = len(records) * 9 // 10
        return f"{late} late (p90 {ttfts[tenth]:.3f} s), {slow} slow (p90 {tpots[tenth]:.3f} s)" if records else ""

    def problems(self) -> Counter[str]:
        """What was said to those that were not served whole."""
        return Counter(f"{told.ask.qos}: {told.record.detail}" for told in self.told if told.record.detail)


def arrivals(rates: Mapping[str, float], *, seconds: float, burstiness: float = BURSTINESS, seed: int) -> list[Ask]:
    """Requests of `rates` (per second, by class), each class in bursts of its own; by time."""
    import numpy as np

    random = np.random.default_rng(seed)
    shape = 1 / burstiness**2
    asks = []
    for qos, rate in rates.items():
        # Exactly as many as the rate says, so that 2x is 2x in a short time, too.
        count = max(round(rate * seconds), 1)
        gaps = random.gamma(shape, size=count + 1)
        dues = seconds * np.cumsum(gaps)[:-1] / gaps.sum()
        prompts, outputs = (_lengths(random.standard_normal(count), mean) for mean in (PROMPT_TOKENS, OUTPUT_TOKENS))
        asks += [
            Ask(due_seconds=float(due), qos=qos, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
            for due, prompt_tokens, output_tokens in zip(dues, prompts, outputs, strict=True)
        ]
    return sorted(asks, key=lambda ask: ask.due_seconds)


def _lengths(normals: Iterable[float], mean: float) -> list[int]:
    """Log-normal with this mean."""
    return [max(2, round(mean * math.exp(_SPREAD * normal - _SPREAD**2 / 2))) for normal in normals]


async def send(
    url: str,
    endpoint: Endpoint,
    asks: Sequence[Ask],
    *,
    seconds: float,
    slo: LatencyLimits,
    patience_seconds: float,
    come_back: bool = False,
    first_prompt: int = 0,
) -> Seen:
    """Send `asks` when they are due and wait for the last answer; a client hangs up after `patience_seconds`.

    With `come_back`, those that are turned away come once more after their `Retry-After`. `first_prompt`: number of the
    first prompt, so that no run finds the prompts of another in a prefix cache.
    """
    writer = PromptWriter(tokens_per_word=endpoint.tokens_per_word, seed=_WRITER_SEED)
    # Written beforehand: the machine is busy enough when they are due.
    bodies = [
        endpoint.body(
            writer.write(
                first_prompt + number,
                Request(arrival_seconds=0, prompt_tokens=ask.prompt_tokens, output_tokens=ask.output_tokens),
            ),
            ask.output_tokens,
        )
        for number, ask in enumerate(asks)
    ]

    async def one(client: Client, ask: Ask, body: bytes, due_seconds: float) -> Told:
        await asyncio.sleep(due_seconds - perf_counter())
        record = await client.stream(body, wanted_tokens=ask.output_tokens, due_seconds=due_seconds)
        again = None
        if come_back and record.outcome is Outcome.REJECTED and record.retry_after_seconds is not None:
            await asyncio.sleep(record.retry_after_seconds)
            again = await client.stream(body, wanted_tokens=ask.output_tokens)
        return Told(ask=ask, record=record, again=again)

    async with AsyncExitStack() as stack:
        clients = {
            qos: await stack.enter_async_context(Client(url, timeout_seconds=patience_seconds, headers={HEADER: qos}))
            for qos in NAMES
        }
        busy_before = _processor_seconds()
        start_seconds = perf_counter()
        told = await asyncio.gather(
            *(
                one(clients[ask.qos], ask, body, start_seconds + ask.due_seconds)
                for ask, body in zip(asks, bodies, strict=True)
            )
        )
    busy, total = (after - before for before, after in zip(busy_before, _processor_seconds(), strict=True))
    return Seen(seconds=seconds, told=tuple(told), slo=slo, machine_busy=_share(busy, total) or 0.0)


def _processor_seconds() -> tuple[float, float]:
    """In use, and in all (`/proc/stat`)."""
    with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123 - one line of a pseudo file
        ticks = [float(field) for field in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
