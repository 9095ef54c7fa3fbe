"""Roles change a hundred times under load, and nobody notices but the router."""

from __future__ import annotations

from functools import partial

import pytest
from answers import Question
from local_cluster import Cluster, wait_until

from fulcrum.replay import Outcome
from load import SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

FLIPS = 100
RATIOS = ((3, 1), (2, 2), (1, 3), (2, 2))
"""Each differs from the one before by one worker, so that each patch is one flip."""


def has_roles(cluster: Cluster, wanted: dict[str, int]) -> bool:
    return cluster.roles() == wanted


def test_a_hundred_flips_under_load_lose_nothing(whole: Cluster, questions: list[Question]) -> None:
    before = {worker.name: (worker.uid, worker.restarts) for worker in whole.workers()}
    flips_before = whole.flips()
    with SteadyLoad(whole.endpoint(), questions, rate=6) as load:
        for number in range(FLIPS):
            prefill, decode = RATIOS[number % len(RATIOS)]
            whole.patch_ratio(prefill, decode)
            wanted = {"prefill": prefill, "decode": decode}
            wait_until(f"flip {number}: {wanted}", partial(has_roles, whole, wanted), seconds=90, every_seconds=0.1)
            wait_until("answers in the new roles", partial(load.has, len(load.answered) + 2), seconds=90,
                       every_seconds=0.05)  # fmt: skip
    assert whole.flips() - flips_before == FLIPS
    assert {worker.name: (worker.uid, worker.restarts) for worker in whole.workers()} == before
    assert load.count(Outcome.OK) == len(load.answered), load.summary()
    assert all(answered.right for answered in load.answered), load.summary()
    assert whole.condition("Available") == "True"
