"""What gateways have learnt of transfers: joined over gateways, and said where it takes a clear part of the promise."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from tests.decide.loads import measurements
from tests.decide.world import World, make_spec, pool

from fulcrum.api.gateway import LearntRate, PairsReport
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Condition, ConditionType
from fulcrum.capacity.kv import TransferCost
from fulcrum.decide.measurements import learnt_transfers


def rate(
    prefill: str, decode: str, per_token: float, *, base: float = 0.0, transfers: int = 8, near: bool = False
) -> LearntRate:
    return LearntRate(
        prefill_pool=prefill, decode_pool=decode, near=near, base_seconds=base, seconds_per_token=per_token,
        transfers=transfers,
    )  # fmt: skip


def test_rates_of_several_gateways_weigh_by_their_transfers() -> None:
    reports = [
        PairsReport(rates=(rate("a", "b", 1e-3, base=0.1, transfers=12), rate("a", "c", 1.0, transfers=0))),
        PairsReport(rates=(rate("a", "b", 5e-3, base=0.3, transfers=4), rate("a", "b", 1e-6, near=True))),
        PairsReport(),
        PairsReport(
            rates=(rate("x", "y", 1e-6, near=True), rate("y", "x", nan), rate("y", "x", inf), rate("y", "x", -1.0))
        ),
    ]
    found = learnt_transfers(reports)
    assert found.keys() == {("a", "b"), ("x", "y")}
    assert found["a", "b"].seconds_per_token == pytest.approx(2e-3)
    assert found["a", "b"].base_seconds == pytest.approx(0.15)
    assert found["x", "y"] == TransferCost(base_seconds=0.0, seconds_per_token=1e-6)


def standing() -> World:
    """Two pools, one for each role; prompts of 2,000 tokens, and a promise of 2 s."""
    pools = (pool("a", low=2, high=2, roles=("prefill",)), pool("b", low=2, high=2, roles=("decode",)))
    world = World(make_spec(*pools, mode="Auto", slo={"ttft": "2s", "tpot": "100ms"}))
    world.measurements = measurements(1.0, pools=("a", "b"))
    world.settle()
    world.pass_time(600)
    return world


def progressing(world: World, *rates: LearntRate) -> Condition:
    world.measurements = replace(world.measurements, pairs=(PairsReport(rates=rates),))
    return next(each for each in world.plan().status.conditions if each.type is ConditionType.PROGRESSING)


def test_a_transfer_of_more_than_a_tenth_of_the_promise_is_said_with_what_to_do() -> None:
    world = standing()
    assert progressing(world, rate("a", "b", 0.9e-4)).reason is Reason.RECONCILED
    said = progressing(world, rate("a", "b", 1.1e-4))
    assert (said.status.value, said.reason) == ("False", Reason.KV_TRANSFER_SLOW)
    assert "from prefill pool a to decode pool b" in said.message
    assert "spec.pools[].rdma" in said.message
    # It stands still while figures move, and until half of a tenth is enough.
    assert progressing(world, rate("a", "b", 0.6e-4)).message == said.message
    assert progressing(world, rate("a", "b", 0.4e-4)).reason is Reason.RECONCILED


def test_pools_that_exchange_no_kv_now_are_not_named() -> None:
    world = standing()
    assert progressing(world, rate("b", "a", 1.0)).reason is Reason.RECONCILED
    assert progressing(world).reason is Reason.RECONCILED
