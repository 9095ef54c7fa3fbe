"""Agents that answer late: what is written is of the time at which it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from tests.controller.cluster import Cluster, Kubelet, eventually, settled
from tests.controller.test_walk import reconciling

from fulcrum.api.ports import AgentAddress
from fulcrum.api.worker import LoadReport
from fulcrum.decide.tuning import TUNING
from fulcrum.telemetry import Agents

pytestmark = pytest.mark.integration


async def test_a_drain_begins_when_its_label_is_written(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would have lasted for the time in which gateways see a label before one of them did."""
    answered: list[datetime] = []
    loads = Agents.loads

    async def late(agents: Agents, workers: Mapping[str, AgentAddress]) -> dict[str, LoadReport | None]:
        found = await loads(agents, workers)
        await asyncio.sleep(TUNING.tick_seconds)  # as hundreds of others that do not answer
        answered.append(datetime.now(UTC))
        return found

    key = (cluster.namespace, cluster.name)
    await cluster.apply(workers=4)
    async with reconciling(cluster) as (reconciler, _), Kubelet(cluster).run():

        async def comes_to_rest() -> bool:
            await reconciler.reconcile(key)
            return await settled(cluster, "4/4", "2P:2D")

        await eventually(comes_to_rest)
        monkeypatch.setattr(Agents, "loads", late)
        await cluster.apply(workers=3)

        async def drains() -> list[str]:
            reconciler._memories[key].acknowledged.clear()  # as after a restart of the operator
            await reconciler.reconcile(key)
            annotations = [pod["metadata"].get("annotations") or {} for pod in (await cluster.pods()).values()]
            return [at for each in annotations if (at := each.get("fulcrum.dev/draining-since")) is not None]

        (since,) = await eventually(drains)
    assert answered
    assert datetime.fromisoformat(since) >= answered[-1]
