"""How long rollouts take, in seconds: the operator as a process, and workers that need real time to start."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.controller.cluster import ApiServer, Cluster, Kubelet, Operator, client_of, eventually, settled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

WORKERS = 8
STARTS_SECONDS = 3.0
"""How long a worker needs until it serves. Real ones need minutes, beside which the rest of a rollout hardly counts."""


class Rollout:
    """One rollout of a cluster in a namespace of its own."""

    def __init__(self, server: ApiServer, most_unavailable: int) -> None:
        self._server = server
        self._namespace = f"rollout-{most_unavailable}"
        self._most_unavailable = most_unavailable
        self.fewest_ready = WORKERS

    async def seconds(self) -> float:
        """From the change of the spec until all workers are of it and serve."""
        self._server.kubectl("create", "namespace", self._namespace)
        client = client_of(self._server)
        cluster = Cluster(self._server, client, self._namespace)
        rollout = {"maxUnavailable": self._most_unavailable}
        pools = [{"name": "p", "accelerator": "cpu", "workers": {"max": WORKERS}, "rollout": rollout}]
        try:
            async with Kubelet(cluster, starts_seconds=STARTS_SECONDS).run():
                with Operator(self._server, "--namespace", self._namespace):
                    await cluster.apply(pools=pools)
                    await eventually(lambda: settled(cluster, "8/8", "4P:4D"), seconds=90)
                    return await self._roll_out(cluster)
        finally:
            await client.close()

    async def _roll_out(self, cluster: Cluster) -> float:
        old = {pod["metadata"]["uid"] for pod in (await cluster.pods()).values()}
        began = time.monotonic()
        await cluster.patch({"spec": {"engine": {"args": ["--max-num-seqs=8"]}}})

        async def rolled_out() -> bool:
            pods = (await cluster.pods()).values()
            serving = [pod for pod in pods if _serves(pod)]
            self.fewest_ready = min(self.fewest_ready, len(serving))
            if old & {pod["metadata"]["uid"] for pod in pods}:
                return False
            return await settled(cluster, "8/8", "4P:4D")

        await eventually(rolled_out, seconds=240)
        return time.monotonic() - began


def _serves(pod: dict[str, object]) -> bool:
    metadata, status = pod["metadata"], pod.get("status") or {}
    assert isinstance(metadata, dict)
    assert isinstance(status, dict)
    draining = metadata["labels"]["fulcrum.dev/role"] == "draining"
    return not draining and "deletionTimestamp" not in metadata and bool(status.get("conditions"))


async def test_two_by_two_takes_half_the_time_of_one_by_one(api_server: ApiServer) -> None:
    rollouts = [Rollout(api_server, most) for most in (1, 2)]
    one_by_one, two_by_two = await asyncio.gather(*(rollout.seconds() for rollout in rollouts))
    print(f"rollout of {WORKERS} workers: one by one {one_by_one:.1f} s, maxUnavailable 2 {two_by_two:.1f} s")
    assert [rollout.fewest_ready for rollout in rollouts] == [WORKERS - 1, WORKERS - 2]
    assert two_by_two < 0.6 * one_by_one
