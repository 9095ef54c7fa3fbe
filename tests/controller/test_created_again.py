"""A cluster that is deleted and created again between two ticks: the new one inherits nothing."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.controller.test_caches import KEY, Script, caching, script
from tests.controller.test_ending_namespace import posts
from tests.kube.conftest import server

from fulcrum.controller.cluster_watches import ClusterWatches
from fulcrum.controller.installation import Installation
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.reconcile import Reconciler
from fulcrum.controller.rehearsals import Rehearsals, _Cluster
from fulcrum.controller.tick import Memory
from fulcrum.telemetry import Agents

__all__ = ["posts", "script", "server"]  # fixtures


async def test_a_new_cluster_of_the_same_name_begins_anew(script: Script, posts: list[str]) -> None:
    async def no_secret(_: str, __: str) -> None:
        return None

    metrics = Metrics()
    async with (
        caching(script.server) as (caches, kube, _),
        Agents() as agents,
        ClusterWatches(agents, metrics, no_secret, wake=lambda _: None) as watches,
        Rehearsals(metrics, wake=lambda _: None, now=lambda: datetime.now(UTC)) as rehearsals,
    ):
        reconciler = Reconciler(
            kube, caches, agents, watches, metrics, rehearsals=rehearsals, identity="t", installation=Installation(),
            now=lambda: datetime.now(UTC),
        )  # fmt: skip
        await reconciler.reconcile(KEY)
        memory = reconciler._memories[KEY]
        rehearsals._clusters[KEY] = _Cluster(failures=7)
        await reconciler.reconcile(KEY)
        assert reconciler._memories[KEY] is memory, "it is the same cluster"
        assert KEY in rehearsals._clusters
        reconciler._memories[KEY] = Memory(uid="before", taken_names={"c-p-0"})
        await reconciler.reconcile(KEY)
        assert reconciler._memories[KEY].uid == memory.uid
        assert not reconciler._memories[KEY].taken_names
        assert KEY not in rehearsals._clusters
    assert posts
