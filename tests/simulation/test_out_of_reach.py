"""A promise that long prompts miss on any worker: Pods start for the short ones, and none where all are long."""

from __future__ import annotations

import msgspec
import numpy as np
from tests.simulation.worlds import SLO, make_cluster, make_speed, poisson

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.result import Result
from fulcrum.simulation.workload import Workload

SHORT_TOKENS, LONG_TOKENS = 2000, 40_000
"""An idle worker takes 0.1 s for one, 3.2 s for the other; 0.5 s are promised."""


def load(share_long: float) -> Workload:
    """Return five minutes of requests of which such a share is long."""
    requests = poisson(rate=10, count=3000, prompt=SHORT_TOKENS, output=50, seed=3, spread=0.1)
    long = np.random.default_rng(4).random(len(requests)) < share_long
    requests.prompt_tokens[long] = LONG_TOKENS
    return requests


def played(requests: Workload) -> Result:
    document = {
        "model": {"name": "m"},
        "slo": {"ttft": f"{SLO.ttft_seconds}s", "tpot": f"{SLO.tpot_seconds}s", "attainment": SLO.attainment},
        "pools": [{"name": "p", "accelerator": "H100", "workers": {"min": 2, "max": 12}}],
        "balance": {"mode": "Auto"},
        "admission": {"policy": "Predictive"},
    }
    policy = Ours(msgspec.convert(document, InferenceClusterSpec), least_turn_seconds=5.0)
    return simulate(requests, make_cluster(make_speed(), start_seconds=20.0), policy, slo=SLO)


def test_pods_start_until_the_short_prompts_are_served() -> None:
    requests = load(0.2)
    result = played(requests)
    settled = requests.arrival_seconds > 120
    short = settled & (requests.prompt_tokens < LONG_TOKENS)
    assert result.pods_started > 0
    assert result.within(SLO)[short].mean() > SLO.attainment
    assert not result.within(SLO)[requests.prompt_tokens == LONG_TOKENS].any()


def test_no_pod_starts_where_each_prompt_is_too_long() -> None:
    assert played(load(1.0)).pods_started == 0
