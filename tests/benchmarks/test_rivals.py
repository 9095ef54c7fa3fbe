"""Other planners, by the rules that are published of them."""

from __future__ import annotations

import numpy as np
import pytest
from contests.rivals.arrow import Arrow
from contests.rivals.dynamo import Dynamo, DynamoMode
from contests.rivals.dynamo_expectation import largest_batch
from contests.rivals.threshold import Threshold
from tests.simulation.worlds import SLO, make_cluster, make_speed

from fulcrum.api.names import Role
from fulcrum.simulation.arrivals import ladder
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policy import Policy

P, D = Role.PREFILL, Role.DECODE
SPEED = make_speed(prefill=(0.012, 7e-5, 1.5e-9), kv_capacity_tokens=400_000)
CHAT = LogNormalLengths(prompt_mean=1150, output_mean=210, prompt_spread=0.9, output_spread=0.8)
STEPS = stream(rate=ladder([(200, 4), (200, 24), (200, 4)]), lengths=CHAT, seconds=600, seed=1)


@pytest.mark.parametrize(
    "policy",
    [
        Dynamo(pool="p", speed=SPEED, slo=SLO, begin={P: 2, D: 2}, most_workers=8, throughput_seconds=60.0),
        Dynamo(pool="p", speed=SPEED, slo=SLO, begin={P: 1, D: 1}, most_workers=8, mode=DynamoMode.LOAD),
        Dynamo(
            pool="p", speed=SPEED, slo=SLO, begin={P: 1, D: 1}, most_workers=8, mode=DynamoMode.BOTH,
            throughput_seconds=60.0,
        ),
        Threshold(pool="p", prefill=1, decode=1, most_workers=8),
        Arrow(pool="p", prefill=4, decode=4),
    ],
    ids=lambda policy: policy.name,
)  # fmt: skip
def test_follows_the_load_within_its_budget_and_loses_nothing(policy: Policy) -> None:
    result = simulate(STEPS, make_cluster(SPEED, start_seconds=30.0), policy, slo=SLO)
    assert result.count(Outcome.SERVED) == len(STEPS)
    assert max(sample.pods for sample in result.fleet) <= 8
    assert min(sample.prefill for sample in result.fleet[1:]) >= 1
    assert result.flips + result.pods_started > 0
    if isinstance(policy, Arrow):
        assert (result.flips > 0, result.pods_started) == (True, 0)
        gaps = np.diff([sample.seconds for sample in result.fleet])
        assert gaps.min() < 10, "it has no dwell time"
    else:
        assert result.flips == 0


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"), [(3, 4, "3:4"), (0, 0, "1:1"), (10, 30, "2:6"), (1, 100, "1:7"), (100, 1, "7:1")]
)
def test_a_plan_over_budget_is_scaled_down_in_proportion(prefill: int, decode: int, expected: str) -> None:
    policy = Threshold(pool="p", prefill=1, decode=1, most_workers=8)
    assert ":".join(str(n) for n in policy.within_budget(prefill, decode).values()) == expected


def test_the_largest_batch_keeps_the_pace_and_fits() -> None:
    batch = largest_batch(SPEED, 0.05, 1200)
    assert (
        SPEED.decode_step_seconds(batch, batch * 1200)
        <= 0.05
        < SPEED.decode_step_seconds(batch + 1, (batch + 1) * 1200)
    )
    assert largest_batch(SPEED, 10.0, 100_000) == 4
    assert largest_batch(SPEED, 0.0001, 1200) == 1
