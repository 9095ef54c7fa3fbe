"""Auto: the ratio follows a load whose mix moves, and more requests stay inside the SLO than with any fixed ratio."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from local_cluster import REPOSITORY, Cluster, wait_until
from moving_load import Mix, measured_mix, run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

AUTO = REPOSITORY / "examples" / "auto.yaml"
PHASE_SECONDS = 35.0
FIXED = ((2, 2), (1, 3), (3, 1))
"""Every ratio of four workers; the last one is where Auto begins."""
SEED = 7


def has_roles(cluster: Cluster, prefill: int, decode: int) -> bool:
    return cluster.roles() == {"prefill": prefill, "decode": decode}


def fix_ratio(cluster: Cluster, prefill: int, decode: int) -> None:
    cluster.patch({"balance": {"mode": "Manual", "ratio": {"prefill": prefill, "decode": decode}}})
    wait_until(f"{prefill}P:{decode}D", partial(has_roles, cluster, prefill, decode), seconds=30)


@pytest.fixture(scope="module")
def auto(quickstart: Cluster) -> Iterator[Cluster]:
    """`examples/auto.yaml` in the same local Kubernetes, once the clusters before it are gone: memory is scarce."""
    quickstart.kubectl("delete", "ic", "--all", "--wait=false")
    wait_until("no workers of other clusters", lambda: not quickstart.read("ic")["items"], seconds=120)
    quickstart.kubectl("apply", "-f", str(AUTO))
    cluster = replace(quickstart, name="auto")
    wait_until("four workers", lambda: cluster.cluster()["status"].get("ready") == "4/4", seconds=300)
    yield cluster
    cluster.kubectl("delete", "ic", "auto")


@pytest.fixture(scope="module")
def mix(auto: Cluster) -> Mix:
    fix_ratio(auto, 2, 2)
    return measured_mix(auto, seconds=PHASE_SECONDS)


def test_auto_beats_every_fixed_ratio(auto: Cluster, mix: Mix) -> None:
    phases = (mix.prompts, mix.answers, mix.prompts)
    before = {worker.name: (worker.uid, worker.restarts) for worker in auto.workers()}
    attainment = {}
    for prefill, decode in FIXED:
        fix_ratio(auto, prefill, decode)
        report = run(auto, phases, seed=SEED)
        attainment[f"{prefill}P:{decode}D"] = report.slo_attainment
        print(f"{prefill}P:{decode}D", report)

    flips_before = auto.flips()
    auto.patch({"balance": {"mode": "Auto", "ratio": None}})
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
