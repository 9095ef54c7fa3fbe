"""What is said of a KV pool that does not work, and of KV that comes back otherwise than asked."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.decide.world import World, make_spec, pool

from fulcrum.api.engine_types import KvOffload, KvPool
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType
from fulcrum.api.worker import KvPoolReport, OffloadReport
from fulcrum.decide.snapshot import Snapshot
from fulcrum.report import plan

REPORT = OffloadReport(policy="partialRecompute", host_bytes=1 << 30, pool=KvPoolReport(size_bytes=1 << 40))


def failing(problem: str) -> OffloadReport:
    return msgspec.structs.replace(REPORT, pool=KvPoolReport(size_bytes=1 << 40, problem=problem))


def snapshot(*reports: OffloadReport, pooled: bool = True) -> Snapshot:
    """Two prefill and two decode workers; the first of them report these."""
    spec = make_spec(pool(low=4, high=4), ratio=(2, 2))
    offload = KvOffload(
        host_memory="1Gi", pool=KvPool(persistent_volume_claim="shared", size="1Ti") if pooled else None
    )
    engine = msgspec.structs.replace(
        spec.engine, kv_cache=msgspec.structs.replace(spec.engine.kv_cache, offload=offload)
    )
    world = World(msgspec.structs.replace(spec, engine=engine))
    world.settle()
    seen = world.snapshot()
    loads = {
        worker.name: msgspec.structs.replace(worker.load, offload=report)
        for worker, report in zip(seen.workers, reports, strict=False)
        if worker.load is not None
    }
    assert len(loads) == len(reports)
    return replace(seen, workers=tuple(replace(w, load=loads.get(w.name, w.load)) for w in seen.workers))


def condition(seen: Snapshot, kind: ConditionType) -> tuple[bool, Reason, str]:
    world = World(seen.spec)
    found = next(each for each in plan(seen, world.now).conditions if each.type is kind)
    return found.status.value == "True", found.reason, found.message


@pytest.mark.parametrize("problem", ["readOnly", "full", "slow", "gone", "unusable", "one of a newer release"])
def test_a_pool_that_does_not_work_is_named_and_serving_goes_on(problem: str) -> None:
    seen = snapshot(REPORT, failing(problem))
    status, reason, message = condition(seen, ConditionType.DEGRADED)
    assert status
    assert reason is Reason.KV_POOL_FAILING
    assert "claim shared" in message
    assert problem in message
    assert seen.workers[1].name in message
    assert seen.workers[0].name not in message
    assert condition(seen, ConditionType.AVAILABLE)[0]
    assert not plan(seen, World(seen.spec).now).actions, "a restart would not help"


def test_a_pool_that_works_is_not_spoken_of() -> None:
    assert not condition(snapshot(REPORT, REPORT), ConditionType.DEGRADED)[0]
    assert not condition(snapshot(failing("slow"), pooled=False), ConditionType.DEGRADED)[0], "the spec has none"


def test_why_a_policy_does_not_run_is_said_once() -> None:
    told = msgspec.structs.replace(REPORT, policy="load", reason="partialRecompute needs parallelism 1")
    _, reason, message = condition(snapshot(told, told), ConditionType.PROGRESSING)
    assert reason is Reason.RECONCILED
    assert message.count("partialRecompute needs parallelism 1") == 1
