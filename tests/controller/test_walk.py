"""A tick goes through the code as docs/concepts/walk.md says, and the snapshot goes through few files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.controller.cluster import Cluster, Kubelet, eventually
from tests.decide.loads import measurements
from tests.docs.walk import MOST_CALLS, PAGE, calls_on_page, misplaced, returns, stays_of, traced

from fulcrum.controller.caches import Caches
from fulcrum.controller.cluster_watches import ClusterWatches
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import SECRET, Kube
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.reconcile import Reconciler
from fulcrum.controller.rehearsals import Rehearsals
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.decide import Snapshot
from fulcrum.decide.measurements import Measurements
from fulcrum.telemetry import Agents

pytestmark = pytest.mark.integration
MAKES_SNAPSHOT, PLANS = ("make_snapshot", "controller/observe.py"), ("plan", "report/plan.py")
MOST_WALKED, MOST_WALKED_RETURNS = 14, 4
"""Files of the page's calls, and how often one of them is read again."""
MOST_FILES, MOST_RETURNS = 4, 1
"""Files that are handed the snapshot, and how often it comes back to one of them."""


class KnownLoad(ClusterWatches):
    """The load is what the test says; everything else is as it is."""

    load = Measurements()

    def measurements_of(self, watched: WatchedCluster) -> tuple[Measurements, dict[str, Any], bool]:
        _, loads, _ = super().measurements_of(watched)
        return self.load, loads, True


@asynccontextmanager
async def reconciling(cluster: Cluster) -> AsyncIterator[tuple[Reconciler, KnownLoad]]:
    """The operator's reconciler in this process, against a real API server."""
    metrics = Metrics()
    kube = Kube(cluster.api, metrics)

    async def read_secret(namespace: str, name: str) -> dict[str, Any] | None:
        return await kube.get(SECRET, namespace, name)

    async with (
        Agents() as agents,
        KnownLoad(agents, metrics, read_secret, wake=lambda _: None) as watches,
        Rehearsals(metrics, wake=lambda _: None, now=lambda: datetime.now(UTC)) as rehearsals,
    ):
        caches = Caches(kube.api, [cluster.namespace], changed=lambda _: None)
        kube.note, kube.note_deletion = caches.record, caches.record_deletion
        watching = asyncio.create_task(caches.run())
        await caches.synced()
        installation, clock = Installation(), lambda: datetime.now(UTC)
        yield (
            Reconciler(
                kube,
                caches,
                agents,
                watches,
                metrics,
                rehearsals=rehearsals,
                identity="t",
                installation=installation,
                now=clock,
            ),
            watches,
        )
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_tick_makes_the_calls_of_the_page_and_hands_the_snapshot_to_few_files(cluster: Cluster) -> None:
    await cluster.apply(
        workers=4,
        balance={"mode": "Auto", "rehearse": "Off", "flip": {"minDwell": "0s"}},
        slo={"ttft": "500ms", "tpot": "25ms", "attainment": 0.95},
    )
    key = (cluster.namespace, cluster.name)
    async with reconciling(cluster) as (reconciler, watches), Kubelet(cluster).run():
        watches.load = measurements(30.0, 3000.0, 50.0)

        async def three_prefill() -> bool:
            await reconciler.reconcile(key)
            return (await cluster.status())["ratio"] == "3P:1D"

        await eventually(three_prefill)
        # Long answers now: the tick that sees them flips two workers.
        watches.load = measurements(12.0, 200.0, 1000.0)
        with traced(followed=Snapshot) as trace:
            await reconciler.reconcile(key)
        assert (await cluster.status())["lastDecision"]["to"] == "1P:3D"
        reconciler._memories[key].acknowledged.clear()  # as after a restart of the operator
        with traced() as next_tick:
            await reconciler.reconcile(key)
    listed = calls_on_page("One tick", PAGE.read_text())
    assert 10 < len(listed) <= MOST_CALLS
    assert misplaced(listed, trace.calls) == []
    for tick in (trace, next_tick):
        assert [tick.calls.count(call) for call in (MAKES_SNAPSHOT, PLANS)] == [1, 1]
    # Agents are asked before the plan that rests on what they say.
    assert misplaced([("Agents.loads", "telemetry/agents.py"), MAKES_SNAPSHOT, PLANS], next_tick.calls) == []
    walked = stays_of(listed)
    assert len(set(walked)) <= MOST_WALKED, walked
    assert returns(walked) <= MOST_WALKED_RETURNS, walked
    assert len(set(trace.stays)) <= MOST_FILES, trace.stays
    assert trace.returns <= MOST_RETURNS, trace.stays
