"""The contest: who begins with what, and which names a cluster is a place for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from contests.contestants import CONTESTANTS
from tests.simulation.worlds import SLO, make_cluster, make_speed, poisson

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.comparison import Comparison, ComparisonInputs, UnknownPolicyError

SPEED = make_speed(prefill=(0.012, 7e-5, 1.5e-9), kv_capacity_tokens=400_000)
LONG_PROMPTS = poisson(rate=9, count=600, prompt=3500, output=40, seed=1)
"""A load that four workers serve best as 3P:1D."""


def inputs(*, pools: int = 1, high: int = 4, **balance: Any) -> ComparisonInputs:
    names = [f"p{number}" for number in range(pools)] if pools > 1 else ["p"]
    document = {
        "model": {"name": "m"},
        "slo": {"ttft": "500ms", "tpot": "50ms"},
        "pools": [{"name": name, "accelerator": "H100", "workers": {"min": high, "max": high}} for name in names],
        "balance": {"mode": "Auto", **balance},
    }
    spec = msgspec.convert(document, InferenceClusterSpec)
    cluster = (
        make_cluster(SPEED) if pools == 1 else ClusterModel(pools=tuple(PoolModel(name=n, speed=SPEED) for n in names))
    )
    return ComparisonInputs(workload=LONG_PROMPTS, cluster=cluster, spec=spec, slo=SLO, least_turn_seconds=2.0)


def test_each_run_of_ours_begins_with_its_own_split() -> None:
    comparison = Comparison(table=CONTESTANTS, inputs=inputs())
    names = ("static", "ours", "ours-even", "ours-informed")
    static, usual, even, informed = (comparison.run(name).result for name in names)
    begun = {one.policy: (one.fleet[0].prefill, one.fleet[0].decode) for one in (static, usual, even, informed)}
    assert begun == {
        "best static 3P:1D": (3, 1),
        "ours": (3, 1),
        "ours from 2P:2D": (2, 2),
        "ours from 3P:1D": (3, 1),
    }
    assert (usual.flips, informed.flips, even.flips) == (0, 0, 1)
    good = [int(one.within(SLO).sum()) for one in (even, informed, static)]
    assert good[0] < good[1] <= good[2] * 1.01


def test_the_ratio_of_the_spec_is_what_ours_and_the_published_planners_begin_with() -> None:
    comparison = Comparison(table=CONTESTANTS, inputs=inputs(ratio={"prefill": 3, "decode": 1}))
    for name in ("ours", "dynamo", "arrow"):
        roles = [role for _, role in comparison.run(name).policy.initial(comparison.inputs.cluster)]
        assert (roles.count(Role.PREFILL), roles.count(Role.DECODE)) == (3, 1), name


def test_names_are_checked() -> None:
    assert CONTESTANTS.checked(["all", "ours"], inputs()) == tuple(CONTESTANTS.policies)
    assert CONTESTANTS.checked(["ours", "ours-open"], inputs(pools=2)) == ("ours", "ours-open")
    with pytest.raises(UnknownPolicyError, match="one pool only"):
        CONTESTANTS.checked(["ours-informed"], inputs(pools=2))
    with pytest.raises(UnknownPolicyError, match="at least two workers"):
        CONTESTANTS.checked(["ours-informed"], inputs(high=1))
