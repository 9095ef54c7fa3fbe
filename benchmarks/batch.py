"""What batch requests get of decode that is idle, and what that costs online requests; simulated.

    python benchmarks/batch.py [--seed N] [--quick]

Each load is served twice, without batch requests and with more of them than the cluster can serve. Three clusters: the
two of benchmarks/classes.py, and `70B mixed`, whose workers do both. `idle` is what the decode workers could make for
batch requests inside the TPOT promise in the share of their time that online requests leave free. `taken` is what
finished batch answers have of it; tokens of those that made way do not count. Attainment is that of all online
requests, those that were turned away included. On `pair` and `70B mixed` prefill is scarce: there most of what is idle
cannot be fed without making online prompts late, and the share is printed only. Exits with 0 only when batch takes at
least half of what is idle on `70B` at every load below 90 % of the capacity, and online attainment is within one point
of that without batch everywhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from classes import Cluster, clusters

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, ClassKind, ClassMatch, QosClass
from fulcrum.simulation.arrivals import constant
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies.fixed import Fixed
from fulcrum.simulation.workload import Workload, merged

LOADS: Final = (0.1, 0.3, 0.5, 0.7, 0.9, 1.5)
BUSY: Final = 0.9
"""Load from which so little is idle that no share of it is asked for."""
TAKEN: Final = 0.5
COST: Final = 0.01
CLASSES: Final = (
    QosClass(name="chat", priority=10),
    QosClass(name="batch", priority=0, kind=ClassKind.BATCH, match=ClassMatch(header="x-class", value="batch")),
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster, how its workers are used, and its batch requests."""

    name: str
    cluster: Cluster
    workers: tuple[Role, ...]
    batch: LogNormalLengths
    feeds: bool = False
    """There is prefill enough to feed what is idle."""

    @property
    def decodes(self) -> int:
        """Workers that decode."""
        return sum(role is not Role.PREFILL for role in self.workers)

    def tokens_per_second(self, lengths: LogNormalLengths) -> float:
        """Output tokens of a decode worker that is full of such requests, at the promise."""
        speed, promise = self.cluster.speed, self.cluster.slo.tpot_seconds
        context = lengths.prompt_mean + lengths.output_mean / 2
        batch = min(speed.decode_batch(promise, context), speed.max_batch, speed.kv_capacity_tokens / context)
        return float(batch / speed.decode_step_seconds(batch, batch * context))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of a load."""

    attainment: float
    """Of all online requests."""
    online: float
    """Decode tokens a second of answers."""
    batch: float
    made_way: int
    """Batch requests that were let in and ended for an online one."""


def settings(*, quick: bool) -> tuple[Setting, ...]:
    """Two clusters of prefill and decode workers, and one of mixed ones."""
    pair, big = clusters(quick=quick)
    big = replace(big, seconds=120.0 if quick else 300.0)
    pair = replace(pair, seconds=600.0 if quick else 2400.0)
    short = LogNormalLengths(prompt_mean=24, output_mean=40, prompt_spread=0.4, output_spread=0.4)
    summaries = LogNormalLengths(prompt_mean=600, output_mean=300, prompt_spread=0.6, output_spread=0.6)
    roles = (Role.PREFILL,) * big.prefill + (Role.DECODE,) * big.decode
    return (
        Setting(name="pair", cluster=pair, workers=(Role.PREFILL,) * 2 + (Role.DECODE,) * 2, batch=short),
        Setting(name="70B", cluster=big, workers=roles, batch=summaries, feeds=True),
        Setting(name="70B mixed", cluster=replace(big, capacity=14.0), workers=(Role.MIXED,) * 4, batch=summaries),
    )


def workload(setting: Setting, load: float, seed: int, *, batch: bool) -> Workload:
    """Online requests of `load` times the capacity, and more batch requests than can be served.

    A batch request that is turned away is followed by another one, as when its client comes back.
    """
    cluster = setting.cluster
    online = stream(
        rate=constant(load * cluster.capacity), lengths=cluster.lengths, seconds=cluster.seconds, seed=seed,
        cv=cluster.burstiness, qos_class="chat",
    )  # fmt: skip
    if not batch:
        return online
    most = setting.decodes * setting.tokens_per_second(setting.batch) / setting.batch.output_mean
    more = stream(
        rate=constant(4 * most), lengths=setting.batch, seconds=cluster.seconds, seed=seed + 1, qos_class="batch",
    )  # fmt: skip
    return merged([online, more])


def run(setting: Setting, load: float, seed: int, *, batch: bool) -> Seen:
    """Serve a load."""
    cluster, work = setting.cluster, workload(setting, load, seed, batch=batch)
    model = ClusterModel(pools=(PoolModel(name="gpus", speed=cluster.speed, start_seconds=60.0),))
    policy = Fixed([("gpus", role) for role in setting.workers], admission=AdmissionPolicy.PREDICTIVE, classes=CLASSES)
    result = simulate(work, model, policy, slo=cluster.slo)
    online = work.qos_class == work.classes.index("chat")
    served = (result.outcome == Outcome.SERVED) & (result.end_seconds <= cluster.seconds)
    tokens = np.where(served, work.output_tokens, 0)
    return Seen(
        attainment=float(result.within(cluster.slo)[online].mean()),
        online=float(tokens[online].sum() / cluster.seconds),
        batch=float(tokens[~online].sum() / cluster.seconds),
        made_way=result.rejections.get(Reason.PREEMPTED, 0),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every target is met."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="less time, and three loads")
    options = parser.parse_args(arguments)
    missed: list[str] = []
    print(
        f"{'workers':11}{'load':>6}{'online tok/s':>14}{'idle tok/s':>12}{'taken tok/s':>13}{'of idle':>9}"
        f"{'attained without':>18}{'with batch':>12}{'made way':>10}"
    )
    for setting in settings(quick=options.quick):
        for load in (0.3, 0.7, 1.5) if options.quick else LOADS:
            alone = run(setting, load, options.seed, batch=False)
            seen = run(setting, load, options.seed, batch=True)
            used = alone.online / (setting.decodes * setting.tokens_per_second(setting.cluster.lengths))
            idle = max(1.0 - used, 0.0) * setting.decodes * setting.tokens_per_second(setting.batch)
            share = seen.batch / idle if idle else 0.0
            print(
                f"{setting.name:11}{f'{load:g}x':>6}{alone.online:14,.0f}{idle:12,.0f}{seen.batch:13,.0f}{share:9.1%}"
                f"{alone.attainment:18.2%}{seen.attainment:12.2%}{seen.made_way:10,}",
                flush=True,
            )
            if setting.feeds and load < BUSY and share < TAKEN:
                missed.append(f"{setting.name} at {load:g}x: batch took {share:.1%} of what was idle")
            if seen.attainment < alone.attainment - COST:
                missed.append(
                    f"{setting.name} at {load:g}x: {alone.attainment - seen.attainment:.2%} of online requests lost"
                )
    print("\n".join(missed) or "batch ok")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
