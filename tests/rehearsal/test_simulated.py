"""A simulated cluster whose roles are rehearsed, over a whole run."""

from __future__ import annotations

import msgspec
import numpy as np
from tests.rehearsal.worlds import CLUSTER, SLO
from tests.simulation.worlds import make_workload, poisson

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.rehearsal.simulated import Rehearsals
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies.ours import Ours
from fulcrum.simulation.policies.static import StaticSplit
from fulcrum.simulation.result import Result
from fulcrum.simulation.workload import Workload


def spec(workers: int) -> InferenceClusterSpec:
    """So many workers; nothing is turned away."""
    return msgspec.convert(
        {
            "model": {"name": "m"},
            "pools": [{"name": "p", "accelerator": "H100", "workers": {"min": workers, "max": workers}}],
            "slo": {"ttft": "3s", "tpot": "150ms", "attainment": SLO.attainment},
            "admission": {"policy": "Off"},
        },
        InferenceClusterSpec,
    )


def run(load: Workload) -> tuple[Result, Rehearsals]:
    """Five workers that begin with one for prefill."""
    rehearsals = Rehearsals(spec(5))
    initial = [("p", Role.PREFILL), *[("p", Role.DECODE)] * 4]
    policy = Ours(spec(5), initial=initial, rehearsals=rehearsals)
    return simulate(load, CLUSTER, policy, slo=SLO), rehearsals


def test_it_leaves_what_cannot_serve_the_load_and_does_so_each_time() -> None:
    load = poisson(rate=2.2, count=240, prompt=4000, output=12, seed=31, spread=0.3)
    stayed = simulate(load, CLUSTER, StaticSplit(pool="p", prefill=1, decode=4), slo=SLO).within(SLO)
    (result, rehearsals), (again, _) = run(load), run(load)
    assert (result.fleet[0].prefill, result.fleet[0].decode) == (1, 4)
    assert result.flips > 0
    assert result.fleet[-1].prefill > 1 or result.fleet[-1].mixed
    assert result.within(SLO).mean() > stayed.mean() + 0.2
    assert rehearsals.answers[0][1].chosen != rehearsals.answers[0][1].compared[0].layout
    np.testing.assert_array_equal(result.end_seconds, again.end_seconds)
    assert result.fleet == again.fleet


def test_it_plays_nothing_while_all_is_well() -> None:
    load = poisson(rate=1.0, count=80, prompt=500, output=12, seed=32)
    result, rehearsals = run(load)
    assert result.within(SLO).all()
    assert (result.flips, rehearsals.answers) == (0, [])


def test_a_handful_of_late_requests_is_not_enough_to_decide() -> None:
    load = make_workload([(0.1 * number, 8000, 5) for number in range(15)])
    result, rehearsals = run(load)
    assert not result.within(SLO).all()
    assert (result.flips, rehearsals.answers) == (0, [])
