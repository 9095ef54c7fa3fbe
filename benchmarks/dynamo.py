"""Ours beside the real NVIDIA Dynamo 1.6.1: its planner, router and simulated engines, on the same requests and speeds.

Two loads: the Mooncake conversation (`../shared/traces`, left out where it is not there), and NVIDIA's own scenario, a
sine of 5 to 45 requests/s. The GPUs are the same for all. Printed of each: requests inside the SLO, GPU-hours, and
requests inside the SLO per GPU-hour.

* Dynamo with its planner, its GPU budget pinned to all GPUs (`min_gpu_budget` = `max_gpu_budget`): aggregated, and
  disaggregated in throughput mode (its default), in load mode and in both; disaggregated with a budget that lets it
  release GPUs, in both modes; and its best of these;
* our copy of its planner, in our simulator (`benchmarks/contests`), on all GPUs;
* ours, with admission and without (Dynamo's planner has none), and the best static split in hindsight, with our
  admission where that serves more;
* workers that keep their role, with requests in turn, in both simulators: how far the engines agree. Else each has a
  router of its own.

Dynamo begins with the split that ours begins with, and new workers start at once. Both engines have one speed: the
roofline, with prefill in proportion to the tokens of a step, as Dynamo's profiles know it; its planner has measured
that speed beforehand.

Dynamo has an environment of its own: --environment, or `build/dynamo` out of `requirements/dynamo.lock`.

    python benchmarks/dynamo.py [--only NAME] [--minutes [N]] [--engines] [--environment FOLDER]
                                [--traces FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from contests.contestants import CONTESTANTS
from contests.rivals.round_robin import RoundRobin
from dynamo_real import Job, environment, job_of, planner_config, run, same_speed, with_workers
from policies import SHARED_TRACES, Case, cases, inputs_of

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.simulation.comparison import Comparison, ComparisonInputs
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.workload import Workload

LOADS = ("mooncake", "dynamo-sine")
COPIES = ("dynamo", "dynamo-load", "dynamo-both", "dynamo-aggregated")
FREE = -1
"""The planner's `min_gpu_budget`, where it can release GPUs."""
RULES = (("throughput",), ("load",), ("throughput", "load"))
CUT_MINUTES = 10.0
"""What `--minutes` alone cuts the loads to: a period of the sine."""
AGREE_POINTS = 1.0
"""The two simulators may differ by so many points of attainment where workers keep their role."""


class Row(NamedTuple):
    """What became of the requests under one planner."""

    name: str
    within: int
    """Requests inside both promises."""
    gpu_hours: float

    @property
    def per_gpu_hour(self) -> float:
        """Requests inside both promises per GPU-hour."""
        return self.within / self.gpu_hours if self.gpu_hours else 0.0


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One load on one cluster."""

    inputs: ComparisonInputs
    job: Job
    python: Path
    workers: int
    gpus_per_worker: int

    def begin(self) -> tuple[int, int]:
        """Prefill and decode workers that ours begins with."""
        roles = [role for _, role in Ours(self.inputs.spec).initial(self.inputs.cluster)]
        return roles.count(Role.PREFILL), roles.count(Role.DECODE)

    def real(self, name: str, split: tuple[int, int], rules: tuple[str, ...], *, least: int) -> Row:
        """Run the real Dynamo from a split, (0, N) being aggregated."""
        config = planner_config(self.inputs.slo, aggregated=not split[0], rules=rules, least=least, most=self.workers)
        found = run(self.python, with_workers(self.job, *split, planner=config))
        return Row(name, found.within, found.worker_hours * self.gpus_per_worker)

    def ours(self, comparison: Comparison, name: str) -> Row:
        """Run a contestant in our simulator."""
        result = comparison.run(name).result
        within = int(result.within(self.inputs.slo).sum())
        turned_away = sum(result.rejections.values())
        name = result.policy + (f", {turned_away:,} turned away" if turned_away else "")
        return Row(name, within, result.gpu_seconds / 3600)


def main() -> int:
    """Run the benchmark; 0 when the engines of the two simulators agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LOADS, help="one of the loads")
    parser.add_argument(
        "--minutes",
        type=float,
        nargs="?",
        const=CUT_MINUTES,
        help=f"the first minutes of each load ({CUT_MINUTES:.0f})",
    )
    parser.add_argument("--engines", action="store_true", help="only how far the engines agree")
    parser.add_argument("--environment", type=Path, help="a virtual environment that has Dynamo")
    parser.add_argument("--traces", type=Path, default=SHARED_TRACES, help="folder of the recorded traces")
    arguments = parser.parse_args()
    python = environment(arguments.environment)
    agreed = True
    named = {case.name: case for case in cases(arguments.traces, seed=7)}
    for case in (named[name] for name in LOADS if arguments.only in (None, name)):
        if case.file is not None and not case.file.exists():
            print(f"\n{case.name}: skipped, {case.file} is not there")
            continue
        load = case.load()
        load = load if arguments.minutes is None else load.between(0.0, arguments.minutes * 60)
        with tempfile.TemporaryDirectory() as folder:
            scene = scene_of(case, load, python, Path(folder))
            print(
                f"\n{case.name}: {len(load):,} requests in {load.duration_seconds:,.0f} s, {case.workers} workers of "
                f"{scene.gpus_per_worker} GPUs, SLO {case.slo[0]}/{case.slo[1]}"
            )
            agreed &= agreement(scene)
            if not arguments.engines:
                compare(scene)
    return 0 if agreed else 1


def scene_of(case: Case, load: Workload, python: Path, folder: Path) -> Scene:
    """Return the load on a cluster whose speed both simulators have."""
    inputs = inputs_of(case, load)
    pool = inputs.cluster.pools[0]
    assert isinstance(pool.speed, WorkerSpeed)
    pool = replace(pool, speed=(speed := same_speed(pool.speed, load)))
    inputs = replace(inputs, cluster=replace(inputs.cluster, pools=(pool,)))
    job = job_of(load, speed, inputs.slo, start_seconds=pool.start_seconds, folder=folder)
    return Scene(inputs=inputs, job=job, python=python, workers=case.workers, gpus_per_worker=pool.gpus_per_worker)


def compare(scene: Scene) -> None:
    """Print the table of one load."""
    print(f"  {'':70} {'in SLO':>7} {'GPU-h':>6} {'good/GPU-h':>10}")

    def show(row: Row) -> Row:
        share = row.within / len(scene.inputs.workload)
        print(f"  {row.name:70} {share:7.1%} {row.gpu_hours:6.2f} {row.per_gpu_hour:10,.0f}", flush=True)
        return row

    swept = [show(row) for row in real_rows(scene)]
    best = max(swept, key=lambda row: row.within)
    show(best._replace(name=f"the most in the SLO: {best.name}"))
    for row in our_rows(scene):
        show(row)


def real_rows(scene: Scene) -> Iterator[Row]:
    """Run the real planner. Pinned, no rule moves aggregated workers, so that one of them stands for all."""
    begin, mixed, pinned = scene.begin(), (0, scene.workers), scene.workers
    yield scene.real("Dynamo aggregated, pinned", mixed, RULES[0], least=pinned)
    for rules in RULES:
        yield scene.real(f"Dynamo disaggregated, {' and '.join(rules)}, pinned", begin, rules, least=pinned)
    yield scene.real(f"Dynamo disaggregated, {' and '.join(RULES[-1])}, free", begin, RULES[-1], least=FREE)


def our_rows(scene: Scene) -> Iterator[Row]:
    """Run our copy of the planner, ours, and every static split."""
    comparison = Comparison(inputs=scene.inputs, table=CONTESTANTS)
    for name in COPIES:
        row = scene.ours(comparison, name)
        yield row._replace(name=f"our copy: {row.name}")
    yield scene.ours(comparison, "ours")
    yield scene.ours(comparison, "ours-open")._replace(name="ours, all admitted")
    yield scene.ours(comparison, "static")


def agreement(scene: Scene) -> bool:
    """Print what both simulators make of workers without planner or router; whether they agree."""
    inputs, half = scene.inputs, scene.workers // 2
    agreed = True
    for prefill, decode in ((0, scene.workers), (half, scene.workers - half)):
        policy = RoundRobin(pool=inputs.pool, prefill=prefill, decode=decode)
        within = int(simulate(inputs.workload, inputs.cluster, policy, slo=inputs.slo).within(inputs.slo).sum())
        real = run(scene.python, with_workers(scene.job, prefill, decode)).within
        shares = real / len(inputs.workload), within / len(inputs.workload)
        points = 100 * (shares[1] - shares[0])
        agreed &= abs(points) <= AGREE_POINTS
        print(
            f"  engines alone, {policy.name}: {shares[0]:.1%} in Dynamo's simulator, {shares[1]:.1%} in ours, "
            f"{points:+.1f} points {'ok' if abs(points) <= AGREE_POINTS else 'MISSED'}",
            flush=True,
        )
    return agreed


if __name__ == "__main__":
    sys.exit(main())
