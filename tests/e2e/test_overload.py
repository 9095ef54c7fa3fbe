"""Twice and four times what the workers can serve, in bursts: what is let in is served in time, by class."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from local_cluster import Cluster, wait_until
from overload import DRY, broken, header, measure, phase, set_policy

pytestmark = [pytest.mark.engine, pytest.mark.compare, pytest.mark.timeout(600)]

MEASURED_SECONDS = 12.0
PHASE_SECONDS = 18.0
SEED = 1
"""The same for all, so that premium and standard requests are the same ones with and without the flood."""


def rejecting(cluster: Cluster) -> dict[str, Any] | None:
    """The status, once it says that requests are rejected."""
    status: dict[str, Any] = cluster.cluster()["status"]
    said = [c for c in status["conditions"] if c["type"] == "Degraded" and c["reason"] == "RequestsRejected"]
    return status if said else None


def test_what_is_let_in_is_served_in_time(overload: Cluster) -> None:
    workers = measure(overload, seconds=MEASURED_SECONDS)
    print(f"{workers.summary()}\n{header()}")
    run = partial(phase, overload, workers, seconds=PHASE_SECONDS, seed=SEED)

    set_policy(overload, "Predictive", workers.slo)
    dry, twice, four_times = (run("Predictive", load) for load in (DRY, 2.0, 4.0))
    status = wait_until("the status to say that requests are rejected", partial(rejecting, overload), seconds=60)
    print(overload.kubectl("get", "ic"), *(c["message"] for c in status["conditions"] if c["type"] == "Degraded"))
    returned = run("Predictive", 0.9)

    set_policy(overload, "Off", workers.slo)
    for load, early in ((2.0, twice), (4.0, four_times)):
        assert early.rejection_seconds
        assert early.goodput > run("Off", load).goodput
    assert broken(dry, (twice, four_times), returned) == []
    assert status["rejectedRatio"] > 0.1
