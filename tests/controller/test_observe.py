"""From Pods to workers: tables of what is read and what is left alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.controller.snapshots import snapshot_of

from fulcrum.api.names import Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.controller.children import Manifest
from fulcrum.controller.observed import Observed, gateways_send_token
from fulcrum.controller.read_workers import read_worker
from fulcrum.controller.seen import SeenPod
from fulcrum.decide import Termination, WorkerPhase

CLUSTER = {
    "apiVersion": "fulcrum.dev/v1alpha1",
    "kind": "InferenceCluster",
    "metadata": {"name": "c", "namespace": "ns", "uid": "owner", "generation": 3},
    "spec": {"model": {"name": "m"}, "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 2}}]},
}


def pod(name: str = "c-p-0", *, labels: dict[str, str] | None = None, **status: Any) -> Manifest:
    return {
        "metadata": {
            "name": name,
            "uid": "u",
            "labels": {"fulcrum.dev/pool": "p", "fulcrum.dev/role": "decode", **(labels or {})},
            "annotations": {"fulcrum.dev/role-epoch": "4", "fulcrum.dev/spec-hash": "h"},
            "ownerReferences": [{"uid": "owner"}],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1", **status},
    }


def container(**state: Any) -> list[Manifest]:
    return [{"name": "sidecar"}, {"name": "worker", "restartCount": 2, **state}]


def read(manifest: Manifest, acknowledged: frozenset[tuple[str, int, int]] = frozenset()) -> Any:
    return read_worker(manifest, load_inference_cluster(CLUSTER), acknowledged)


def test_a_running_worker() -> None:
    worker = read(
        pod(conditions=[{"type": "Ready", "status": "True"}], containerStatuses=container()), frozenset({("u", 2, 4)})
    )
    assert (worker.pool, worker.ordinal, worker.role, worker.role_epoch, worker.spec_hash) == (
        "p",
        0,
        Role.DECODE,
        4,
        "h",
    )
    assert (worker.ready, worker.deleting, worker.restarts, worker.pod_ip) == (True, False, 2, "10.0.0.1")
    assert worker.role_acknowledged
    assert worker.load is None


@pytest.mark.parametrize(
    ("state", "waiting", "termination"),
    [
        ({"state": {"running": {}}}, None, None),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}}, "CrashLoopBackOff", None),
        (
            {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 71, "message": "x"}}},
            None,
            Termination(exit_code=71, message="x"),
        ),
        (
            {"state": {"terminated": {"exitCode": 70}}, "lastState": {"terminated": {"exitCode": 1}}},
            None,
            Termination(exit_code=70),
        ),
    ],
)
def test_how_a_container_is(state: Manifest, waiting: str | None, termination: Termination | None) -> None:
    worker = read(pod(containerStatuses=container(**state)))
    assert (worker.waiting_reason, worker.termination) == (waiting, termination)


def test_a_pod_without_status_is_pending_and_not_ready() -> None:
    manifest = pod()
    del manifest["status"]
    worker = read(manifest)
    assert (worker.phase, worker.ready, worker.pod_ip) == (WorkerPhase.PENDING, False, None)


def test_the_schedulers_words() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert read(pod(conditions=[condition])).unschedulable == "0/3 nodes"


@pytest.mark.parametrize(
    "change",
    [
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"ownerReferences": [{"uid": "an earlier cluster of the same name"}]},
        {"ownerReferences": None},
    ],
)
def test_what_goes_away_or_is_not_ours_counts_as_going(change: Manifest) -> None:
    manifest = pod()
    manifest["metadata"] |= change
    assert read(manifest).deleting


@pytest.mark.parametrize("name", ["c-p", "c-p-x", "c-q-0", "d-p-0", "c-p-00", "c-p-٣"])
def test_a_pod_whose_name_is_no_workers_is_ignored(name: str) -> None:
    assert read(pod(name)) is None


@pytest.mark.parametrize("role", ["", "captain"])
def test_a_role_that_nobody_knows_is_no_role(role: str) -> None:
    assert read(pod(labels={"fulcrum.dev/role": role})).role is Role.DRAINING


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-01T00:00:00+00:00", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01T00:00:00", None),
        ("yesterday", None),
    ],
)
def test_since_when_a_worker_drains(text: str, moment: datetime | None) -> None:
    manifest = pod()
    manifest["metadata"]["annotations"]["fulcrum.dev/draining-since"] = text
    assert read(manifest).draining_since == moment


def test_since_when_a_worker_is_what_it_is() -> None:
    manifest = pod(conditions=[{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}])
    manifest["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    manifest["metadata"]["annotations"]["fulcrum.dev/role-since"] = "2026-01-01T00:02:00.5+00:00"
    worker = read(manifest)
    assert worker.created == datetime(2026, 1, 1, tzinfo=UTC)
    assert worker.ready_since == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert worker.role_since == datetime(2026, 1, 1, 0, 2, 0, 500_000, tzinfo=UTC)
    manifest["status"]["conditions"][0]["status"] = "False"
    assert read(manifest).ready_since is None


@pytest.mark.parametrize(
    ("annotations", "paused"),
    [
        ({}, False),
        ({"fulcrum.dev/paused": "true"}, True),
        ({"fulcrum.dev/paused": ""}, True),
        ({"fulcrum.dev/paused": "false"}, False),
    ],
)
def test_the_whole_snapshot(annotations: dict[str, str], paused: bool) -> None:
    document = {**CLUSTER, "metadata": {**CLUSTER["metadata"], "annotations": annotations}}  # type: ignore[dict-item]
    observed = Observed(
        cluster=document,
        pods=(pod("c-p-1"), pod("c-p-0"), pod("stranger")),
        deployment={"spec": {"replicas": 2}, "status": {"availableReplicas": 1}},
        service={"spec": {"clusterIP": "10.1.1.1"}},
    )
    snapshot = snapshot_of(observed, load_inference_cluster(document))
    assert [worker.name for worker in snapshot.workers] == ["c-p-0", "c-p-1"]
    assert (snapshot.gateway.desired, snapshot.gateway.ready, snapshot.gateway.cluster_ip) == (2, 1, "10.1.1.1")
    assert (snapshot.generation, snapshot.paused) == (3, paused)


def test_what_a_kubelet_says_and_since_when_it_is_not_ready() -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    since = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": since}]
    worker = read(pod(conditions=conditions, containerStatuses=container(state=state)))
    assert (worker.waiting_reason, worker.waiting_message) == ("ImagePullBackOff", "no such image")
    assert (worker.unready_since, worker.ready_since) == (datetime(2026, 1, 1, tzinfo=UTC), None)


def observed(*pods: Manifest, annotations: dict[str, str] | None = None) -> Any:
    metadata = {**CLUSTER["metadata"], "annotations": annotations or {}}
    cluster = {**CLUSTER, "metadata": metadata}
    return Observed(cluster=cluster, pods=pods, deployment=None, service=None), load_inference_cluster(cluster)


def test_a_pod_with_our_labels_that_is_not_ours_takes_a_name_and_no_place() -> None:
    """Somebody copied the labels: it is no worker, and its name is passed over."""
    foreign = pod("c-p-0")
    foreign["metadata"]["ownerReferences"] = []
    earlier = pod("c-p-1")
    earlier["metadata"]["ownerReferences"] = [{"kind": "InferenceCluster", "name": "c", "uid": "an earlier one"}]
    snapshot = snapshot_of(*observed(foreign, earlier), taken=frozenset({"c-p-7"}))
    assert [(worker.name, worker.deleting) for worker in snapshot.workers] == [("c-p-1", True)]
    assert snapshot.taken_names == {"c-p-0", "c-p-7"}


def test_a_pod_whose_node_is_gone_is_on_its_way_out() -> None:
    snapshot = snapshot_of(*observed(pod()), lost=frozenset({"u"}))
    (worker,) = snapshot.workers
    assert (worker.lost, worker.deleting, worker.live) == (True, True, False)


@pytest.mark.parametrize(("said", "goes_on"), [(None, False), ("2", False), ("3", True)])
def test_a_rollout_goes_on_for_the_generation_that_somebody_named(said: str | None, goes_on: bool) -> None:
    annotations = {"fulcrum.dev/continue-rollout": said} if said else {}
    snapshot = snapshot_of(*observed(annotations=annotations))
    assert snapshot.continues_rollout is goes_on


def test_what_caches_keep_is_all_that_a_worker_is_read_from() -> None:
    """A field that the shape lacks would be absent for every decision."""
    terminated = {"exitCode": 72, "message": "stalled", "reason": "Error", "finishedAt": "2026-01-01T00:04:00Z"}
    whole = pod(
        phase="Running",
        podIP="10.0.0.1",
        conditions=[
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:05:00Z"},
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"},
        ],
        containerStatuses=[
            {
                "name": "worker",
                "restartCount": 3,
                "started": True,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": terminated},
            }
        ],
    )
    whole["metadata"]["resourceVersion"] = "1"
    whole["spec"] = {"nodeName": "n", "containers": [{"name": "worker", "image": "i", "env": [{"name": "A"}]}]}
    whole["metadata"]["annotations"] = {**whole["metadata"].get("annotations", {}), "fulcrum.dev/replaces": "u0"}
    kept = msgspec.to_builtins(msgspec.convert(whole, SeenPod))
    found = read(kept)
    assert found == read(whole)
    assert found is not None
    assert (found.restarts, found.started, found.waiting_reason, found.unschedulable, found.node) == (
        3,
        True,
        "CrashLoopBackOff",
        "no GPU",
        "n",
    )
    assert found.termination is not None
    assert (found.termination.exit_code, found.termination.message, found.replaces) == (72, "stalled", "u0")
    assert found.termination.at == datetime(2026, 1, 1, 0, 4, tzinfo=UTC)
    for state in (whole, kept):
        state["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    assert read(msgspec.to_builtins(msgspec.convert(whole, SeenPod))) == read(kept)


def with_token(manifest: Manifest, fingerprint: str | None) -> Manifest:
    if fingerprint is not None:
        manifest["metadata"].setdefault("annotations", {})["fulcrum.dev/internal-token"] = fingerprint
    return manifest


@pytest.mark.parametrize(
    ("of_pod", "of_cluster", "spec_hash"),
    [
        ("f1", "f1", "h"),
        ("f1", None, "h"),  # nobody knows the token now: nothing is replaced for that
        (None, "f1", "h"),  # made by an operator of the release before: asks for none
        ("f0", "f1", ""),  # of no revision: replaced
        ("f1", "", ""),  # before going back to a release whose gateways send none
        (None, "", "h"),
    ],
)
def test_a_worker_that_asks_for_another_token_is_replaced(
    of_pod: str | None, of_cluster: str | None, spec_hash: str
) -> None:
    observed = Observed(cluster={}, pods=(with_token(pod(), of_pod),), deployment=None, service=None)
    cluster = load_inference_cluster(CLUSTER)
    (worker,) = snapshot_of(observed, cluster, token_fingerprint=of_cluster).workers
    assert worker.spec_hash == spec_hash


def test_new_workers_ask_for_the_token_once_every_gateway_sends_it() -> None:
    def sends(*gateways: Manifest) -> bool:
        return gateways_send_token(Observed(cluster={}, pods=(), deployment=None, service=None, gateways=gateways))

    old, new = {"metadata": {"name": "g0"}}, with_token({"metadata": {"name": "g1"}}, "f1")
    leaving = {"metadata": {"name": "g2", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert sends()
    assert sends(new)
    assert not sends(old, new)
    assert sends(new, leaving)


def test_ports_and_network_are_those_of_the_pod_and_one_pods_nonsense_is_its_own() -> None:
    usual, other, odd = (pod(f"c-p-{number}") for number in range(3))
    other["metadata"]["annotations"]["fulcrum.dev/ports"] = '{"agent":9001}'
    other["spec"] = {"containers": [], "hostNetwork": True}
    odd["metadata"]["annotations"]["fulcrum.dev/ports"] = '{"agent":99999}'
    workers = [read(each) for each in (usual, other, odd)]
    assert [worker and worker.agent and str(worker.agent) for worker in workers] == [
        "10.0.0.1:8001", "10.0.0.1:9001", None,
    ]  # fmt: skip
    assert [worker.host_network for worker in workers] == [False, True, False]
