"""A cluster that is deleted and created again between two ticks: the new one inherits nothing."""

from __future__ import annotations

from tests.controller.test_caches import KEY, Script, script
from tests.controller.test_ending_namespace import posts, reconciling
from tests.kube.conftest import server

from fulcrum.controller.rehearsals import _Cluster
from fulcrum.controller.tick import Memory

__all__ = ["posts", "script", "server"]  # fixtures


async def test_a_new_cluster_of_the_same_name_begins_anew(script: Script, posts: list[str]) -> None:
    async with reconciling(script) as (reconciler, rehearsals):
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
