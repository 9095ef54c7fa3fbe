"""Policies by name: which a cluster is a place for, and how the best static split is found."""

from __future__ import annotations

import msgspec
import pytest
from tests.simulation.worlds import SLO, make_cluster, make_speed, poisson

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.simulation.best_static import candidates
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.comparison import Comparison, ComparisonInputs, UnknownPolicyError
from fulcrum.simulation.named_policies import POLICIES

SPEED = make_speed(prefill=(0.012, 7e-5, 1.5e-9), kv_capacity_tokens=400_000)


def inputs(*, pools: int = 1, workers: int = 4) -> ComparisonInputs:
    names = [f"p{number}" for number in range(pools)] if pools > 1 else ["p"]
    document = {
        "model": {"name": "m"},
        "slo": {"ttft": "500ms", "tpot": "50ms"},
        "pools": [{"name": name, "accelerator": "H100", "workers": {"min": workers, "max": workers}} for name in names],
        "balance": {"mode": "Auto"},
    }
    cluster = ClusterModel(pools=tuple(PoolModel(name=name, speed=SPEED) for name in names))
    return ComparisonInputs(
        workload=poisson(rate=9, count=300, prompt=3500, output=40, seed=1),
        cluster=cluster if pools > 1 else make_cluster(SPEED),
        spec=msgspec.convert(document, InferenceClusterSpec),
        slo=SLO,
        least_turn_seconds=2.0,
    )


def test_names_are_checked() -> None:
    assert POLICIES.checked(["all", "ours"], inputs()) == ("ours", "ours-open", "static", "aggregated")
    assert POLICIES.checked(["static-1:3", "ours"], inputs()) == ("static-1:3", "ours")
    assert POLICIES.checked(["ours", "ours-open"], inputs(pools=2)) == ("ours", "ours-open")
    assert POLICIES.checked(["ours", "aggregated"], inputs(workers=1)) == ("ours", "aggregated")
    with pytest.raises(UnknownPolicyError, match="one pool only"):
        POLICIES.checked(["aggregated"], inputs(pools=2))
    with pytest.raises(UnknownPolicyError, match="at least two workers"):
        POLICIES.checked(["static"], inputs(workers=1))
    with pytest.raises(UnknownPolicyError, match="there is no policy 'arrow'"):
        POLICIES.checked(["arrow"], inputs())


def test_static_is_the_best_of_all_splits_with_and_without_admission() -> None:
    simulated: set[str] = set()
    played = inputs()
    comparison = Comparison(inputs=played, table=POLICIES, on_progress=lambda name, _: simulated.add(name))
    best = comparison.run("static").result
    assert best.policy == "best static 3P:1D"
    assert simulated == {"static 1P:3D", "static 2P:2D", "static 3P:1D"}
    good = [
        int(result.within(SLO).sum())
        for admission in (AdmissionPolicy.PREDICTIVE, AdmissionPolicy.OFF)
        for result in comparison.statics(admission).values()
    ]
    assert len(good) == 6
    assert int(best.within(SLO).sum()) == max(good)
    assert POLICIES.steps_of(["ours", "static"], played) == 1 + 6


@pytest.mark.parametrize("workers", [2, 3, 8, 12, 16, 64, 100])
def test_candidates_reach_both_ends_and_are_not_too_many(workers: int) -> None:
    splits = candidates(workers)
    assert {1, workers - 1} <= {split.prefill for split in splits}
    assert all(len(split.roles()) == workers for split in splits)
    assert len(splits) == len(set(splits)) <= 13
