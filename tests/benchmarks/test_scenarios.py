"""Random scenarios: in range, the same every time, of every kind, and of a size that can be simulated."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from contests import scenarios
from contests.scenarios import capacity_per_second, draw, layouts
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.api.names import Role
from fulcrum.simulation.policies.fixed import layout_name

NUMBERS = st.tuples(st.integers(0, 2**31), st.integers(0, 10_000))


@settings(max_examples=40, deadline=None)
@given(NUMBERS)
def test_a_scenario_is_in_range_and_the_same_every_time(drawn: tuple[int, int]) -> None:
    scenario = draw(*drawn)
    assert scenario == draw(*drawn)
    assert 2 <= scenario.workers <= 16
    assert 1 <= len(scenario.phases) <= 5
    for phase in scenario.phases:
        assert scenarios.PROMPT_TOKENS[0] <= phase.prompt_tokens <= scenarios.PROMPT_TOKENS[1]
        assert scenarios.OUTPUT_TOKENS[0] <= phase.output_tokens <= scenarios.OUTPUT_TOKENS[1]
        assert scenarios.LOADS[0] <= phase.load <= scenarios.LOADS[1]
    assert 0 <= scenario.cv <= scenarios.MOST_CV
    assert scenario.gateways in (1, 2, 3)
    assert 1.0 <= scenario.slowdown <= scenarios.MOST_SLOWDOWN
    assert scenario.describe()


@settings(max_examples=15, deadline=None)
@given(NUMBERS)
def test_its_requests_fit_its_workers_and_its_promise_is_one_that_a_lonely_request_gets(drawn: tuple[int, int]) -> None:
    scenario = draw(*drawn)
    load, again, slo = scenario.workload(), scenario.workload(), scenario.slo()
    for one, other in (
        (load.arrival_seconds, again.arrival_seconds),
        (load.prompt_tokens, again.prompt_tokens),
        (load.output_tokens, again.output_tokens),
        (load.qos_class, again.qos_class),
    ):
        assert np.array_equal(one, other)
    assert load.prefix_ids == again.prefix_ids
    assert (load.prefix_ids is not None) == (scenario.prefixes > 0)
    assert len(load.classes) == scenario.classes
    longest_mean = max(phase.prompt_tokens for phase in scenario.phases)
    for pool in scenario.cluster().pools:
        assert int((load.prompt_tokens + load.output_tokens).max()) <= pool.speed.kv_capacity_tokens
        assert pool.speed.prefill_seconds(longest_mean, longest_mean**2) < slo.ttft_seconds
        assert pool.speed.decode_step_seconds(1, longest_mean) < slo.tpot_seconds


def test_sixty_scenarios_have_every_feature_and_a_size_that_takes_seconds() -> None:
    drawn = [draw(1, number) for number in range(60)]
    counts = Counter(feature for scenario in drawn for feature in scenario.features())
    wanted = {
        "few prompts in KV", "very long prompts", "long answers", "bursts", "clock", "phases", "3 phases or more",
        "shared prefixes", "classes", "gateways", "mixed pools", "moving workers", "overload", "slow link",
        "shared cores",
    }  # fmt: skip
    assert set(counts) == wanted
    assert min(counts.values()) >= 3, counts
    requests = [scenario.expected_requests() for scenario in drawn]
    assert min(requests) >= scenarios.FEWEST_REQUESTS
    assert max(requests) <= 1.2 * scenarios.MOST_REQUESTS
    assert len(set(drawn)) == len(drawn)


def test_rates_are_shares_of_the_capacity() -> None:
    for number in range(12):
        scenario = draw(3, number)
        if scenario.cv <= 1:
            assert len(scenario.workload()) == pytest.approx(scenario.expected_requests(), rel=0.25)


def test_shared_prefixes_are_shared_and_the_rest_is_not() -> None:
    scenario = next(one for one in (draw(2, number) for number in range(200)) if one.prefixes > 1)
    ids = scenario.workload().prefix_ids
    assert ids is not None
    counts = Counter(each for one in ids for each in one)
    assert max(counts.values()) > 1
    assert sum(1 for count in counts.values() if count > 1) <= scenario.prefixes * max(map(len, ids))
    assert sum(1 for count in counts.values() if count == 1) > 0


def test_layouts_are_every_split_of_a_small_cluster_and_some_of_a_large_one() -> None:
    one_pool = [draw(4, number) for number in range(80)]
    small = next(one for one in one_pool if len(one.pools) == 1 and one.workers == 4)
    assert [layout_name(each) for each in layouts(small)] == ["1P:3D", "2P:2D", "3P:1D", "4M"]
    for scenario in one_pool:
        found = layouts(scenario)
        assert 2 <= len(found) <= 13
        for workers in found:
            roles = {role for _, role in workers}
            assert len(workers) == scenario.workers
            assert roles in ({Role.PREFILL, Role.DECODE}, {Role.MIXED})


def test_capacity_is_that_of_prefill_alone_without_answers_and_falls_with_them() -> None:
    scenario = next(one for one in (draw(1, number) for number in range(50)) if len(one.pools) == 1)
    speed = scenario.speeds()["a"]
    prompts, ones = np.full(10, 500, dtype=np.int32), np.ones(10, dtype=np.int32)
    tpot_seconds = scenario.slo().tpot_seconds
    alone = capacity_per_second(speed, tpot_seconds, prompts, ones)
    assert alone == pytest.approx(1 / speed.prefill_seconds(500, 500**2))
    assert capacity_per_second(speed, tpot_seconds, prompts, ones * 50) < alone


def test_a_promise_may_be_longer_than_a_thousand_seconds() -> None:
    assert draw(9404, 13).slo().ttft_seconds > 1000
