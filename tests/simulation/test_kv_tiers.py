"""Host memory and pool of simulated workers: what comes back, when, and what it is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.worlds import SLO, make_cluster, make_speed, make_workload

from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import restore
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.kv_tiers import Blocks, KvTiers
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.result import Result
from fulcrum.simulation.workload import Workload

SPEED = make_speed(kv_capacity_tokens=4096, max_batched_tokens=100_000)
"""Room for one prompt of 3,600 tokens."""
PROMPT, IDS = 3600, tuple(range(7))
OTHER = tuple(range(100, 107))
FAST = TransferCost(base_seconds=0.001, seconds_per_token=1e-6)
PARITY = TransferCost(base_seconds=0.0, seconds_per_token=4.4e-5)


HURRY = replace(SLO, ttft_seconds=0.01)
"""A promise that no way keeps, so the quickest is taken."""


def host(link: TransferCost, *, front: bool = True, tokens: int = 1 << 20) -> KvTiers:
    return KvTiers(host_tokens=tokens, host_link=link, front=front)


def again(tiers: KvTiers | None, *, workers: int = 1, slo: LatencyTargets = HURRY) -> Result:
    """A prompt, another one that drives it out of the cache, and the first one again."""
    load = make_workload([(0.0, PROMPT, 2), (10.0, PROMPT, 2), (20.0, PROMPT, 2)], prefix_ids=(IDS, OTHER, IDS))
    return simulate(load, make_cluster(SPEED, kv_tiers=tiers), Aggregated(pool="p", workers=workers), slo=slo)


@pytest.mark.parametrize("link", [FAST, PARITY, TransferCost(base_seconds=0.0, seconds_per_token=1e-3)])
@pytest.mark.parametrize("front", [True, False])
def test_a_prefix_comes_back_as_the_split_predicts(link: TransferCost, front: bool) -> None:
    way = restore(matched_tokens=len(IDS) * 512, prompt_tokens=PROMPT, speed=SPEED.coefficients, link=link, front=front)
    result = again(host(link, front=front))
    step = SPEED.coefficients.decode_a
    assert result.ttft_seconds[2] == pytest.approx(way.predicted_seconds, abs=step)
    assert result.computed_tokens[2] == PROMPT - way.load_tokens


def test_without_tiers_it_is_computed_again() -> None:
    assert again(None).computed_tokens[2] == PROMPT
    assert again(host(FAST, tokens=0)).computed_tokens[2] == PROMPT
    assert again(host(FAST, tokens=512 * 7)).computed_tokens[2] == PROMPT, "the other prompt drove it out there, too"


def test_at_parity_both_at_once_are_quicker_than_either() -> None:
    both, load = (again(host(PARITY, front=front)).ttft_seconds[2] for front in (True, False))
    computed = again(None).ttft_seconds[2]
    assert both < 0.75 * min(load, computed)


def test_where_the_promise_leaves_time_the_way_that_computes_least_is_taken() -> None:
    hurried, patient = again(host(PARITY)), again(host(PARITY), slo=SLO)
    assert patient.ttft_seconds[2] <= SLO.ttft_seconds
    assert patient.ttft_seconds[2] <= again(None).ttft_seconds[2], "and never later than computing all of it"
    assert patient.computed_tokens[2] < hurried.computed_tokens[2] / 2


def test_the_pool_serves_a_worker_that_never_saw_the_prompt() -> None:
    load = make_workload([(0.0, PROMPT, 200), (0.5, PROMPT, 2)], prefix_ids=(IDS, IDS))
    two = Aggregated(pool="p", workers=2)
    tiers = KvTiers(pool_tokens=1 << 20, pool_link=FAST)
    crowded = make_speed(kv_capacity_tokens=4096, max_batched_tokens=100_000, max_batch=1)
    shared = simulate(load, make_cluster(crowded, kv_tiers=tiers), two, slo=SLO)
    alone = simulate(load, make_cluster(crowded, kv_tiers=host(FAST)), two, slo=SLO)
    assert shared.computed_tokens[1] == PROMPT - 512 * 7
    assert alone.computed_tokens[1] == PROMPT


def test_loads_of_a_worker_take_turns_on_its_link() -> None:
    slow = TransferCost(base_seconds=0.0, seconds_per_token=2e-5)
    load = make_workload(
        [(0.0, PROMPT, 2), (10.0, PROMPT, 2), (20.0, PROMPT, 2), (20.0, PROMPT, 2)], prefix_ids=(IDS, OTHER, IDS, OTHER)
    )
    roomy = make_speed(kv_capacity_tokens=7500, max_batched_tokens=100_000)
    # Two more prompts drive both out of the cache.
    more = make_workload([(12.0, 7400, 2)], prefix_ids=(tuple(range(200, 214)),))
    both = merged_by_arrival(load, more)
    result = simulate(
        both, make_cluster(roomy, kv_tiers=host(slow, front=False)), Aggregated(pool="p", workers=1), slo=SLO
    )
    first, second = result.ttft_seconds[-2:]
    assert second - first == pytest.approx(3584 * 2e-5, abs=0.03)


def merged_by_arrival(one: Workload, two: Workload) -> Workload:
    from fulcrum.simulation.workload import merged

    return merged([one, two])


@settings(max_examples=40, deadline=None)
@given(rate=st.floats(1e-6, 2e-4), pool=st.sampled_from([0, 20_000, 1 << 20]))
def test_partial_recomputation_is_never_behind_loading_for_one_request(rate: float, pool: int) -> None:
    link = TransferCost(base_seconds=0.0, seconds_per_token=rate)
    tiers = KvTiers(host_tokens=1 << 20, host_link=link, pool_tokens=pool, pool_link=link)
    front = again(tiers).ttft_seconds[2]
    load = again(replace(tiers, front=False)).ttft_seconds[2]
    assert front <= load + 1e-9


def test_what_was_used_longest_ago_goes_first_and_the_end_of_a_chain_before_its_beginning() -> None:
    blocks = Blocks(4 * 512)
    blocks.use([1, 2, 3])
    blocks.use([4])
    blocks.use([1])
    blocks.use([5, 6])
    assert [number for number in range(7) if number in blocks] == [1, 4, 5, 6]
    assert len(blocks) == 4
