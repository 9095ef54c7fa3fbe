"""Placements on unequal GPUs: what must hold of all of them, and what users get wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.placement.cases import ENGINE, ESTIMATES, PROMPT_TOKENS, inventory, request

from fulcrum.api.names import Role
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.kv import weight_bytes_per_gpu
from fulcrum.load.demand import LatencyTargets
from fulcrum.placement.errors import (
    DisconnectedError,
    DoesNotFitError,
    PlacementError,
    TargetTooHighError,
    TooSlowError,
)
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.inventory import Inventory, inventory_from
from fulcrum.placement.objective import Goal
from fulcrum.placement.parallelism import Engine
from fulcrum.placement.plan import PlacementPlan
from fulcrum.placement.search import search

KINDS = ("H100-SXM-80GB", "A100-SXM-80GB", "L40-48GB", "A6000-48GB")
entries = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from((2, 3, 4, 6, 8)), st.integers(1, 2)), min_size=1, max_size=3
)
PAPER = inventory(("H100-SXM-80GB", 2, 1), ("A100-SXM-80GB", 6, 1), ("L40-48GB", 4, 1), ("A6000-48GB", 8, 1))


@cache
def on_paper() -> PlacementPlan:
    """Most goodput on the inventory of the paper."""
    return search(request(PAPER))


def check(plan: PlacementPlan, what: Inventory) -> None:
    """Every GPU in at most one worker, memory fits, flow is conserved, figures agree."""
    nodes = {node.name: node for node in what.nodes}
    used = [(worker.node, gpu) for worker in plan.workers for gpu in worker.gpus]
    assert len(used) == len(set(used)) == plan.gpus_used <= plan.gpus == what.gpus
    for worker in plan.workers:
        node = nodes[worker.node]
        assert max(worker.gpus) < node.gpus
        assert worker.option.kind == node.kind
        assert len(worker.gpus) == worker.option.tensor * worker.option.pipeline
        shape = ENGINE.shape(node.accelerator, worker.option.tensor, worker.option.pipeline)
        assert weight_bytes_per_gpu(shape) < node.accelerator.memory_bytes
        assert worker.role is Role.MIXED or worker.option.pipeline == 1
    slack = 1e-4 * plan.flow_rate
    mixed = sum(worker.option.mixed_rate for worker in plan.workers if worker.role is Role.MIXED)
    for routes in (plan.routes, plan.node_routes):
        assert sum(route.rate for route in routes) + mixed == pytest.approx(plan.flow_rate, abs=slack)
    for pool in plan.pools:
        sent = sum(route.rate for route in plan.routes if pool.name in (route.source, route.target))
        assert sent <= pool.workers * pool.option.rate(pool.role) + slack
    assert 0 < plan.goodput <= min(plan.flow_rate, plan.bound) * (1 + 1e-6)


@settings(max_examples=10, deadline=None)
@given(entries)
def test_what_holds_of_every_placement(given_entries: list[tuple[str, int, int]]) -> None:
    what = inventory(*given_entries)
    try:
        plan = search(request(what))
    except PlacementError:
        assume(False)
    check(plan, what)


@settings(max_examples=5, deadline=None)
@given(entries, st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(given_entries: list[tuple[str, int, int]], random: object) -> None:
    what = inventory(*given_entries)
    shuffled = list(what.nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    try:
        one = search(request(what))
    except PlacementError:
        assume(False)
    other = search(request(replace(what, nodes=tuple(shuffled))))
    assert one == other


@settings(max_examples=6, deadline=None)
@given(entries, st.tuples(st.sampled_from(KINDS), st.sampled_from((2, 4, 8)), st.just(1)))
def test_more_gpus_are_never_worse(given_entries: list[tuple[str, int, int]], more: tuple[str, int, int]) -> None:
    try:
        before = search(request(inventory(*given_entries)))
    except PlacementError:
        assume(False)
    after = search(request(inventory(*given_entries, more)))
    assert after.goodput >= before.goodput * 0.99


@settings(max_examples=6, deadline=None)
@given(entries)
def test_the_search_alone_is_near_the_exact_optimum(given_entries: list[tuple[str, int, int]]) -> None:
    what = inventory(*given_entries)
    try:
        alone = search(request(what, exact_gpus=0))
    except PlacementError:
        assume(False)
    exact = search(request(what))
    assert alone.goodput >= 0.97 * exact.goodput


def test_the_least_price_carries_the_rate_for_less() -> None:
    most = on_paper()
    half = search(request(PAPER, goal=Goal.LEAST_PRICE, rate=most.goodput / 2))
    assert half.goodput >= most.goodput / 2 * 0.99
    assert half.bound * (1 - 1e-6) <= half.price_per_hour < most.price_per_hour
    ratio = search(request(PAPER, goal=Goal.BEST_RATIO))
    assert ratio.goodput / ratio.price_per_hour >= most.goodput / most.price_per_hour


def test_a_budget_is_kept() -> None:
    plan = search(request(PAPER, most_price=14.0))
    assert plan.price_per_hour <= 14.0
    assert 0 < plan.goodput < on_paper().goodput


def test_a_budget_buys_no_less_than_one_kind_alone_would_carry() -> None:
    market = {"H100-SXM-80GB": 3, "A100-SXM-80GB": 6, "L40-48GB": 9}
    budget = 82.16
    model = {
        "engine": Engine(model=known_model("meta-llama/Llama-2-70b-hf")),
        "performance": replace(ESTIMATES, turns_away=True),
        "most_price": budget,
    }
    free = search(request(inventory(*((kind, 8, nodes) for kind, nodes in market.items())), **model))
    assert free.price_per_hour <= budget
    for kind, nodes in market.items():
        alone = search(request(inventory((kind, 8, nodes)), **model))
        assert free.goodput >= 0.99 * alone.goodput, kind


def test_requests_that_are_turned_away_at_prefill_do_not_load_decoding() -> None:
    plan = on_paper()
    prefill, decode = (
        [(pool.option.speed, pool.workers) for pool in plan.pools if pool.role is role]
        for role in (Role.PREFILL, Role.DECODE)
    )
    plenty_of_prefill, plenty_of_decode = ([(speed, 8 * count) for speed, count in each] for each in (prefill, decode))
    estimates, rate = replace(ESTIMATES, turns_away=True), 1.5 * plan.goodput
    narrower = min(estimates.share(rate, prefill, plenty_of_decode), estimates.share(rate, plenty_of_prefill, decode))
    assert narrower < 0.9
    assert estimates.share(rate, prefill, decode) == pytest.approx(narrower, rel=0.02)


def test_mixed_workers_are_a_candidate() -> None:
    plan = search(request(inventory(("H100-SXM-80GB", 1, 1))))
    assert [pool.role for pool in plan.pools] == [Role.MIXED]
    with pytest.raises(PlacementError):
        search(request(inventory(("H100-SXM-80GB", 1, 1)), roles=(Role.PREFILL, Role.DECODE)))


def test_pipeline_stages_do_not_exchange_kv_unless_a_study_asks_for_it() -> None:
    what = inventory(("A6000-48GB", 8, 2))
    kept = search(request(what))
    assert all(pool.option.pipeline == 1 or pool.role is Role.MIXED for pool in kept.pools)
    study = search(request(what, engine=replace(ENGINE, transfers_from_stages=True)))
    assert study.goodput >= 0.99 * kept.goodput


def test_a_model_that_fits_nowhere_says_what_would_do() -> None:
    large = Engine(model=known_model("meta-llama/Llama-3.1-70B-Instruct"))
    with pytest.raises(DoesNotFitError, match=r"smallest inventory that would do is 4 x L40-48GB in one node"):
        search(request(inventory(("L40-48GB", 2, 8)), engine=large))
    vast = Engine(model=known_model("deepseek-ai/DeepSeek-V3"))
    with pytest.raises(DoesNotFitError, match="more memory"):
        search(request(inventory(("L40-48GB", 8, 1)), engine=vast))


def test_a_promise_below_the_floor_says_the_fastest_that_is_possible() -> None:
    hasty = FluidEstimates(ESTIMATES.demand, LatencyTargets(ttft_seconds=0.001, tpot_seconds=0.1, attainment=0.9))
    with pytest.raises(TooSlowError, match=r"TTFT of \d+ ms and a TPOT of [\d.]+ ms"):
        search(request(PAPER, performance=hasty))


def test_a_rate_beyond_the_inventory_says_the_most_that_it_carries() -> None:
    with pytest.raises(TargetTooHighError, match=r"at most \d+\.\d+ requests/s"):
        search(request(PAPER, goal=Goal.LEAST_PRICE, rate=1e4))


def test_regions_without_a_link_say_so() -> None:
    nodes = [{"accelerator": "H100", "gpus": 1, "region": region} for region in "ab"]
    roles = (Role.PREFILL, Role.DECODE)
    with pytest.raises(DisconnectedError, match="no link joins"):
        search(request(inventory_from({"nodes": nodes}), roles=roles))
    link = {"between": ["a", "b"], "gigabitsPerSecond": 400}
    joined = search(request(inventory_from({"nodes": nodes, "links": [link]}), roles=roles))
    assert len(joined.routes) == 1


def test_kv_stays_inside_a_region_where_the_link_is_slow() -> None:
    nodes = [{"accelerator": "A100", "gpus": 8, "region": region} for region in "ab"]
    link = {"between": ["a", "b"], "gigabitsPerSecond": 0.5}
    plan = search(request(inventory_from({"nodes": nodes, "links": [link]}), roles=(Role.PREFILL, Role.DECODE)))
    crossing = sum(route.rate for route in plan.node_routes if route.source != route.target)
    assert crossing <= 0.5e9 / 8 * 0.7 / (ENGINE.kv_bytes_per_token * PROMPT_TOKENS) * (1 + 1e-4)
    assert plan.flow_rate > 10 * crossing
