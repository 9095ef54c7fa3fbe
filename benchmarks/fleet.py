"""What many clusters cost one operator: API calls, CPU, memory, time from a change to its Pods, and growth under churn.

    python benchmarks/fleet.py                       # 1, 100 and 1,000 clusters of 10 workers
    python benchmarks/fleet.py --clusters 1 100
    python benchmarks/fleet.py --mode Auto --clusters 1000 --troubled 20 --minutes 10      # what rehearsals cost

The API server is `fulcrum apiserver`, the operator `fulcrum operator`, both as processes. Pods have no processes: a
hand in this process sets their status as kubelets would, and nothing answers at their addresses. Clusters are in mode
Manual. Churn is an hour of changes made as fast as the operator follows: a ratio changes (a flip) and a worker is lost,
in one cluster after the other. Exits with 0 only when every target holds.

With `--mode Auto` clusters have `balance.rehearse: "On"`, and this process answers for their Pods: load reports,
metrics, and rings of ten minutes of 5 requests/s. Those of most clusters are inside the promise. So many as are
troubled change their mix every five minutes, and what stood before is then too slow; they answer as the simulation of
the layout that they have. CPU and memory are those of the operator and of the process in which it plays, together, over
so many minutes; this process counts nowhere.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from _loopback import fleet_auto
from _loopback.fleet_hand import POD, Hand
from _loopback.fleet_processes import api_server, apply, calls, cpu_seconds, operator, peak_bytes, until

from fulcrum.kube import Api, Json, key_of

WORKERS = 10

IDLE_CALLS_PER_SECOND = 0.1
"""Of one idle cluster, watches not counted."""
CORES = 1.0
MEMORY_BYTES = 2**30
CHANGE_SECONDS = 5.0
"""Median from a change of a spec to the Pods that it asks for."""
GROWTH = 0.05
"""By how much memory may be larger in the last third of the churn than in the middle one."""


@dataclass(slots=True)
class Row:
    """What was measured with so many clusters."""

    clusters: int
    ready_seconds: float = 0.0
    calls_per_second: float = 0.0
    cores: float = 0.0
    memory_bytes: float = 0.0
    """Resident, at rest."""
    peak_bytes: float = 0.0
    """Resident, the most from start to end."""
    server_cores: float = 0.0
    server_bytes: float = 0.0
    """Of the API server, which is no part of the targets."""
    churn_cpu_seconds: float = 0.0
    change_seconds: list[float] = field(default_factory=list)
    churned: int = 0
    growth: float = 0.0

    def problems(self) -> Iterator[str]:
        """Targets that do not hold."""
        if self.calls_per_second / self.clusters > IDLE_CALLS_PER_SECOND:
            yield f"{self.calls_per_second / self.clusters:.2f} calls/s of an idle cluster"
        if self.cores > CORES:
            yield f"{self.cores:.2f} cores"
        if self.peak_bytes > MEMORY_BYTES:
            yield f"{self.peak_bytes / 2**20:.0f} MiB"
        if median(self.change_seconds) > CHANGE_SECONDS:
            yield f"{median(self.change_seconds):.1f} s from a change to its Pods"
        if self.growth > GROWTH:
            yield f"memory grew by {self.growth:.0%} under churn"


def document(name: str, workers: int, prefill: int) -> Json:
    """An InferenceCluster of so many workers, `prefill` of them in that role."""
    return {
        "apiVersion": "fulcrum.dev/v1alpha1",
        "kind": "InferenceCluster",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "m"},
            "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": workers}}],
            "balance": {"mode": "Manual", "ratio": {"prefill": prefill, "decode": workers - prefill}},
        },
    }


async def measure(count: int, *, idle_seconds: float, changes: int, churn: int, patience_seconds: float) -> Row:
    """One fleet from nothing to its end."""
    row = Row(clusters=count)
    names = [f"c{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="fleet-") as name, api_server(Path(name)) as (kubeconfig, server):
        api = Api(kubeconfig, timeout_seconds=60)
        hand = Hand(api)
        playing = asyncio.create_task(hand.run())
        try:
            with operator(Path(name)) as process:
                began = time.monotonic()
                for each in names:
                    await apply(api, each, document(each, WORKERS, WORKERS // 2))
                await until("all Pods", lambda: hand.count() >= count * WORKERS, seconds=patience_seconds)
                row.ready_seconds = time.monotonic() - began
                await _settled(api, patience_seconds)
                await _idle(row, api, process, server, idle_seconds)
                await _change(row, api, hand, names[:1] * changes if count < changes else names[:changes])
                await _churn(row, api, hand, names, process, churn=churn)
                row.peak_bytes = peak_bytes(process)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await api.close()
    return row


async def _settled(api: Api, patience_seconds: float) -> None:
    """Wait until statuses are written: few calls in five seconds."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        before = await calls(api)
        await asyncio.sleep(5)
        if await calls(api) - before <= 5 + 1:  # ours among them
            return


async def _idle(row: Row, api: Api, process: psutil.Process, server: psutil.Process, seconds: float) -> None:
    calls_before, cpu_before, began = await calls(api), cpu_seconds(process), time.monotonic()
    server_before = cpu_seconds(server)
    await asyncio.sleep(seconds)
    spent = time.monotonic() - began
    row.calls_per_second = max(0.0, await calls(api) - calls_before - 1) / spent
    row.cores = (cpu_seconds(process) - cpu_before) / spent
    row.memory_bytes = process.memory_info().rss
    row.server_cores = (cpu_seconds(server) - server_before) / spent
    row.server_bytes = server.memory_info().rss


async def _change(row: Row, api: Api, hand: Hand, names: list[str]) -> None:
    """One worker more, in one cluster after the other."""
    for name in names:
        made = hand.made[name]
        began = time.monotonic()
        await apply(api, name, document(name, hand.workers(name) + 1, WORKERS // 2))
        await until(f"{name}'s new Pod", lambda name=name, made=made: hand.made[name] > made, seconds=300)
        row.change_seconds.append(time.monotonic() - began)


async def _churn(row: Row, api: Api, hand: Hand, names: list[str], process: psutil.Process, *, churn: int) -> None:
    """Flip a worker, lose another and see it replaced, in one cluster after the other."""
    memory: list[int] = []
    cpu_before = cpu_seconds(process)
    for number in range(churn):
        name = names[number * 7 % len(names)]
        made, workers = hand.made[name], hand.workers(name)
        lost = hand.of_cluster(name)[0]
        await apply(api, name, document(name, workers, WORKERS // 2 - 1 + number // len(names) % 3))
        await api.delete(POD.path(key_of(lost)), uid=lost["metadata"]["uid"], grace_seconds=0)
        await until(f"{name}'s next Pod", lambda name=name, made=made: hand.made[name] > made, seconds=300)
        memory.append(process.memory_info().rss)
    third = len(memory) // 3
    row.churn_cpu_seconds = cpu_seconds(process) - cpu_before
    row.churned = len(memory)
    if third:
        row.growth = median(memory[-third:]) / median(memory[third : 2 * third]) - 1


def show(rows: list[Row]) -> int:
    """Print the table; 0 when every target holds."""
    print(
        "\n                                   operator, idle                                                 "
        "                    API server\n"
        "clusters  Pods  all made s  calls/s  per cluster  cores   MiB  peak MiB  change -> Pods s (max)  churn  "
        "CPU ms each  growth   cores   MiB"
    )
    problems = []
    for row in rows:
        print(
            f"{row.clusters:8d} {row.clusters * WORKERS:5d} {row.ready_seconds:11.1f} {row.calls_per_second:8.2f} "
            f"{row.calls_per_second / row.clusters:12.3f} {row.cores:6.2f} {row.memory_bytes / 2**20:5.0f} "
            f"{row.peak_bytes / 2**20:9.0f} {median(row.change_seconds):14.2f} ({max(row.change_seconds):5.2f}) "
            f"{row.churned:6d} {1000 * row.churn_cpu_seconds / max(1, row.churned):12.0f} {row.growth:7.1%} "
            f"{row.server_cores:7.2f} {row.server_bytes / 2**20:5.0f}"
        )
        problems += [f"{row.clusters} clusters: {problem}" for problem in row.problems()]
    print("every target holds" if not problems else "does not hold: " + "; ".join(problems))
    return 1 if problems else 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["Manual", "Auto"], default="Manual")
    parser.add_argument("--clusters", type=int, nargs="+", help="Default: 1, 100 and 1,000; of mode Auto 1,000.")
    parser.add_argument("--patience-seconds", type=float, default=3600.0)
    manual = parser.add_argument_group("mode Manual")
    manual.add_argument("--idle-seconds", type=float, default=60.0)
    manual.add_argument("--changes", type=int, default=20)
    manual.add_argument("--churn", type=int, default=360, help="Lost workers and flips: an hour at one in ten seconds.")
    auto = parser.add_argument_group("mode Auto")
    auto.add_argument("--troubled", type=int, default=20, help="Clusters that change their mix.")
    auto.add_argument("--minutes", type=float, default=10.0)
    auto.add_argument("--period-seconds", type=float, default=300.0, help="How long a mix lasts.")
    auto.add_argument("--settle-seconds", type=float, default=120.0, help="From the last Pod until it is measured.")
    auto.add_argument("--rehearse", choices=["On", "Off"], default="On", help="Off: what Auto costs without.")
    arguments = parser.parse_args()
    return _auto(arguments) if arguments.mode == "Auto" else _manual(arguments)


def _manual(arguments: argparse.Namespace) -> int:
    rows = []
    for count in arguments.clusters or [1, 100, 1000]:
        rows.append(
            asyncio.run(
                measure(
                    count,
                    idle_seconds=arguments.idle_seconds,
                    changes=arguments.changes,
                    churn=arguments.churn,
                    patience_seconds=arguments.patience_seconds,
                )
            )
        )
        print(rows[-1], flush=True)
    return show(rows)


def _auto(arguments: argparse.Namespace) -> int:
    rows = []
    for count in arguments.clusters or [1000]:
        plan = fleet_auto.Plan(
            clusters=count,
            troubled=min(arguments.troubled, count),
            minutes=arguments.minutes,
            period_seconds=arguments.period_seconds,
            settle_seconds=arguments.settle_seconds,
            rehearse=arguments.rehearse == "On",
            patience_seconds=arguments.patience_seconds,
        )
        rows.append(asyncio.run(fleet_auto.measure(plan)))
        print(rows[-1], flush=True)
    return fleet_auto.show(rows)


if __name__ == "__main__":
    sys.exit(main())
