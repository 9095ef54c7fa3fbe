"""Pools that stand, against a new plan for the same GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.machine import cost_ratio

from fulcrum.api.names import Role
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.known_models import known_model
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.drift import PoolForm, compare, held_goodput, inventory_of
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.parallelism import Engine
from fulcrum.placement.search import Request, search

ENGINE = Engine(model=known_model("meta-llama/Llama-3.1-8B-Instruct"), max_batch=256)
EVERY = frozenset({Role.PREFILL, Role.DECODE, Role.MIXED})
SLO = LatencyTargets(ttft_seconds=0.5, tpot_seconds=0.03, attainment=0.95)


def pool(name: str, tensor: int, workers: int, *roles: Role, gpu: str = "H100-SXM-80GB") -> PoolForm:
    return PoolForm(
        name=name,
        accelerator=accelerator(gpu),
        tensor=tensor,
        pipeline=1,
        workers=workers,
        roles=frozenset(roles) or EVERY,
    )


def estimates(isl: float, osl: float) -> FluidEstimates:
    return FluidEstimates(Demand(rate=0.0, isl_tokens=isl, osl_tokens=osl), SLO)


def gain(forms: list[PoolForm], isl: float, osl: float) -> float:
    found = compare(forms, ENGINE, estimates(isl, osl), prompt_tokens=isl)
    assert found is not None
    return found.gain


@pytest.mark.parametrize("lengths", [(1000.0, 200.0), (4000.0, 100.0), (300.0, 600.0)])
@pytest.mark.parametrize("gpus", [{"H100-SXM-80GB": 8}, {"H100-SXM-80GB": 8, "L40S-48GB": 8}])
def test_pools_of_a_plan_are_right_for_the_load_that_it_was_made_for(
    lengths: tuple[float, float], gpus: dict[str, int]
) -> None:
    what = [pool(name, 1, count, gpu=name) for name, count in gpus.items()]
    plan = search(
        Request(
            inventory=inventory_of(what),
            engine=ENGINE,
            performance=estimates(*lengths),
            prompt_tokens=lengths[0],
            exact_gpus=0,
        )
    )
    merged: dict[tuple[str, int], list[tuple[int, Role]]] = {}
    for each in plan.pools:
        key = (each.option.kind.accelerator.name, each.option.tensor)
        merged.setdefault(key, []).append((each.workers, each.role))
    forms = []
    for (gpu, tensor), parts in merged.items():
        roles = {role for _, role in parts}
        roles = set(EVERY) if Role.MIXED in roles and len(roles) > 1 else roles
        forms.append(pool(f"{gpu}-{tensor}", tensor, sum(count for count, _ in parts), *roles, gpu=gpu))
    assert gain(forms, *lengths) < 0.1


@pytest.mark.parametrize(
    ("forms", "lengths", "least"),
    [
        ([pool("a", 8, 1)], (300.0, 600.0), 1.0),
        ([pool("a", 2, 4)], (300.0, 600.0), 0.2),
        ([pool("a", 1, 1, Role.PREFILL), pool("b", 1, 7, Role.DECODE)], (4000.0, 50.0), 1.0),
    ],
    ids=["workers that are too large for long answers", "the same, less so", "too few that may prefill"],
)
def test_pools_that_do_not_fit_the_load_are_told(
    forms: list[PoolForm], lengths: tuple[float, float], least: float
) -> None:
    assert gain(forms, *lengths) > least


def test_pools_that_carry_nothing_are_not_compared() -> None:
    forms = [pool("a", 1, 8, Role.PREFILL)]
    assert compare(forms, ENGINE, estimates(1000.0, 200.0), prompt_tokens=1000.0) is None


def test_the_gpus_are_those_of_the_pools() -> None:
    what = inventory_of([pool("a", 2, 5), pool("b", 4, 1), pool("c", 1, 3, gpu="L40S-48GB")])
    assert sorted((node.accelerator.name, node.gpus) for node in what.nodes) == [
        ("H100-SXM-80GB", 6),
        ("H100-SXM-80GB", 8),
        ("L40S-48GB", 3),
    ]


def test_twice_the_gpus_are_compared_in_less_than_three_times_as_long() -> None:
    def comparing(gpus: int) -> Callable[[], float]:
        return lambda: gain([pool("a", 1, gpus // 2), pool("b", 2, gpus // 4, gpu="L40S-48GB")], 1000.0, 200.0)

    assert cost_ratio(comparing(64), comparing(128), rounds=3) < 3


def test_queues_decide_between_placements_that_flow_alike() -> None:
    """Of all ways to use eight GPUs for long prompts, seven small workers for prefill are the best with queues."""
    performance = estimates(4000.0, 100.0)
    plan = search(
        Request(inventory=inventory_of([pool("a", 1, 8)]), engine=ENGINE, performance=performance, prompt_tokens=4000.0)
    )
    assert plan.goodput >= 0.99 * held_goodput([pool("a", 1, 8, Role.PREFILL, Role.DECODE)], ENGINE, performance)
    assert plan.goodput >= 0.99 * held_goodput([pool("a", 2, 4)], ENGINE, performance)


@pytest.mark.parametrize("lengths", [(1000.0, 200.0), (4000.0, 100.0), (300.0, 600.0)])
def test_mixed_workers_stand_beside_no_others_unless_that_is_asked_for(lengths: tuple[float, float]) -> None:
    def roles(**more: bool) -> set[Role]:
        asked = Request(
            inventory=inventory_of([pool("a", 1, 8), pool("b", 1, 8, gpu="L40S-48GB")]),
            engine=ENGINE,
            performance=estimates(*lengths),
            prompt_tokens=lengths[0],
            exact_gpus=0,
            **more,  # type: ignore[arg-type]
        )
        return {each.role for each in search(asked).pools}

    assert roles() in ({Role.MIXED}, {Role.PREFILL, Role.DECODE})
    assert roles(mixed_beside=True) <= set(Role)
