"""Ours beside the real NVIDIA Dynamo 1.6.1: its planner, router and simulated engines, on the same requests and speeds.

Two loads: the Mooncake conversation (`../shared/traces`, left out where it is not there), and NVIDIA's own scenario, a
sine of 5 to 45 requests/s. The GPUs are the same for all. Printed of each: requests inside the SLO, GPU-hours, and
good requests per GPU-hour.

* Dynamo aggregated and disaggregated, with its planner's defaults (throughput mode, all GPUs as its budget);
* its best of a small sweep: aggregated or disaggregated, throughput mode, load mode or both, with the budget pinned to
  all GPUs (`min_gpu_budget` = `max_gpu_budget`) or free to release some;
* our copy of its planner, in our simulator (`fulcrum simulate --policy dynamo`);
* ours, with admission and without (Dynamo's planner has none), and the best static split in hindsight;
* static splits in both simulators, which shows how far the engines agree.

Dynamo begins with the split that ours begins with. Both engines have one speed: the roofline, with prefill in
proportion to the tokens of a step, as Dynamo's profiles know it; its planner has measured that speed beforehand.

Dynamo has an environment of its own: --environment, or `build/dynamo` out of `requirements/dynamo.lock`.

    python benchmarks/dynamo.py [--only NAME] [--minutes N] [--environment FOLDER] [--traces FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from dynamo_real import Job, environment, job_of, planner_config, run, same_speed, with_workers
from policies import SHARED_TRACES, Case, arena_of, cases

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.simulation.contest import Arena, Contest
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.workload import Workload

LOADS = ("mooncake", "dynamo-sine")
COPIES = ("dynamo", "dynamo-load", "dynamo-both", "dynamo-aggregated")
RULES = (("throughput",), ("load",), ("throughput", "load"))
AGREE_POINTS = 2.0
"""Static splits may differ by so many points of attainment between the two simulators."""


class Row(NamedTuple):
    """What became of the requests under one planner."""

    name: str
    within: int
    """Requests inside both promises."""
    gpu_hours: float


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One load on one cluster."""

    arena: Arena
    job: Job
    python: Path
    workers: int
    gpus_per_worker: int

    def begin(self) -> tuple[int, int]:
        """Prefill and decode workers that ours begins with."""
        roles = [role for _, role in Ours(self.arena.spec).initial(self.arena.cluster)]
        return roles.count(Role.PREFILL), roles.count(Role.DECODE)

    def real(self, name: str, split: tuple[int, int], rules: tuple[str, ...] = (), *, least: int = -1) -> Row:
        """Run the real Dynamo from a split, (0, N) being aggregated; without rules its workers stay as they are."""
        config = None
        if rules:
            config = planner_config(
                self.arena.slo, aggregated=not split[0], rules=rules, least=least, most=self.workers
            )
        job = with_workers(self.job, *split, planner=config)
        found = run(self.python, job)
        return Row(name, found.within, found.worker_hours * self.gpus_per_worker)

    def ours(self, contest: Contest, name: str) -> Row:
        """Run a policy of `fulcrum simulate`."""
        result = contest.run(name).result
        within = int(result.within(self.arena.slo).sum())
        return Row(result.policy, within, result.gpu_seconds / 3600)


def main() -> int:
    """Run the benchmark; 0 when the two simulators agree on static splits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LOADS, help="one of the loads")
    parser.add_argument("--minutes", type=float, help="only so many minutes of each load")
    parser.add_argument("--environment", type=Path, help="a virtual environment that has Dynamo")
    parser.add_argument("--traces", type=Path, default=SHARED_TRACES, help="folder of the recorded traces")
    arguments = parser.parse_args()
    python = environment(arguments.environment)
    agreed = True
    for case in cases(arguments.traces, seed=7):
        if case.name not in LOADS or arguments.only not in (None, case.name):
            continue
        if case.file is not None and not case.file.exists():
            print(f"\n{case.name}: skipped, {case.file} is not there")
            continue
        load = case.load()
        load = load if arguments.minutes is None else load.between(0.0, arguments.minutes * 60)
        with tempfile.TemporaryDirectory() as folder:
            agreed &= compared(case, load, python, Path(folder))
    return 0 if agreed else 1


def compared(case: Case, load: Workload, python: Path, folder: Path) -> bool:
    """Print the table of one load; whether static splits agree."""
    arena = arena_of(case, load)
    pool = arena.cluster.pools[0]
    assert isinstance(pool.speed, WorkerSpeed)
    pool = replace(pool, speed=(speed := same_speed(pool.speed, load)))
    arena = replace(arena, cluster=replace(arena.cluster, pools=(pool,)))
    job = job_of(load, speed, arena.slo, start_seconds=pool.start_seconds, folder=folder)
    scene = Scene(arena=arena, job=job, python=python, workers=case.workers, gpus_per_worker=pool.gpus_per_worker)
    print(
        f"\n{case.name}: {len(load):,} requests in {load.duration_seconds:,.0f} s, {case.workers} workers of "
        f"{pool.gpus_per_worker} GPUs, SLO {case.slo[0]}/{case.slo[1]}"
    )
    print(f"  {'':44} {'in SLO':>7} {'GPU-h':>6} {'good/GPU-h':>10}")
    contest = Contest(arena=arena)
    for row in rows(scene, contest):
        per_hour = row.within / row.gpu_hours if row.gpu_hours else 0.0
        print(f"  {row.name:44} {row.within / len(load):7.1%} {row.gpu_hours:6.2f} {per_hour:10,.0f}", flush=True)
    return agreement(scene, contest)


def rows(scene: Scene, contest: Contest) -> Iterator[Row]:
    """Run the planners, the real ones first."""
    begin, mixed = scene.begin(), (0, scene.workers)
    swept = {
        (split, rules, least): scene.real(
            f"{'disaggregated' if split[0] else 'aggregated'} {'+'.join(rules)}{', pinned' if least > 0 else ''}",
            split,
            rules,
            least=least,
        )
        for split, rules, least in product((mixed, begin), RULES, (-1, scene.workers))
        if split[0] or least < 0  # pinned, all rules leave aggregated workers as they are
    }
    yield swept[mixed, RULES[0], -1]._replace(name="Dynamo aggregated")
    yield swept[begin, RULES[0], -1]._replace(name="Dynamo disaggregated")
    static = scene.real("aggregated, all workers", mixed)
    best = max((*swept.values(), static), key=lambda row: (row.within, -row.gpu_hours))
    yield best._replace(name=f"Dynamo, most in the SLO: {best.name}")
    best = max((*swept.values(), static), key=lambda row: row.within / row.gpu_hours)
    yield best._replace(name=f"Dynamo, most per GPU-hour: {best.name}")
    for name in COPIES:
        row = scene.ours(contest, name)
        yield row._replace(name=f"our copy: {row.name}")
    yield scene.ours(contest, "ours")._replace(name="ours")
    yield scene.ours(contest, "ours-open")._replace(name="ours, all admitted")
    yield scene.ours(contest, "static")


def agreement(scene: Scene, contest: Contest) -> bool:
    """Print what static workers come to in both simulators; whether they agree."""
    requests, half = len(scene.arena.workload), scene.workers // 2
    agreed = True
    for split in ((half, scene.workers - half), (0, scene.workers)):
        name = f"static-{split[0]}:{split[1]}" if split[0] else "aggregated"
        real, ours = scene.real(name, split), scene.ours(contest, name)
        points = 100 * (ours.within - real.within) / requests
        agreed &= abs(points) <= AGREE_POINTS
        print(
            f"  engines: {ours.name:20} Dynamo's {real.within / requests:7.1%}, ours {ours.within / requests:7.1%}, "
            f"{points:+.1f} points {'ok' if abs(points) <= AGREE_POINTS else 'MISSED'}"
        )
    return agreed


if __name__ == "__main__":
    sys.exit(main())
