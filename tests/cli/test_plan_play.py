"""What `fulcrum plan` says a plan carries, against a simulation of its own of that plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.placement.cases import inventory

from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.capacity.known_models import known_model
from fulcrum.cli.plan.play import Player
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.finalists import workers_of
from fulcrum.placement.parallelism import Engine
from fulcrum.placement.plan import PlacementPlan
from fulcrum.placement.search import Request, search
from fulcrum.simulation.arrivals import constant
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import WORKLOADS, stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.policies import Fixed

CASES = {
    "unlike GPUs": (
        "facebook/opt-30b",
        (("H100-SXM-80GB", 2, 1), ("A100-SXM-80GB", 6, 1)),
        755,
        200,
        0.7,
        (2, 0.1, 0.9),
    ),
    "long prompts": ("meta-llama/Llama-3.1-8B-Instruct", (("H100-SXM-80GB", 4, 1),), 4000, 100, 0.5, (1, 0.05, 0.95)),
    "equal lengths": ("Qwen/Qwen3-14B", (("A100-SXM-80GB", 8, 1),), 2000, 200, 0.0, (2, 0.05, 0.95)),
}


def asked(name: str) -> tuple[Request, Player]:
    model, gpus, isl, osl, spread, (ttft, tpot, attainment) = CASES[name]
    demand = Demand(rate=0.0, isl_tokens=float(isl), osl_tokens=float(osl), isl_cv2=spread**2, osl_cv2=spread**2)
    promise = LatencyTargets(ttft_seconds=ttft, tpot_seconds=tpot, attainment=attainment)
    player = Player(demand=demand, slo=promise)
    request = Request(
        inventory=inventory(*gpus),
        engine=Engine(model=known_model(model)),
        performance=FluidEstimates(demand, promise, turns_away=True),
        prompt_tokens=demand.isl_tokens,
        play=player,
    )
    return request, player


@cache
def planned(name: str) -> PlacementPlan:
    return search(asked(name)[0])


def simulated_share(name: str, plan: PlacementPlan, rate: float) -> float:
    """Share inside the promise of other requests than those that the plan was chosen by."""
    _, player = asked(name)
    demand, seconds = player.demand, 60.0 + 4000 / rate
    spread = float(np.sqrt(np.log1p(demand.isl_cv2)))
    lengths = LogNormalLengths(
        prompt_mean=demand.isl_tokens, output_mean=demand.osl_tokens, prompt_spread=spread, output_spread=spread
    )
    load = stream(rate=constant(rate), lengths=lengths, seconds=seconds, seed=77)
    pools = {pool.name: pool for pool in plan.pools}
    cluster = ClusterModel(
        pools=tuple(
            PoolModel(name=name, speed=pool.option.speed, ranks=pool.option.speed.ranks) for name, pool in pools.items()
        )
    )
    workers = [(name, pool.role) for name, pool in pools.items() for _ in range(pool.workers)]
    result = simulate(load, cluster, Fixed(workers, admission=AdmissionPolicy.PREDICTIVE), slo=player.slo)
    return float(result.within(player.slo)[load.arrival_seconds >= 60.0].mean())


@pytest.mark.parametrize("name", CASES)
def test_the_goodput_is_what_other_requests_find(name: str) -> None:
    plan = planned(name)
    target = asked(name)[1].slo.attainment
    assert simulated_share(name, plan, 0.9 * plan.goodput) >= target
    assert simulated_share(name, plan, 1.15 * plan.goodput) < target


@pytest.mark.parametrize("name", CASES)
def test_the_estimates_that_rank_are_within_a_quarter(name: str) -> None:
    plan = planned(name)
    assert plan.estimate == pytest.approx(plan.goodput, rel=0.25)


def test_the_same_inputs_give_the_same_plan() -> None:
    name = "long prompts"
    assert search(asked(name)[0]) == planned(name)


def test_requests_are_the_same_at_every_rate_and_have_the_lengths_that_are_asked_for() -> None:
    _, player = asked("long prompts")
    workers = workers_of(planned("long prompts"))
    assert player.share(workers, 5.0) == player.share(workers, 5.0)
    slow, quick = player._load(5.0), player._load(20.0)
    assert (slow.prompt_tokens[:1000] == quick.prompt_tokens[:1000]).mean() > 0.9 or len(slow) != len(quick)
    assert slow.prompt_tokens.mean() == pytest.approx(player.demand.isl_tokens, rel=0.1)
    assert len(quick) / quick.arrival_seconds[-1] == pytest.approx(20.0, rel=0.1)


def test_lengths_of_a_trace_are_drawn_from_it() -> None:
    _, player = asked("long prompts")
    trace = WORKLOADS["stationary"](0)
    load = replace(player, trace=trace)._load(10.0)
    assert {*zip(load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True)} <= {
        *zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    }


@pytest.mark.parametrize("hit", [0.25, 0.6])
def test_what_prefix_caches_answer_is_not_computed(hit: float) -> None:
    _, player = asked("long prompts")
    player = replace(player, demand=replace(player.demand, prefix_hit=hit))
    load = player._load(5.0)
    assert load.prefix_ids is not None
    ids = [set(each) for each in load.prefix_ids]
    shared = sum(len(each & ids[0] & ids[1]) for each in ids[2:]) / sum(map(len, ids[2:]))
    assert shared <= hit + 0.05
    workers = workers_of(planned("long prompts"))
    without = asked("long prompts")[1]
    rate = 1.2 * planned("long prompts").goodput
    assert player.share(workers, rate) > without.share(workers, rate)
    assert {Role.PREFILL, Role.DECODE} <= {role for role, pools in workers.items() if pools}


@pytest.mark.parametrize(
    ("ttft", "tpot", "rate"), [(3600.0, 0.05, 30.0), (10.0, 60.0, 30.0), (1e5, 1e4, 30.0), (1.0, 0.05, 1e5)]
)
def test_a_play_has_a_bounded_number_of_requests(ttft: float, tpot: float, rate: float) -> None:
    _, player = asked("long prompts")
    player = replace(player, slo=LatencyTargets(ttft_seconds=ttft, tpot_seconds=tpot, attainment=0.95))
    load = player._load(rate)
    assert len(load) <= 11_500
    assert (load.arrival_seconds >= player._warm_seconds(rate)).sum() > 1000


def test_a_promise_for_which_thousands_may_wait_is_kept_by_what_workers_carry() -> None:
    """Of so long a promise hardly any rate below what workers carry is lost: at most what a burst holds up."""
    _, player = asked("equal lengths")
    workers = workers_of(planned("equal lengths"))
    player = replace(player, slo=replace(player.slo, ttft_seconds=3600.0))
    carried = planned("equal lengths").goodput
    assert player.share(workers, carried) >= player.slo.attainment
    assert player.share(workers, 3 * carried) < player.slo.attainment
