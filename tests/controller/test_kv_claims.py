"""A claim that not all workers can mount is refused before any worker waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.controller.test_worker_node import H100, pod_of, revision, spec_of, worker

from fulcrum.api.names import KV_POOL_PATH
from fulcrum.controller.kube import Resource
from fulcrum.controller.kv_claims import KvClaims, may_share_node
from fulcrum.kube import ApiFailure

CPU: dict[str, Any] = {"name": "p", "accelerator": "cpu", "workers": {"max": 4}}
ONE_NODE = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "a"}}}}
POOLED: dict[str, Any] = {
    "engine": {
        "kvCache": {"offload": {"hostMemory": "1Gi", "pool": {"persistentVolumeClaim": "shared", "size": "1Ti"}}}
    }
}


class Claims:
    """Answers for one claim, and counts the questions."""

    def __init__(self, modes: list[str] | None, *, fails: bool = False) -> None:
        self.modes, self.fails, self.asked = modes, fails, 0

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        assert (resource.plural, namespace, name) == ("persistentvolumeclaims", "default", "shared")
        self.asked += 1
        if self.fails:
            raise ApiFailure("forbidden")
        return {"spec": {"accessModes": self.modes}} if self.modes is not None else None


def refusal(claims: Claims, *pools: dict[str, Any], **spec: Any) -> str | None:
    kube: Any = claims
    return asyncio.run(KvClaims(kube, resync_seconds=60).refusal("default", spec_of(*pools, **(spec or POOLED))))


@pytest.mark.parametrize("modes", [["ReadWriteOnce"], ["ReadWriteOnce", "ReadOnlyMany"], ["ReadWriteOncePod"]])
def test_a_claim_of_one_node_is_refused_where_workers_may_be_on_several(modes: list[str]) -> None:
    said = refusal(Claims(modes), CPU)
    assert said is not None
    assert "engine.kvCache.offload.pool.persistentVolumeClaim" in said
    assert modes[0] in said
    assert "ReadWriteMany" in said


@pytest.mark.parametrize(
    ("claims", "pool"),
    [
        (Claims(["ReadWriteMany"]), CPU),
        (Claims(["ReadWriteOnce", "ReadWriteMany"]), CPU),
        (Claims(["ReadWriteOnce"]), {**CPU, "workers": {"max": 1}}),
        (Claims(["ReadWriteOnce"]), {**CPU, **ONE_NODE}),
        (Claims(None), CPU),
        (Claims(None, fails=True), CPU),
    ],
)
def test_what_can_be_shared_or_is_not_known_goes_on(claims: Claims, pool: dict[str, Any]) -> None:
    assert refusal(claims, pool) is None


def test_pools_that_name_several_nodes_are_on_several() -> None:
    other = {"template": {"spec": {"nodeName": "b"}}}
    assert may_share_node(spec_of({**CPU, **ONE_NODE}))
    large = {
        "parallelism": {"tensor": 8, "pipeline": 2},
        "gpu": {"perNode": 8},
        "roles": ["mixed"],
        "workers": {"max": 1},
    }
    assert not may_share_node(spec_of({**H100, **large})), "one worker on two nodes"
    assert not may_share_node(spec_of({**CPU, **ONE_NODE}, {**CPU, "name": "q", **other}))
    assert may_share_node(spec_of({**CPU, **ONE_NODE}, {**CPU, "name": "q", "workers": {"max": 0}}))


def test_a_claim_is_read_now_and_then_only() -> None:
    claims: Any = Claims(["ReadWriteMany"])
    known = KvClaims(claims, resync_seconds=60)
    for _ in range(3):
        assert asyncio.run(known.refusal("default", spec_of(CPU, **POOLED))) is None
    assert claims.asked == 1
    assert refusal(claims, CPU, engine={}) is None
    assert claims.asked == 1, "no pool, no question"


@pytest.mark.parametrize("pool", [CPU, H100])
def test_the_claim_is_mounted_in_every_worker(pool: dict[str, Any]) -> None:
    pod = pod_of(spec_of(pool, **POOLED))
    volumes = [each for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each]
    assert [each["persistentVolumeClaim"]["claimName"] for each in volumes] == ["shared"]
    mounts = {each["name"]: each["mountPath"] for each in worker(pod)["volumeMounts"]}
    assert mounts[volumes[0]["name"]] == KV_POOL_PATH
    assert KV_POOL_PATH not in [each["mountPath"] for each in worker(pod_of(spec_of(pool)))["volumeMounts"]]


def test_another_claim_or_size_makes_another_revision() -> None:
    def with_pool(**pool: str) -> str:
        offload = {"hostMemory": "1Gi", "pool": {"persistentVolumeClaim": "shared", "size": "1Ti", **pool}}
        return revision(spec_of(CPU, engine={"kvCache": {"offload": offload}}))

    assert len({with_pool(), with_pool(persistentVolumeClaim="other"), with_pool(size="2Ti")}) == 3
