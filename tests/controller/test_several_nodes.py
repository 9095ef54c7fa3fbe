"""Workers on several nodes: a real API server, a real operator, and the test as the controller of LeaderWorkerSets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.foreign_kinds import foreign_crds
from tests.controller.cluster import ApiServer, Cluster, Kubelet, Operator, client_of, eventually, running_api_server

from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import LEADER_WORKER_SET, POD

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GROUP = "leaderworkerset.sigs.k8s.io/name"
POOL: dict[str, Any] = {
    "name": "p",
    "accelerator": "H100-SXM-80GB",
    "parallelism": {"tensor": 16},
    "gpu": {"perNode": 8},
    "roles": ["prefill", "decode"],
    "workers": {"max": 3},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with running_api_server(tmp_path) as started:
        started.install()
        started.kubectl("create", "namespace", "ml")
        yield started


def install_sets(server: ApiServer) -> None:
    file = server.folder / "foreign.yaml"
    file.write_text(yaml.safe_dump_all(foreign_crds()))
    server.kubectl("apply", "-f", str(file))


@asynccontextmanager
async def big_cluster(server: ApiServer) -> AsyncIterator[BigCluster]:
    api = client_of(server)
    try:
        yield BigCluster(server, api, "ml")
    finally:
        await api.close()


class BigCluster(Cluster):
    """A cluster whose `pods` are those that take requests: the leaders of its groups."""

    async def pods(self) -> dict[str, Manifest]:
        found = await super().pods()
        return {n: pod for n, pod in found.items() if pod["metadata"]["labels"].get("fulcrum.dev/role") is not None}

    async def sets(self) -> dict[str, Manifest]:
        found = await self.kube.list(LEADER_WORKER_SET, self.namespace, {})
        return {each["metadata"]["name"]: each for each in found}

    async def everything(self) -> set[str]:
        return set(await super().pods())


@asynccontextmanager
async def controller_of_sets(cluster: BigCluster) -> AsyncIterator[None]:
    """Make the Pods of each set, and end them with it, as the project's controller and the garbage collector do."""

    async def work() -> None:
        while True:
            sets = await cluster.sets()
            there = await cluster.everything()
            for name, group in sets.items():
                template = group["spec"]["leaderWorkerTemplate"]
                for number in range(template["size"]):
                    pod = f"{name}-0" if number == 0 else f"{name}-0-{number}"
                    if pod not in there:
                        await cluster.kube.create(POD, _pod(pod, name, template, leader=number == 0))
            for pod in there:
                if pod.startswith("c-p-") and pod[: len("c-p-0")] not in sets:
                    await cluster.kube.delete(POD, cluster.namespace, pod, uid=None, grace_seconds=0)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _pod(name: str, group: str, template: Manifest, *, leader: bool) -> Manifest:
    made = template["leaderTemplate"] if leader else template["workerTemplate"]
    metadata = made["metadata"]
    labels = {**metadata["labels"], GROUP: group}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "name": name, "namespace": "ml", "labels": labels},
        "spec": made["spec"],
    }


async def test_groups_live_as_workers_do(server: ApiServer) -> None:
    install_sets(server)
    async with big_cluster(server) as cluster:
        with Operator(server, "--namespace", "ml"):
            async with Kubelet(cluster).run() as kubelet, controller_of_sets(cluster):
                await cluster.apply(pools=[POOL], balance={"mode": "Manual", "ratio": {"prefill": 1, "decode": 2}})

                async def serves(ready: str, ratio: str) -> bool:
                    status = await cluster.status()
                    return (status["ready"], status["ratio"]) == (ready, ratio)

                await eventually(lambda: serves("3/3", "1P:2D"))
                sets = await cluster.sets()
                assert set(sets) == {"c-p-0", "c-p-1", "c-p-2"}
                assert await cluster.everything() == {f"{name}-0{end}" for name in sets for end in ("", "-1")}
                assert await cluster.roles() == {"c-p-0-0": "prefill", "c-p-1-0": "decode", "c-p-2-0": "decode"}
                uids = {name: each["metadata"]["uid"] for name, each in sets.items()}

                # A flip is a label of the leader.
                await cluster.patch({"spec": {"balance": {"ratio": {"prefill": 2, "decode": 1}}}})
                await eventually(lambda: serves("3/3", "2P:1D"))
                assert {name: each["metadata"]["uid"] for name, each in (await cluster.sets()).items()} == uids
                told = {role.role.value for agent in kubelet.agents.values() for role in agent.told}
                assert "prefill" in told

                # One too many drains, and its set is deleted.
                await cluster.apply(
                    pools=[{**POOL, "workers": {"max": 2}}],
                    balance={"mode": "Manual", "ratio": {"prefill": 1, "decode": 1}},
                )

                async def two() -> bool:
                    return len(await cluster.sets()) == 2 and len(await cluster.everything()) == 4

                await eventually(two)
                await eventually(lambda: serves("2/2", "1P:1D"))
                reasons = [reason for reason, _ in await cluster.events()]
                assert {"RoleFlipped", "WorkerDraining", "WorkerDrained"} <= set(reasons)

                # A new revision replaces the sets one at a time; the role of none of them is left empty.
                before = {each["metadata"]["uid"] for each in (await cluster.sets()).values()}
                await cluster.patch({"spec": {"engine": {"args": ["--seed=7"]}}})

                async def replaced() -> bool:
                    now = {each["metadata"]["uid"] for each in (await cluster.sets()).values()}
                    return len(now) == 2 and not now & before and await serves("2/2", "1P:1D")

                await eventually(replaced, seconds=120)


async def test_without_the_kind_no_worker_is_made_and_the_condition_says_what_to_do(server: ApiServer) -> None:
    async with big_cluster(server) as cluster:
        small = {"name": "small", "accelerator": "cpu", "workers": {"max": 1}, "roles": ["mixed"]}
        with Operator(server, "--namespace", "ml"):
            await cluster.apply(pools=[{**POOL, "roles": ["mixed"], "workers": {"max": 1}}, small])

            async def says_so() -> bool:
                condition = await cluster.condition("Degraded")
                return condition["reason"] == "LeaderWorkerSetMissing" and "pool p" in condition["message"]

            await eventually(says_so)
            assert set(await cluster.pods()) == {"c-small-0"}
            install_sets(server)

            async def made() -> bool:
                return set(await cluster.sets()) == {"c-p-0"}

            await eventually(made)
            await eventually(lambda: is_healthy(cluster))


async def is_healthy(cluster: Cluster) -> bool:
    return bool((await cluster.condition("Degraded"))["reason"] == "Healthy")
