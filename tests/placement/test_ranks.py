"""Plans with workers of several ranks, which mixtures of experts may have."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from fulcrum.api.crd import root_schema
from fulcrum.api.names import Role
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.known_models import known_model
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.deploy import inference_cluster
from fulcrum.placement.drift import PoolForm, held_goodput, inventory_of
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.inventory import Inventory, inventory_from
from fulcrum.placement.parallelism import Engine, Form, forms, shapes
from fulcrum.placement.plan import PlacementPlan
from fulcrum.placement.search import Request, search

DEEPSEEK = Engine(model=known_model("deepseek-ai/DeepSeek-V3"))
DEMAND = Demand(rate=1.0, isl_tokens=4000.0, osl_tokens=1000.0, isl_cv2=0.0, osl_cv2=0.0)
ESTIMATES = FluidEstimates(DEMAND, LatencyTargets(ttft_seconds=5.0, tpot_seconds=0.05, attainment=0.95))


def nodes_of_h200(count: int) -> Inventory:
    return inventory_from({"nodes": [{"name": "n", "accelerator": "H200-SXM-141GB", "gpus": 8, "count": count}]})


@cache
def planned() -> PlacementPlan:
    two = nodes_of_h200(2)
    return search(Request(inventory=two, engine=DEEPSEEK, performance=ESTIMATES, prompt_tokens=4000.0))


def test_ranks_are_for_mixtures_of_experts() -> None:
    assert {form.data for form in forms(known_model("facebook/opt-30b"))} == {1}
    assert Form(1, 1, 8) in forms(DEEPSEEK.model)
    (kind,) = nodes_of_h200(1).kinds()
    found = [form for form, _ in shapes(kind, DEEPSEEK)]
    assert all(form.gpus <= 8 for form in found)
    assert Form(1, 1, 8) in found
    assert (str(Form(2, 1, 4)), str(Form(2, 4))) == ("tensor 2 and data 4", "tensor 2 and pipeline 4")


def test_deepseek_is_served_by_ranks_of_one_gpu_as_others_choose_too() -> None:
    """AIConfigurator takes attention data parallel 8 for prefill and decode on such nodes."""
    plan = planned()
    assert {(pool.role, pool.option.form, pool.workers) for pool in plan.pools} == {
        (Role.PREFILL, Form(1, 1, 8), 1),
        (Role.DECODE, Form(1, 1, 8), 1),
    }
    assert {pool.name for pool in plan.pools} == {"h200-tp1-dp8-prefill", "h200-tp1-dp8-decode"}
    assert plan.gpus_used == 16


def test_what_is_emitted_is_what_the_crd_accepts() -> None:
    document = inference_cluster(planned(), name="planned", engine=DEEPSEEK, ttft="5s", tpot="50ms", attainment=0.95)
    (pool,) = document["spec"]["pools"]
    assert pool["parallelism"] == {"tensor": 1, "pipeline": 1, "data": 8, "experts": True}
    schema = StructuralSchema(root_schema())
    assert schema.unknown_fields(document) == []
    assert [str(error) for error in schema.validate(schema.default(document))] == []


def test_ranks_queue_as_workers_of_their_own() -> None:
    speed = planned().pools[0].option.speed
    one, several = [(replace(speed, ranks=1), 8)], [(speed, 1)]
    assert ESTIMATES.split(several, several) == pytest.approx(ESTIMATES.split(one, one))
    for role in Role:
        assert ESTIMATES.alone(several, role) == pytest.approx(ESTIMATES.alone(one, role))


def test_groups_that_stand_are_held_against_a_plan_with_all_their_gpus() -> None:
    roles = frozenset({Role.PREFILL, Role.DECODE})
    form = PoolForm(name="p", accelerator=accelerator("H200"), tensor=1, pipeline=1, data=8, workers=2, roles=roles)
    assert form.gpus == 16
    assert inventory_of([form]).gpus == 16
    assert held_goodput([form], DEEPSEEK, ESTIMATES) == pytest.approx(planned().goodput, rel=0.02)
