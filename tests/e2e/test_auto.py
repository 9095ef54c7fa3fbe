"""Auto: the ratio follows a load whose mix moves, and more requests stay inside the SLO than with any fixed ratio."""

from __future__ import annotations

from functools import partial

import pytest
from local_cluster import Cluster, wait_until
from moving_load import Mix, fix_ratio, measured_mix, run

pytestmark = [pytest.mark.engine, pytest.mark.compare, pytest.mark.timeout(1200)]

PHASE_SECONDS = 35.0
FIXED = ((2, 2), (1, 3), (3, 1))
"""Every ratio of four workers; the last one is where Auto begins."""
SEED = 4
"""Of arrivals and lengths, which are the same for all."""


def quiet(cluster: Cluster) -> bool:
    """Nothing ended within the window that Auto decides by: not even what the run before has left behind."""
    return "attainment" not in cluster.cluster()["status"]


@pytest.fixture(scope="module")
def mix(auto: Cluster) -> Mix:
    return measured_mix(auto, seconds=PHASE_SECONDS)


def test_auto_beats_every_fixed_ratio(auto: Cluster, mix: Mix) -> None:
    phases = (mix.prompts, mix.answers, mix.prompts)
    before = {worker.name: (worker.uid, worker.restarts) for worker in auto.workers()}
    attainment = {}
    for prefill, decode in FIXED:
        fix_ratio(auto, prefill, decode)
        report = run(auto, phases, seed=SEED, to_the_end=False)
        attainment[f"{prefill}P:{decode}D"] = report.slo_attainment
        print(f"{prefill}P:{decode}D", report)

    auto.patch({"balance": {"mode": "Observe", "ratio": None}})
    wait_until("a quiet cluster", partial(quiet, auto), seconds=60)
    flips_before = auto.flips()
    auto.patch({"balance": {"mode": "Auto"}})
    report = run(auto, phases, seed=SEED)
    flips = auto.flips() - flips_before
    print("Auto", report, "flips", flips)
    print(auto.kubectl("get", "events", "--sort-by=.lastTimestamp"))

    assert report.lost == 0
    assert report.slo_attainment > max(attainment.values()), attainment
    assert {worker.name: (worker.uid, worker.restarts) for worker in auto.workers()} == before, "flips only"
    assert 0 < flips <= 2 * (len(phases) - 1)
    status = auto.cluster()["status"]
    assert status["forecast"]["method"] != "auto"
    assert status["lastDecision"]["action"].startswith("Flip")
