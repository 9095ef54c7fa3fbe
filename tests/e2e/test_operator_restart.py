"""A restarted operator with an empty memory finds everything as it should be, and writes nothing."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest
from local_cluster import Cluster, wait_until
from processes import processes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

NAMESPACE = "fulcrum-system"
WATCHED_SECONDS = 15
"""How long after its restart the operator must keep still; it reconciles within the first of them."""
OTHER_WRITERS = {
    # Who holds the lock is not about any cluster.
    ("leases", ""),
    # The kubelet and the Deployment controller report that the operator's own Pod was restarted.
    ("pods", "status"), ("nodes", "status"), ("deployments", "status"), ("replicasets", "status"), ("events", ""),
    ("serviceaccounts", "token"),
}  # fmt: skip


def writes(cluster: Cluster) -> Counter[tuple[str, str, str]]:
    """Writing requests so far, by (verb, resource, subresource), as the API server counts them."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for labels, value in re.findall(
        r"^apiserver_request_total\{(.*)\} (\S+)$", cluster.kubectl("get", "--raw", "/metrics"), re.MULTILINE
    ):
        of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if of["verb"] not in {"GET", "LIST", "WATCH", "CONNECT"}:
            counted[of["verb"], of["resource"], of.get("subresource", "")] += int(float(value))
    assert counted, "the API server counts no writing requests"
    return counted


def events(cluster: Cluster) -> set[str]:
    return {event["metadata"]["resourceVersion"] for event in cluster.read("events")["items"]}


def others(counted: Counter[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
    """Writes about clusters."""
    return {key: n for key, n in counted.items() if key[1:] not in OTHER_WRITERS}


def is_at_rest(cluster: Cluster) -> bool:
    """Nothing of the tests before is being written any more."""
    before = writes(cluster)
    time.sleep(3)
    return others(writes(cluster)) == others(before)


def operator_restarts(cluster: Cluster) -> int:
    (pod,) = cluster.read("pods", namespace=NAMESPACE)["items"]
    (status,) = pod["status"]["containerStatuses"]
    return int(status["restartCount"]) if status["ready"] else -1


def test_an_unchanged_cluster_is_left_alone(whole: Cluster) -> None:
    (pod,) = whole.read("pods", namespace=NAMESPACE)["items"]
    restarts = wait_until("the operator", lambda: operator_restarts(whole) + 1, seconds=120) - 1
    wait_until("a cluster at rest", lambda: is_at_rest(whole), seconds=180)
    before, events_before = writes(whole), events(whole)
    processes(whole, pod=pod["metadata"]["name"])[0].kill()
    wait_until("the operator to be back", lambda: operator_restarts(whole) > restarts, seconds=120)
    until = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < until:
        assert not others(writes(whole) - before)
        time.sleep(1)
    assert events(whole) == events_before
    # It did look: a change is acted upon.
    whole.patch_ratio(3, 1)
    wait_until("3P:1D", lambda: whole.roles() == {"prefill": 3, "decode": 1}, seconds=120)
    written = writes(whole) - before
    assert ("PATCH", "inferenceclusters", "") in written, "kubectl's own patch was not counted"
    assert ("PATCH", "pods", "") in written, f"the flip was not counted: {written}"
