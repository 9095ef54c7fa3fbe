"""What one author of InferenceClusters, or one upstream, costs the others.

    python benchmarks/authors.py                      # 10,000 hostile objects: half an hour
    python benchmarks/authors.py --objects 500 --only objects

- `objects`: hostile InferenceClusters (fixed seed) are written through `fulcrum apiserver` without a pause, beside two
  good clusters that get a new ratio 20 times. Printed: from the change of a ratio to the labels of the workers.
- `nodes`: a tick of a cluster of 500 Pods on 500 nodes, all in trouble, so that all nodes are read.
- `silent`: the loads of 8 workers of one cluster while 1,000 workers of another are asked that never answer.
- `forecasts`: how long 20 clusters wait for a forecast behind one with the longest history and horizon.
- `upstreams`: memory of the operator while the Prometheus, 16 agents and 3 gateways of one cluster answer with bombs,
  and how soon another cluster gets 20 new ratios.

API server and operator are processes of this machine and share its cores. Exits with 0 only when every target holds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.controller.bomb_run import beside_bombs  # noqa: E402
from tests.controller.cluster import ApiServer, Cluster, Operator, client_of, running_api_server  # noqa: E402
from tests.controller.hostile_run import beside_hostile_objects  # noqa: E402
from tests.controller.test_walk import reconciling  # noqa: E402
from tests.telemetry.test_hostile_upstreams import HOSTILE, upstream  # noqa: E402

from fulcrum.api.ports import AgentAddress  # noqa: E402
from fulcrum.forecast.forecaster import Forecaster  # noqa: E402
from fulcrum.forecast.series import LoadSeries  # noqa: E402
from fulcrum.telemetry import Agents  # noqa: E402
from fulcrum.telemetry.turns import Turns  # noqa: E402

SEED = 36
OBJECT_SECONDS = 10.0
ACCEPTED_SHARE = 0.3
NODES = 500
SILENT = 1_000
TICK_SECONDS = 1.0
FORECAST_SECONDS = 5.0
"""Most that one cluster's forecast may delay another's."""
MEMORY_BYTES = 512 * 2**20

Check = Callable[[argparse.Namespace], Awaitable[str | None]]
"""Prints what it found; returns what does not hold."""


async def objects(options: argparse.Namespace) -> str | None:
    """Hostile objects beside two good clusters."""
    async with _namespace() as (server, cluster):
        began = time.monotonic()
        with Operator(server, "--namespace", cluster.namespace) as operator:
            found = await beside_hostile_objects(cluster, options.objects, seed=SEED)
            text = operator.metrics()
        cpu = next(float(line.split()[-1]) for line in text.splitlines() if line.startswith("process_cpu_seconds"))
    print(
        f"[authors] objects: {found}; {time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU in the operator", flush=True
    )
    if found.accepted < ACCEPTED_SHARE * options.objects:
        return f"only {found.accepted} objects passed the schema"
    slow = found.slowest_seconds > OBJECT_SECONDS
    return f"a ratio took {found.slowest_seconds:.1f} s (<= {OBJECT_SECONDS:g})" if slow else None


async def nodes(_: argparse.Namespace) -> str | None:
    """A cluster of many Pods on as many nodes."""
    async with _namespace() as (__, cluster):
        half = NODES // 2
        await cluster.apply(workers=NODES, balance={"mode": "Manual", "ratio": {"prefill": half, "decode": half}})
        key = (cluster.namespace, cluster.name)
        async with reconciling(cluster) as (reconciler, ___):
            while len(await cluster.pods()) < NODES:
                await reconciler.reconcile(key)
            for number, name in enumerate(await cluster.pods()):
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}}
                await cluster.api.create("/api/v1/nodes", node)
                binding = {"target": {"kind": "Node", "name": f"n{number}"}, "metadata": {"name": name}}
                await cluster.api.create(f"/api/v1/namespaces/{cluster.namespace}/pods/{name}/binding", binding)
            await asyncio.sleep(2.0)  # the watch tells of them
            cpu = time.process_time()
            ticks = [await _timed(reconciler.reconcile(key)) for ____ in range(5)]
            cpu = (time.process_time() - cpu) / len(ticks)
    print(
        f"[authors] nodes: ticks of {NODES} Pods on {NODES} nodes take {_list(ticks)} s, {cpu:.2f} s of CPU", flush=True
    )
    return f"a tick took {max(ticks):.2f} s (<= {TICK_SECONDS:g})" if max(ticks) > TICK_SECONDS else None


async def silent(_: argparse.Namespace) -> str | None:
    """Loads of one cluster beside another one whose workers never answer."""
    async with upstream(HOSTILE["silent"]()) as port, Agents() as agents:
        address = AgentAddress("127.0.0.1", port)
        many = asyncio.create_task(agents.loads({f"w{number}": address for number in range(SILENT)}))
        await asyncio.sleep(0)
        seconds = [await _timed(agents.loads({f"v{number}": address for number in range(8)})) for __ in range(5)]
        await many
    print(f"[authors] silent: beside {SILENT} silent workers another cluster's 8, silent too: {_list(seconds)} s")
    return f"loads took {max(seconds):.2f} s (<= {TICK_SECONDS:g})" if max(seconds) > TICK_SECONDS else None


async def forecasts(_: argparse.Namespace) -> str | None:
    """Forecasts of many clusters behind a long one."""
    turns, waits = Turns(1), []

    async def forecast(namespace: str, intervals: int, horizon_seconds: float) -> None:
        began = time.monotonic()
        rate = 20 + 10 * np.sin(np.arange(intervals) / 100) + np.random.default_rng(SEED).poisson(5, intervals)
        lengths = np.full(intervals, 500.0)
        series = LoadSeries(
            interval_seconds=60.0, end_seconds=1e9, rate=rate, isl_tokens=lengths, osl_tokens=lengths
        )  # fmt: skip
        forecaster = Forecaster(clock=time.monotonic)
        async with turns.of(namespace):
            waits.append(time.monotonic() - began)
            await asyncio.to_thread(forecaster.update, series, horizon_seconds=horizon_seconds)

    await forecast("warm", 120, 300.0)  # imports
    waits.clear()
    long = [asyncio.create_task(forecast("long", 4_320, 86_400.0)) for __ in range(5)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(forecast(f"other-{number}", 120, 300.0)) for number in range(20)]
    await others[0]
    first = waits[1]
    await asyncio.gather(*long, *others)
    print(f"[authors] forecasts: behind five of 4,320 intervals and a horizon of a day another waits {first:.1f} s")
    return f"a forecast waited {first:.1f} s (<= {FORECAST_SECONDS:g})" if first > FORECAST_SECONDS else None


async def upstreams(_: argparse.Namespace) -> str | None:
    """The operator beside a cluster from which only bombs come."""
    async with _namespace() as (server, cluster):
        with Operator(server, "--namespace", cluster.namespace) as operator:
            found = await beside_bombs(cluster, operator, changes=20)
    print(f"[authors] upstreams: {found}", flush=True)
    if found.peak_bytes > MEMORY_BYTES:
        return f"memory is {found.peak_bytes / 2**20:.0f} MiB (<= {MEMORY_BYTES / 2**20:.0f})"
    slow = max(found.seconds)
    return f"a ratio took {slow:.1f} s (<= {OBJECT_SECONDS:g})" if slow > OBJECT_SECONDS else None


@contextlib.asynccontextmanager
async def _namespace() -> AsyncIterator[tuple[ApiServer, Cluster]]:
    with tempfile.TemporaryDirectory() as folder, running_api_server(Path(folder)) as server:
        server.install()
        server.kubectl("create", "namespace", "authors")
        client = client_of(server)
        try:
            yield server, Cluster(server, client, "authors")
        finally:
            await client.close()


async def _timed(work: Awaitable[object]) -> float:
    began = time.monotonic()
    await work
    return time.monotonic() - began


def _list(seconds: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds)


async def main() -> int:
    checks: dict[str, Check] = {
        "upstreams": upstreams, "silent": silent, "forecasts": forecasts, "nodes": nodes, "objects": objects
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=10_000, help="hostile objects to write")
    parser.add_argument("--only", choices=checks)
    options = parser.parse_args()
    began = datetime.now(UTC)
    chosen = {name: check for name, check in checks.items() if options.only in (None, name)}
    wrong = {name: why for name, check in chosen.items() if (why := await check(options)) is not None}
    seconds = (datetime.now(UTC) - began).total_seconds()
    said = "; ".join(f"{name}: {why}" for name, why in wrong.items()) or "every target holds"
    print(f"[authors] {said}; {os.cpu_count()} cores, {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
