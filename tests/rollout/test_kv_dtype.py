"""Upgrades that know more about a model restart nothing: what stands is kept, and new revisions get what is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.decide.world import World, make_spec, pool

from fulcrum.api.engine_types import KvCacheDtype
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType, InferenceClusterSpec
from fulcrum.capacity.kv_dtype import KvDtype
from fulcrum.decide import Snapshot
from fulcrum.report import plan
from fulcrum.rollout import StartDrain, chosen_kv_dtype, standing_workers, worker_config, worker_revision

LLAMA, QWEN = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct"
H100 = {**pool(), "accelerator": "H100-SXM-80GB"}
MIXED = {**pool(roles=("mixed",)), "accelerator": "H100-SXM-80GB"}


def chosen_in(snapshot: Snapshot) -> KvDtype:
    """As the operator chooses it."""
    standing = standing_workers(snapshot.name, snapshot.spec, snapshot.workers)
    return chosen_kv_dtype(snapshot.spec, snapshot.model, standing)


def settled(spec: InferenceClusterSpec, dtype: KvCacheDtype = KvCacheDtype.AUTO) -> World:
    world = World(spec)
    world.settle()
    for name in world.workers:
        world.set(name, kv_dtype=dtype)
    return world


def test_new_workers_get_what_is_known_and_the_revision_is_that_of_auto() -> None:
    spec = make_spec(H100, model=LLAMA)
    assert chosen_in(World(spec).snapshot()).dtype is KvCacheDtype.FP8
    unknown = worker_revision(cluster="c", spec=make_spec(H100, model=LLAMA), pool=spec.pools[0])
    said = make_spec(H100, model=LLAMA, engine={"kvCache": {"dtype": "auto"}})
    assert worker_revision(cluster="c", spec=said, pool=said.pools[0]) == unknown
    config = worker_config(cluster="c", spec=spec, pool=spec.pools[0], role=Role.MIXED, kv_dtype=KvCacheDtype.FP8)
    assert config.kv_cache.dtype == "fp8"


def test_what_stands_is_kept_until_there_is_a_new_revision() -> None:
    """As after an upgrade: the release before took `auto` for vLLM's own."""
    world = settled(make_spec(H100, model=LLAMA))
    kept = chosen_in(world.snapshot())
    assert kept.dtype is KvCacheDtype.AUTO
    assert "a new revision gets fp8" in kept.why
    assert not world.plan().actions
    world.spec = make_spec(H100, model=LLAMA, engine={"args": ["--seed=1"]})
    assert chosen_in(world.snapshot()).dtype is KvCacheDtype.FP8


def test_one_type_for_all_pools() -> None:
    """A new pool gets what the workers of the others were made with."""
    world = settled(make_spec(H100, model=LLAMA))
    world.spec = make_spec(H100, {**H100, "name": "q"}, model=LLAMA)
    assert chosen_in(world.snapshot()).dtype is KvCacheDtype.AUTO


def test_stored_fp8_is_forced_and_judged() -> None:
    world = settled(make_spec(H100, model=QWEN, engine={"kvCache": {"dtype": "fp8"}}))
    snapshot = world.snapshot()
    chosen = chosen_in(snapshot)
    assert chosen.dtype is KvCacheDtype.FP8
    result = plan(replace(snapshot, kv_dtype=chosen), world.now)
    assert not result.actions, "nothing restarts by itself"
    degraded = next(c for c in result.status.conditions if c.type is ConditionType.DEGRADED)
    assert degraded.reason is Reason.KV_DTYPE_UNSUITED
    assert "vllm #41343" in degraded.message
    assert result.status.kv_cache is not None
    assert result.status.kv_cache.dtype == "fp8"


@pytest.mark.parametrize(("spec", "drained"), [(MIXED, 0), (H100, 1)], ids=["always mixed", "roles were added"])
def test_a_worker_without_transfers_is_made_anew_once_its_pool_exchanges_kv(
    spec: dict[str, object], drained: int
) -> None:
    world = settled(make_spec(MIXED, model=LLAMA))
    for name in world.workers:
        world.set(name, exchanges_no_kv=True)
    world.spec = make_spec(spec, model=LLAMA)
    assert sum(isinstance(action, StartDrain) for action in world.plan().actions) == drained


def test_a_pool_that_is_always_mixed_exchanges_no_kv_and_keeps_its_revision() -> None:
    mixed, flipping = make_spec(MIXED, model=LLAMA), make_spec(H100, model=LLAMA)
    configs = [worker_config(cluster="c", spec=s, pool=s.pools[0], role=Role.MIXED) for s in (mixed, flipping)]
    assert [config.exchanges_kv for config in configs] == [False, True]
    revisions = {worker_revision(cluster="c", spec=s, pool=s.pools[0]) for s in (mixed, flipping)}
    assert len(revisions) == 1
