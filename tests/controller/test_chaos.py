"""The operator against an API server that is slow, forgetful and full of errors converges, and writes little more."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.controller.cluster import (
    ApiServer,
    Cluster,
    Kubelet,
    Operator,
    client_of,
    eventually,
    running_api_server,
    settled,
)

from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import INFERENCE_CLUSTER

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
OPERATOR = "system:serviceaccount:fulcrum-system:fulcrum-operator"
SEEDS = (1, 2, 3)
QUIET_SECONDS = 3.0


def revisions(pods: dict[str, Manifest]) -> set[str]:
    return {pod["metadata"]["annotations"]["fulcrum.dev/spec-hash"] for pod in pods.values()}


async def live_through(cluster: Cluster) -> None:
    """Create, scale up, flip under load, roll out, scale down, delete."""

    async def holds(ready: str, ratio: str) -> None:
        await eventually(lambda: settled(cluster, ready, ratio), seconds=120)

    async with Kubelet(cluster).run() as kubelet:
        await cluster.apply(workers=4)
        await holds("4/4", "2P:2D")
        await cluster.apply(workers=6)
        await holds("6/6", "3P:3D")
        before = await cluster.pods()
        kubelet.set_running(2)
        for prefill in (1, 5, 3):
            await cluster.patch({"spec": {"balance": {"ratio": {"prefill": prefill, "decode": 6 - prefill}}}})
            await holds("6/6", f"{prefill}P:{6 - prefill}D")
        after = await cluster.pods()
        assert {name: pod["metadata"]["uid"] for name, pod in before.items()} == {
            name: pod["metadata"]["uid"] for name, pod in after.items()
        }
        kubelet.set_running(0)
        await cluster.patch({"spec": {"engine": {"args": ["--max-num-seqs=8"]}}})

        async def rolled_out() -> bool:
            pods = await cluster.pods()
            return not (pods.keys() ^ before.keys()) and not revisions(pods) & revisions(before)

        await eventually(rolled_out, seconds=240)
        await holds("6/6", "3P:3D")
        fewer = [{"name": "p", "accelerator": "cpu", "workers": {"max": 4}}]
        await cluster.patch({"spec": {"pools": fewer, "balance": {"ratio": {"prefill": 2, "decode": 2}}}})
        await holds("4/4", "2P:2D")
        await cluster.kube.delete(INFERENCE_CLUSTER, cluster.namespace, cluster.name, uid=None)


def operator_requests(server: ApiServer) -> Counter[str]:
    """The operator's requests so far: writes by resource, and answers by code."""
    counts: Counter[str] = Counter()
    for line in server.kubectl("get", "--raw", "/metrics").stdout.splitlines():
        if not line.startswith("fulcrum_apiserver_client_requests_total") or f'user="{OPERATOR}"' not in line:
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        count = int(float(line.rpartition(" ")[2]))
        counts[labels["code"]] += count
        if labels["verb"] not in {"GET", "LIST", "WATCH"}:
            counts["writes"] += count
    return counts


async def requests_until_quiet(server: ApiServer) -> Counter[str]:
    """The operator's requests, once it has written nothing for `QUIET_SECONDS`.

    It must become quiet, but not at once: its watch may tell of the deletion seconds after the Pods are gone, and until
    then it replaces them (garbage, whose owner is gone).
    """
    counts, since = operator_requests(server), time.monotonic()

    async def quiet() -> bool:
        nonlocal counts, since
        now = operator_requests(server)
        if now["writes"] != counts["writes"]:
            since = time.monotonic()
        counts = now
        return time.monotonic() - since >= QUIET_SECONDS

    await eventually(quiet, seconds=30)
    return counts


async def lived_through(folder: Path, *options: str) -> Counter[str]:
    with running_api_server(folder, *options) as server:
        server.install()
        server.kubectl("create", "namespace", "chaos")
        client = client_of(server)
        try:
            with Operator(server, "--namespace", "chaos"):
                await live_through(Cluster(server, client, "chaos"))
                return await requests_until_quiet(server)
        finally:
            await client.close()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """The same life without chaos."""
    return asyncio.run(lived_through(tmp_path_factory.mktemp("quiet")))


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_cluster_lives_through_chaos(seed: int, quiet: Counter[str], tmp_path: Path) -> None:
    counts = await lived_through(tmp_path, f"--chaos={seed}")
    print(f"seed {seed}: {json.dumps(counts)}; without chaos: {json.dumps(quiet)}")
    assert {"409", "429", "500"} <= counts.keys(), "the chaos did nothing"
    assert counts["writes"] <= 1.5 * quiet["writes"] + 20
