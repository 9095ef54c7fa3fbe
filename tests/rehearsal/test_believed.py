"""The cluster that plays run on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.simulation.worlds import make_speed

from fulcrum.api.gateway import LearntRate, PairsReport
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name
from fulcrum.rehearsal.believed import believed
from fulcrum.simulation.cluster import ClusterModel

SPEEDS = {"fast": make_speed(), "slow": make_speed(prefill=(0.05, 2e-4, 0.0))}


def make_spec(
    *, fast: int = 4, slow: int = 4, model: str = "m", engine: dict[str, Any] | None = None
) -> InferenceClusterSpec:
    pools = [
        {"name": name, "accelerator": accelerator, "workers": {"min": 0, "max": most}}
        for name, accelerator, most in (("fast", "H100", fast), ("slow", "cpu", slow))
    ]
    return msgspec.convert({"model": {"name": model}, "pools": pools, "engine": engine or {}}, InferenceClusterSpec)


def of(spec: InferenceClusterSpec, **others: Any) -> ClusterModel | None:
    given: dict[str, Any] = {"speeds": SPEEDS, "start_seconds": 45.0, "pairs": (), "gateways": 2, "model": None}
    return believed(spec, **(given | others))


def rate(source: str, target: str, base_seconds: float, transfers: int = 1) -> LearntRate:
    return LearntRate(
        prefill_pool=source, decode_pool=target, base_seconds=base_seconds, seconds_per_token=1e-6, transfers=transfers
    )


def test_pools_have_the_speeds_that_are_known() -> None:
    found = of(make_spec())
    assert found is not None
    assert [(pool.name, pool.speed, pool.start_seconds) for pool in found.pools] == [
        (name, speed, 45.0) for name, speed in SPEEDS.items()
    ]
    assert found.gateways == 2
    assert dict(found.links.pairs) == {}


def test_transfers_are_those_that_gateways_learnt_for_both_ways() -> None:
    one = PairsReport(rates=(rate("fast", "slow", 0.1), rate("slow", "slow", 0.7)))
    other = PairsReport(rates=(rate("fast", "slow", 0.4, transfers=2),))
    found = of(make_spec(), pairs=(one, other))
    assert found is not None
    assert {pair: cost.base_seconds for pair, cost in found.links.pairs.items()} == pytest.approx(
        {("fast", "slow"): 0.3, ("slow", "fast"): 0.3, ("slow", "slow"): 0.7}
    )
    both = of(make_spec(), pairs=(PairsReport(rates=(rate("fast", "slow", 0.1), rate("slow", "fast", 0.2))),))
    assert both is not None
    assert both.links.pairs["slow", "fast"] == TransferCost(base_seconds=0.2, seconds_per_token=1e-6)


@pytest.mark.parametrize("known", [{}, {"fast": SPEEDS["fast"]}, {"slow": SPEEDS["slow"]}])
def test_a_pool_of_unknown_speed_cannot_be_played(known: dict[str, Any]) -> None:
    """A roofline would say how fast the one is; it is the operator that takes one for a speed, and says so."""
    assert of(make_spec(model="meta-llama/Llama-3.1-8B-Instruct"), speeds=known) is None


def test_a_pool_that_may_have_no_workers_needs_no_speed() -> None:
    found = of(make_spec(slow=0), speeds={"fast": SPEEDS["fast"]})
    assert found is not None
    assert [pool.name for pool in found.pools] == ["fast"]
    assert of(make_spec(fast=0, slow=0)) is None


def test_what_the_simulator_does_not_know_cannot_be_played() -> None:
    offload = {"kvCache": {"offload": {"hostMemory": "10Gi"}}}
    assert of(make_spec(engine=offload)) is None, "the KV of a token has no known size"
    assert of(make_spec(engine=offload), model=facts_of_name("meta-llama/Llama-3.1-8B-Instruct")) is not None
    assert of(make_spec(engine=offload), model=ModelFacts()) is None


@pytest.mark.parametrize("size", range(1, 257))
def test_every_size_of_kv_blocks_is_played(size: int) -> None:
    found = of(make_spec(engine={"kvCache": {"blockSize": size}}))
    assert found is not None
    assert size / 2 < found.block_tokens <= size


def test_plays_have_at_least_one_gateway() -> None:
    found = of(make_spec(), gateways=0)
    assert found is not None
    assert found.gateways == 1
