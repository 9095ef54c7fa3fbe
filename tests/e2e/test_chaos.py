"""A cluster of real engines on an API server full of errors (`fulcrum up --chaos SEED`) loses nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial

import pytest
from answers import questions_of
from lanes import state_folder
from local_cluster import QUICKSTART, Cluster, local_cluster, wait_until
from manifests import changed
from this_machine import TINY

from fulcrum.replay import Outcome
from load import SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

SEEDS = [int(seed) for seed in os.environ.get("FULCRUM_CHAOS_SEEDS", "1").split(",")]
"""One in `make test`, because each starts engines of its own; `tests/controller/test_chaos.py` has three without."""
RATIOS = ((1, 2), (2, 1)) * 3
"""Each is a flip of one worker; `examples/quickstart.yaml` with three workers begins with the second."""


@pytest.fixture(params=SEEDS)
def chaotic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`examples/quickstart.yaml` with three workers on an API server with chaos, in a state folder of its own."""
    home = state_folder(tmp_path_factory, "chaos")
    manifest = changed(
        QUICKSTART,
        home / "chaos.yaml",
        pool={"rollout": {"maxUnavailable": 0, "maxSurge": 2}},
        balance={"mode": "Manual", "ratio": {"prefill": 2, "decode": 1}},
        admission={"policy": "Off"},
        # A narrow promise is broken by a machine that is busy with other things, and a broken one halts the rollout.
        slo={"ttft": "60s", "tpot": "10s"},
    )
    with local_cluster(home, manifest=manifest, options=(f"--chaos={request.param}",), model=TINY) as cluster:
        wait_until("three workers", partial(settled, cluster, "3/3"), seconds=480)
        yield cluster


def settled(cluster: Cluster, ready: str) -> bool:
    found = cluster.cluster()
    status = found["status"]
    states = {entry["type"]: entry["status"] for entry in status["conditions"]}
    return (
        status["ready"] == ready
        and (states["Available"], states["Progressing"]) == ("True", "False")
        and status["observedGeneration"] == found["metadata"]["generation"]
    )


def has_roles(cluster: Cluster, wanted: dict[str, int]) -> bool:
    return cluster.roles() == wanted


def operator_counts(cluster: Cluster) -> dict[str, int]:
    """Writes of the operator, leases left out, and errors that it was given."""
    counts = {"writes": 0, "errors": 0}
    for line in cluster.kubectl("get", "--raw", "/metrics").splitlines():
        if line.startswith("fulcrum_apiserver_client_requests_total") and ":fulcrum-operator" in line:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            count = int(float(line.rpartition(" ")[2]))
            if labels["resource"] != "leases" and labels["verb"] not in {"GET", "LIST", "WATCH"}:
                counts["writes"] += count
            if labels["code"] in {"409", "429", "500"}:
                counts["errors"] += count
    return counts


def test_nothing_is_lost(chaotic: Cluster) -> None:
    questions = questions_of(chaotic)
    with SteadyLoad(chaotic.endpoint(), questions, rate=2) as load:
        wait_until("answers", partial(load.has, 8), seconds=120)
        for prefill, decode in RATIOS:
            chaotic.patch_ratio(prefill, decode)
            wanted = {"prefill": prefill, "decode": decode}
            wait_until(f"flipped: {wanted}", partial(has_roles, chaotic, wanted), seconds=120)
            wait_until("answers in the new roles", partial(load.has, len(load.answered) + 4), seconds=90)
        chaotic.patch_ratio(1, 1)
        wait_until("two workers", partial(settled, chaotic, "2/2"), seconds=300)
        before = {worker.uid for worker in chaotic.workers()}
        chaotic.add_engine_args("--max-num-seqs=64")
        # Both replacements start at the same time, beside what serves.
        wait_until(
            "new workers", lambda: not before & {worker.uid for worker in chaotic.workers()}, seconds=600,
            every_seconds=1,
        )  # fmt: skip
        wait_until("all of them ready", partial(settled, chaotic, "2/2"), seconds=300)
        wait_until("answers after", partial(load.has, len(load.answered) + 8), seconds=120)
    assert load.count(Outcome.OK) == len(load.answered), load.summary()
    assert all(answered.right for answered in load.answered), load.summary()
    counts = operator_counts(chaotic)
    print(f"{len(load.answered)} answers, all right; operator: {counts}")
    assert counts["errors"] > 0, "the chaos did nothing"
    assert counts["writes"] < 400, counts
    chaotic.kubectl("delete", "ic", chaotic.name, "--wait=false")
    selector = f"fulcrum.dev/cluster={chaotic.name}"
    wait_until(
        "nothing left", lambda: not chaotic.kubectl("get", "pods,deploy,svc", "-l", selector, "-o", "name"), seconds=240
    )
