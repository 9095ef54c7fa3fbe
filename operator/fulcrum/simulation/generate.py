"""Workloads that are made up: streams, phases, mixes of classes, and the ones that benchmarks name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from fulcrum.simulation.arrivals import Rate, arrivals, constant, ladder, ramp, sine
from fulcrum.simulation.lengths import Lengths, LogNormalLengths
from fulcrum.simulation.traffic import Phase
from fulcrum.simulation.workload import Workload, merged


def stream(
    *, rate: Rate, lengths: Lengths, seconds: float, seed: int, cv: float = 1.0, qos_class: str | None = None
) -> Workload:
    """Return one class of requests; the same seed gives the same workload."""
    random = np.random.default_rng(seed)
    times = arrivals(rate, seconds=seconds, random=random, cv=cv)
    prompts, outputs = lengths.draw(len(times), random)
    return Workload(
        arrival_seconds=times,
        prompt_tokens=prompts,
        output_tokens=outputs,
        qos_class=np.zeros(len(times), dtype=np.int16),
        classes=(qos_class,),
    )


def phased(phases: Sequence[Phase], *, seed: int, cv: float = 1.0) -> Workload:
    """Return phases one after the other, each with its own rate and lengths."""
    parts: list[Workload] = []
    begin_seconds = 0.0
    for number, phase in enumerate(phases):
        lengths = LogNormalLengths(
            prompt_mean=phase.prompt_tokens_mean,
            output_mean=phase.output_tokens_mean,
            prompt_spread=phase.spread,
            output_spread=phase.spread,
        )
        part = stream(
            rate=constant(phase.requests_per_second),
            lengths=lengths,
            seconds=phase.seconds,
            seed=seed * 1000 + number,
            cv=cv,
            qos_class=phase.qos_class,
        )
        parts.append(replace(part, arrival_seconds=part.arrival_seconds + begin_seconds))
        begin_seconds += phase.seconds
    return merged(parts)


_CHAT = LogNormalLengths(prompt_mean=1150, output_mean=210, prompt_spread=0.9, output_spread=0.8)
"""Means of the Azure conversation trace."""
_CODE = LogNormalLengths(prompt_mean=3000, output_mean=300, prompt_spread=0.0, output_spread=0.0)


def _shifts(seed: int) -> Workload:
    heavy_in = Phase(seconds=600, requests_per_second=10, prompt_tokens_mean=4000, output_tokens_mean=60)
    even = Phase(seconds=600, requests_per_second=14, prompt_tokens_mean=1150, output_tokens_mean=210)
    heavy_out = Phase(seconds=600, requests_per_second=10, prompt_tokens_mean=300, output_tokens_mean=700)
    return phased([even, heavy_in, heavy_out, even], seed=seed)


def _swing(seed: int) -> Workload:
    prompts = Phase(seconds=200, requests_per_second=1.9, prompt_tokens_mean=6000, output_tokens_mean=40, spread=0.3)
    answers = Phase(seconds=200, requests_per_second=4.8, prompt_tokens_mean=300, output_tokens_mean=800, spread=0.3)
    return phased([prompts, answers], seed=seed)


WORKLOADS: Final[Mapping[str, Callable[[int], Workload]]] = {
    "stationary": lambda seed: stream(rate=constant(15), lengths=_CHAT, seconds=1800, seed=seed),
    "ramp": lambda seed: stream(rate=ramp(4, 28, end_seconds=1800), lengths=_CHAT, seconds=1800, seed=seed),
    "sine": lambda seed: stream(rate=sine(4, 28, period_seconds=900), lengths=_CHAT, seconds=3600, seed=seed),
    "dynamo-sine": lambda seed: stream(rate=sine(5, 45, period_seconds=600), lengths=_CODE, seconds=1800, seed=seed),
    "bursts": lambda seed: stream(rate=constant(12), lengths=_CHAT, seconds=1800, seed=seed, cv=4.0),
    "steps": lambda seed: stream(rate=ladder([(600, 6), (600, 20), (600, 10)]), lengths=_CHAT, seconds=1800, seed=seed),
    "shifts": _shifts,
    "swing": _swing,
}
"""Synthetic workloads by name, as functions of a seed. `dynamo-sine` is the one NVIDIA published its planner with.

`swing` is what `fulcrum simulate --demo` sends through `examples/simulate.yaml`: long prompts, then long answers;
no fixed split of three workers is right for both.
"""
