"""What QoS classes get in a flood of free traffic, and what it costs to keep room for them; simulated.

    python benchmarks/classes.py [--seed N] [--quick]

Premium traffic asks for 0.2 and standard traffic for 0.3 of what the workers can serve, and free traffic for the rest
of each load. Two clusters: `pair`, two prefill and two decode workers on which a prompt takes an eighth of the TTFT
promise, with bursts in every class (coefficient of variation 2; like the workers of benchmarks/overload.py); and `70B`,
six and two workers of two H100 with the lengths of chat traffic. Shares are of all that a class asked for: let in, and
inside the SLO. `told late` had waited at the gateway, or in a queue, before it was turned away; `of it` is the goodput
as a share of what is served of as many requests without classes. Exits with 0 only when the targets below hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from admission import CLASSES
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.roofline import worker_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.arrivals import constant
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.policy import known_speeds
from fulcrum.simulation.simulated_gateway import SimulatedGateway
from fulcrum.simulation.workload import Workload, merged

ASKED: Final = {"premium": 0.2, "standard": 0.3}
"""Of the capacity."""
LOADS: Final = (0.5, 0.9, 2.0, 4.0)
ATTAINED: Final = 0.98
HARMED: Final = 0.02
"""Share of premium requests that a flood may cost."""
OF_PLAIN: Final = 0.88
"""Goodput with classes, of the goodput without."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers, their traffic, and how many requests a second they can serve inside the SLO."""

    name: str
    speed: WorkerSpeed
    prefill: int
    decode: int
    slo: LatencyTargets
    lengths: LogNormalLengths
    capacity: float
    burstiness: float
    seconds: float

    def load(self, times: float, seed: int, *, classes: bool) -> Workload:
        """Requests of `times` the capacity; those of the classes come each on their own."""
        rates = {**ASKED, "free": times - sum(ASKED.values())} if classes else {"free": times}
        return merged(
            [
                stream(
                    rate=constant(rate * self.capacity), lengths=self.lengths, seconds=self.seconds,
                    seed=10 * seed + number, cv=self.burstiness, qos_class=name,
                )
                for number, (name, rate) in enumerate(rates.items())
                if rate > 0
            ]
        )  # fmt: skip


class Tiered(StaticSplit):
    """Workers that keep their roles, behind a gateway that knows the classes."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(pool="gpus", prefill=cluster.prefill, decode=cluster.decode)
        self.gateway: SimulatedGateway | None = None

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway:
        self.gateway = SimulatedGateway(
            slo=slo, speeds=known_speeds(cluster), policy=AdmissionPolicy.PREDICTIVE, classes=CLASSES
        )
        return self.gateway


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of a load."""

    goodput: float
    """Requests inside the SLO, of those that the workers can serve."""
    attained: float
    """Of those that were let in."""
    shares: dict[str, float]
    turned_away: int
    told_late: int


def run(cluster: Cluster, times: float, seed: int, *, classes: bool = True) -> Seen:
    """Serve a load."""
    load, policy = cluster.load(times, seed, classes=classes), Tiered(cluster)
    model = ClusterModel(pools=(PoolModel(name="gpus", speed=cluster.speed, start_seconds=60.0),))
    result = simulate(load, model, policy, slo=cluster.slo)
    assert policy.gateway is not None
    tallies = policy.gateway.admission.rejected.items()
    good, served = result.within(cluster.slo), ~np.isnan(result.ttft_seconds)
    return Seen(
        goodput=good.sum() / cluster.seconds / cluster.capacity,
        attained=good.sum() / served.sum(),
        shares={str(name): float(good[load.qos_class == index].mean()) for index, name in enumerate(load.classes)},
        turned_away=sum(tally.requests for _, tally in tallies),
        told_late=sum(tally.requests for (_, reason), tally in tallies if reason is Reason.PREEMPTED),
    )


def clusters(*, quick: bool) -> tuple[Cluster, ...]:
    """Few slow workers with bursts, and many quick ones."""
    pair = WorkerSpeed(
        coefficients=SpeedCoefficients(
            prefill_a=0.08, prefill_b=5.5e-3, prefill_c=0.0, decode_a=0.09, decode_b=4e-3, decode_c=1e-6
        ),
        kv_capacity_tokens=20_000, max_batched_tokens=256, max_batch=32, transfer_base_seconds=0.02,
    )  # fmt: skip
    big = worker_speed(
        known_model("meta-llama/Llama-3.1-70B-Instruct"),
        accelerator("H100-SXM-80GB"),
        tensor=2,
        weights=Precision.FP8,
    )
    return (
        Cluster(
            name="pair", speed=pair, prefill=2, decode=2, capacity=2.9, burstiness=2.0,
            slo=LatencyTargets(ttft_seconds=4.8, tpot_seconds=0.5, attainment=ATTAINED),
            lengths=LogNormalLengths(prompt_mean=100, output_mean=12, prompt_spread=0.4, output_spread=0.4),
            seconds=1200 if quick else 4800,
        ),
        Cluster(
            name="70B", speed=big, prefill=6, decode=2, capacity=47.0, burstiness=1.0,
            slo=LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.03, attainment=ATTAINED),
            lengths=LogNormalLengths(prompt_mean=1150, output_mean=210, prompt_spread=0.9, output_spread=0.8),
            seconds=120 if quick else 300,
        ),
    )  # fmt: skip


def problems(cluster: Cluster, times: float, seen: Seen, alone: Seen, plain: Seen) -> list[str]:
    """Targets that are missed."""
    at = f"{cluster.name} at {times:g}x:"
    return [
        f"{at} {text}"
        for missed, text in (
            (seen.attained < ATTAINED, f"{seen.attained:.1%} of those that were let in were inside the SLO"),
            (
                seen.shares["premium"] < alone.shares["premium"] - HARMED,
                f"{seen.shares['premium']:.1%} of premium requests, {alone.shares['premium']:.1%} without the flood",
            ),
            (
                seen.goodput < OF_PLAIN * plain.goodput,
                f"{seen.goodput / plain.goodput:.1%} of what is served without classes",
            ),
        )
        if missed
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every target is met."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time, and no load of 4x")
    options = parser.parse_args(arguments)
    missed: list[str] = []
    print(
        f"{'workers':8}{'load':>6}{'goodput':>9}{'of it':>8}{'attained':>10}{'premium':>9}{'standard':>10}{'free':>8}"
        f"{'turned away':>13}{'told late':>11}"
    )
    for cluster in clusters(quick=options.quick):
        alone = run(cluster, sum(ASKED.values()), options.seed)
        for times in LOADS[:-1] if options.quick else LOADS:
            plain = run(cluster, times, options.seed, classes=False)
            seen = run(cluster, times, options.seed) if times > sum(ASKED.values()) else alone
            free = seen.shares.get("free")
            print(
                f"{cluster.name:8}{f'{times:g}x':>6}{seen.goodput:9.2f}{seen.goodput / plain.goodput:8.1%}"
                f"{seen.attained:10.1%}{seen.shares['premium']:9.1%}{seen.shares['standard']:10.1%}"
                f"{'-' if free is None else f'{free:.1%}':>8}{seen.turned_away:13,}{seen.told_late:11,}",
                flush=True,
            )
            missed += problems(cluster, times, seen, alone, plain)
    print("\n".join(missed) or "classes ok")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
