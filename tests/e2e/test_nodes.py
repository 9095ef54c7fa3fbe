"""Nodes that are lost, with real engines under load."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from another_node import AnotherNode, another_node
from answers import Question
from load import SteadyLoad
from local_cluster import Cluster, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

FIRST = "local"
"""Name of the node that `fulcrum up` starts."""
WIDE = {"slo": {"ttft": "60s", "tpot": "10s"}}
"""A promise that is kept also while engines start on the same few cores, which makes the others look slow.

With a narrow one Auto would add workers, and each of them would make all of them slower."""


@pytest.fixture(scope="session")
def second(quickstart: Cluster) -> Iterator[AnotherNode]:
    """Where the workers are after the drain; it stays, cordoned, until they are deleted."""
    with another_node(quickstart, "second") as node:
        yield node


@pytest.fixture(scope="module")
def cluster(quickstart: Cluster, second: AnotherNode) -> Iterator[Cluster]:
    """Three workers, 1P:2D. What comes later is on the first node again."""
    quickstart.patch({**WIDE, "admission": {"policy": "Off"}})
    shape(quickstart, {"min": 1, "max": 3}, ratio=(1, 2))
    wait_until("1P:2D", partial(settled, quickstart, {"prefill": 1, "decode": 2}), seconds=240)
    yield quickstart
    quickstart.kubectl("uncordon", FIRST)
    quickstart.kubectl("cordon", second.name)


def shape(cluster: Cluster, workers: dict[str, int], *, ratio: tuple[int, int], **pool: Any) -> None:
    """Set the bounds of the only pool, and the ratio, by hand."""
    changes = {"workers": workers, **pool}
    patch = [{"op": "add", "path": f"/spec/pools/0/{name}", "value": value} for name, value in changes.items()]
    by_hand = {"mode": "Manual", "ratio": {"prefill": ratio[0], "decode": ratio[1]}}
    patch.append({"op": "add", "path": "/spec/balance", "value": by_hand})
    cluster.kubectl("patch", "ic", cluster.name, "--type", "json", "-p", json.dumps(patch))


def settled(cluster: Cluster, roles: dict[str, int]) -> bool:
    found = cluster.cluster()
    return (
        cluster.roles() == roles
        and len(cluster.workers()) == sum(roles.values())
        and found["status"].get("observedGeneration") == found["metadata"]["generation"]
        and all(cluster.condition(kind) == state for kind, state in (("Available", "True"), ("Progressing", "False")))
        and gateways(cluster) == 2
    )


def gateways(cluster: Cluster) -> int:
    """Ready ones of the current revision; 0 while others are still there."""
    status = cluster.read("deployment", f"{cluster.name}-gateway")["status"]
    return int(status["readyReplicas"]) if status.get("replicas") == status.get("updatedReplicas") else 0


def test_a_node_that_is_lost_under_load(cluster: Cluster, second: AnotherNode, questions: list[Question]) -> None:
    """Power cut and Node object deleted: no answer is lost, and the capacity is back in a start's time and 60 s."""
    victim = next(worker for worker in cluster.workers() if worker.role == "decode")
    with another_node(cluster, "doomed") as doomed, SteadyLoad(cluster.endpoint(), questions, rate=2) as load:
        wait_until("answers before", partial(load.has, 8), seconds=120)
        cluster.kubectl("cordon", FIRST, second.name)
        began = time.monotonic()
        cluster.kubectl("delete", "pod", victim.name, "--wait=false")
        wait_until("its replacement", partial(replaced, cluster, victim.name, victim.uid), seconds=240)
        start_seconds = time.monotonic() - began
        cluster.kubectl("uncordon", FIRST, second.name)
        assert doomed.pods() == [victim.name]
        lost = next(worker for worker in cluster.workers() if worker.name == victim.name)
        wait_until("answers with it", partial(load.has, len(load.answered) + 8), seconds=120)
        doomed.cut_power()
        began = time.monotonic()
        cluster.kubectl("delete", "node", doomed.name)
        wait_until("the capacity", partial(replaced, cluster, lost.name, lost.uid), seconds=400)
        back_seconds = time.monotonic() - began
        wait_until("answers after", partial(load.has, len(load.answered) + 8), seconds=120)
    print(
        f"node lost: 3 of 3 workers again after {back_seconds:.1f} s, where a start takes {start_seconds:.1f} s; "
        f"{len(load.answered)} answers, all right: {all(answered.right for answered in load.answered)}"
    )
    assert all(answered.right for answered in load.answered), load.summary()
    assert back_seconds <= start_seconds + 60


def replaced(cluster: Cluster, name: str, uid: str) -> bool:
    """All three workers are ready, and the named one is another Pod."""
    workers = cluster.workers()
    return (
        sum(worker.ready and not worker.deleting for worker in workers) == 3
        and next(worker.uid for worker in workers if worker.name == name) != uid
    )
