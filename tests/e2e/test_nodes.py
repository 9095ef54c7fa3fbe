"""Nodes that are lost, and nodes that are drained, with real engines under load."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from another_node import AnotherNode, another_node
from answers import Question
from local_cluster import BIN, EVERYWHERE, Cluster, wait_until
from tests.machine import deadline_seconds

from load import SteadyLoad

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
    """Three workers, 1P:2D, on the first node; the second one is cordoned. What comes later is on the first again."""
    quickstart.kubectl("cordon", second.name)
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
    status = cluster.read("deployments", f"{cluster.name}-gateway")["status"]
    return int(status["readyReplicas"]) if status.get("replicas") == status.get("updatedReplicas") else 0


def test_a_node_that_is_lost_under_load(cluster: Cluster, questions: list[Question]) -> None:
    """Power cut and Node object deleted: no answer is lost, and the capacity is back in a start's time and 60 s."""
    victim = next(worker for worker in cluster.workers() if worker.role == "decode")
    with another_node(cluster, "doomed") as doomed, SteadyLoad(cluster.endpoint(), questions, rate=2) as load:
        wait_until("answers before", partial(load.has, 8), seconds=120)
        cluster.kubectl("cordon", FIRST)
        began = time.monotonic()
        cluster.kubectl("delete", "pod", victim.name, "--wait=false")
        wait_until("its replacement", partial(replaced, cluster, victim.name, victim.uid), seconds=240)
        start_seconds = time.monotonic() - began
        cluster.kubectl("uncordon", FIRST)
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
    assert back_seconds <= start_seconds + deadline_seconds(60)


def replaced(cluster: Cluster, name: str, uid: str) -> bool:
    """All three workers are ready, and the named one is another Pod."""
    workers = cluster.workers()
    return (
        sum(worker.ready and not worker.deleting for worker in workers) == 3
        and next(worker.uid for worker in workers if worker.name == name) != uid
    )


def test_kubectl_drain_under_load_in_auto(cluster: Cluster, second: AnotherNode, questions: list[Question]) -> None:
    """Both workers of `min 2, max 8`, and what else is on their node, leave it one by one: nothing is lost."""
    shape(cluster, {"min": 2, "max": 2}, ratio=(1, 1))
    wait_until("1P:1D", partial(settled, cluster, {"prefill": 1, "decode": 1}), seconds=240)
    shape(cluster, {"min": 2, "max": 8}, ratio=(1, 1))
    cluster.patch({"balance": {"mode": "Auto"}})
    cluster.kubectl("uncordon", second.name)
    before = {worker.uid for worker in cluster.workers()}
    leaving = len(cluster.read("pods", namespace=EVERYWHERE, fields=f"spec.nodeName={FIRST}")["items"])
    with SteadyLoad(cluster.endpoint(), questions, rate=2) as load:
        wait_until("answers before", partial(load.has, 8), seconds=120)
        began = time.monotonic()
        options = (
            "--force",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            f"--timeout={deadline_seconds(400):.0f}s",
        )
        drained = subprocess.run(
            [BIN / "kubectl", "drain", FIRST, *options], env=cluster.env, capture_output=True, text=True, check=False
        )
        drain_seconds = time.monotonic() - began
        assert drained.returncode == 0, drained.stderr
        wait_until("the workers", lambda: sum(w.ready and not w.deleting for w in cluster.workers()) >= 2, seconds=240)
        wait_until("answers after", partial(load.has, len(load.answered) + 8), seconds=120)
    assert all(answered.right for answered in load.answered), load.summary()
    assert not before & {worker.uid for worker in cluster.workers()}
    on_first = cluster.read("pods", namespace=EVERYWHERE, fields=f"spec.nodeName={FIRST}")["items"]
    assert on_first == []
    print(f"kubectl drain of {leaving} Pods, 2 workers among them: {drain_seconds:.1f} s; "
          f"{len(load.answered)} answers, all right")  # fmt: skip


def test_a_rollout_with_a_surge_under_load(cluster: Cluster, second: AnotherNode, questions: list[Question]) -> None:
    """Both replacements start beside what serves, which then drains: nothing is lost, and two workers serve always.

    An old one whose probes are answered late for a while, beside two engines that start, is still one of them.
    """
    assert len(second.pods()) >= 4
    shape(cluster, {"min": 2, "max": 4}, ratio=(1, 1), rollout={"maxUnavailable": 0, "maxSurge": 2})
    wait_until("1P:1D", partial(settled, cluster, {"prefill": 1, "decode": 1}), seconds=240)
    before = {worker.uid for worker in cluster.workers()}
    fewest = 2
    with SteadyLoad(cluster.endpoint(), questions, rate=2) as load:
        wait_until("answers before", partial(load.has, 8), seconds=120)
        began = time.monotonic()
        cluster.add_engine_args("--max-num-seqs=64")

        def rolled_out() -> bool:
            nonlocal fewest
            workers = cluster.workers()
            staying = [w for w in workers if not w.deleting and w.role != "draining"]
            fewest = min(fewest, sum(w.ready or w.uid in before for w in staying))
            return not before & {worker.uid for worker in workers} and settled(cluster, {"prefill": 1, "decode": 1})

        wait_until("the rollout", rolled_out, seconds=400)
        seconds = time.monotonic() - began
        wait_until("answers after", partial(load.has, len(load.answered) + 8), seconds=120)
    assert all(answered.right for answered in load.answered), load.summary()
    assert fewest == 2
    print(f"rollout of 2 workers with a surge of 2: {seconds:.1f} s; {len(load.answered)} answers, all right")
