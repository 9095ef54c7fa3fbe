"""Workers on several nodes: the LeaderWorkerSet that is made, and groups of Pods as single workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
from tests.charts.foreign_kinds import foreign_crds
from tests.controller.snapshots import snapshot_of
from tests.controller.test_published_schemas import of, problems

from fulcrum.api.device_fault import DeviceFault, said
from fulcrum.api.names import Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.reasons import Reason
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.api.worker import EXIT_DEVICE_FAILED, WorkerConfig
from fulcrum.controller.apply import Applier
from fulcrum.controller.children import Manifest, Owner, children, worker_pod
from fulcrum.controller.children.worker_group import worker_group
from fulcrum.controller.groups import followers_of, groups_missing, with_leaders, worker_pods
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import Kube, Resource
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.observed import Observed
from fulcrum.decide import WorkerPhase
from fulcrum.rollout import DeleteWorker
from fulcrum.rollout.failed_gpus import failed_gpus
from fulcrum_local.apiserver.model_types import model_of

OWNER = Owner(name="c", namespace="ml", uid="u-1")
POOL: dict[str, Any] = {
    "name": "p",
    "accelerator": "H100-SXM-80GB",
    "parallelism": {"tensor": 16},
    "gpu": {"perNode": 8},
    "workers": {"max": 4},
}
LABELS = {"fulcrum.dev/cluster": "c", "fulcrum.dev/pool": "p", "app.kubernetes.io/component": "worker"}


def spec_of(**pool: Any) -> InferenceClusterSpec:
    return msgspec.convert({"model": {"name": "m"}, "pools": [{**POOL, **pool}]}, InferenceClusterSpec)


def group_of(**pool: Any) -> Manifest:
    spec = spec_of(**pool)
    pod = worker_pod(OWNER, spec, spec.pools[0], ordinal=3, role=Role.DECODE, image="i", token_fingerprint="f")
    return worker_group(pod, spec.pools[0])


def templates(group: Manifest) -> tuple[Manifest, Manifest]:
    template = group["spec"]["leaderWorkerTemplate"]
    return template["leaderTemplate"], template["workerTemplate"]


def container(template: Manifest) -> Manifest:
    return next(c for c in template["spec"]["containers"] if c["name"] == "worker")


@pytest.mark.parametrize(
    ("tensor", "pipeline", "per_node", "nodes"), [(16, 1, 8, 2), (8, 1, 8, 1), (4, 1, 8, 1), (8, 4, 8, 4), (2, 1, 1, 2)]
)
def test_nodes_of_a_worker(tensor: int, pipeline: int, per_node: int, nodes: int) -> None:
    pool = {"parallelism": {"tensor": tensor, "pipeline": pipeline}, "gpu": {"perNode": per_node}}
    assert spec_of(**pool).pools[0].nodes == nodes


@pytest.mark.parametrize(
    "pool",
    [
        {},
        {"gpu": {"perNode": 4, "resourceClaimTemplate": "four"}},
        {"rdma": {"count": 8}, "template": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
        {"roles": ["mixed"], "parallelism": {"tensor": 8, "pipeline": 2}},
    ],
)
def test_it_is_what_the_published_schemas_take(pool: dict[str, Any]) -> None:
    group = group_of(**pool)
    crd = next(crd for crd in foreign_crds() if crd["spec"]["names"]["kind"] == "LeaderWorkerSet")
    schema = StructuralSchema(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    assert schema.unknown_fields(group) == []
    assert [str(error) for error in schema.validate(schema.default(group))] == []
    model = model_of("", "v1", "Pod")
    assert model is not None
    for template in templates(group):
        assert problems({"apiVersion": "v1", "kind": "Pod", **template}, model, "Pod") == []


def test_the_leader_is_the_worker_and_the_others_have_no_role_and_no_token() -> None:
    group = group_of()
    leader, follower = templates(group)
    assert group["metadata"]["name"] == "c-p-3"
    assert group["metadata"]["labels"] == leader["metadata"]["labels"]
    assert leader["metadata"]["labels"]["fulcrum.dev/role"] == "decode"
    assert {"fulcrum.dev/role", "llm-d.ai/role"}.isdisjoint(follower["metadata"]["labels"])
    assert follower["metadata"]["labels"]["app.kubernetes.io/component"] == "follower"
    assert container(follower)["command"] == ["python3", "-m", "fulcrum_worker.follower"]
    assert {"ports", "startupProbe", "readinessProbe", "livenessProbe"}.isdisjoint(container(follower))
    named = {entry["name"] for entry in container(leader)["env"]} - {
        entry["name"] for entry in container(follower)["env"]
    }
    assert named == {"VLLM_API_KEY"}


def test_each_pod_asks_for_the_gpus_of_its_node_and_knows_how_many_share_the_worker() -> None:
    for template in templates(group_of()):
        assert container(template)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        config = next(e["value"] for e in container(template)["env"] if e["name"] == "FULCRUM_WORKER_CONFIG")
        decoded = msgspec.json.decode(config, type=WorkerConfig)
        assert (decoded.tensor_parallel, decoded.nodes) == (16, 2)


def test_followers_and_workers_reach_each_other_and_other_clusters_have_the_policy_that_they_had() -> None:
    def policy(**pool: Any) -> Manifest:
        made = children(OWNER, spec_of(**pool), token_fingerprint="f")
        return next(
            each for each in made if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "c-workers"
        )

    assert of(policy()) == []
    (both,) = policy()["spec"]["podSelector"]["matchExpressions"]
    assert both["values"] == ["follower", "worker"]
    assert policy()["spec"]["ingress"][0]["from"] == [{"podSelector": policy()["spec"]["podSelector"]}]
    alone = policy(parallelism={"tensor": 8})["spec"]["podSelector"]
    assert alone == {"matchLabels": {"fulcrum.dev/cluster": "c", "app.kubernetes.io/component": "worker"}}


def seen_pod(name: str, group: str | None = None, component: str = "worker", **fields: Any) -> Manifest:
    labels = {**LABELS, "app.kubernetes.io/component": component}
    if group is not None:
        labels["leaderworkerset.sigs.k8s.io/name"] = group
    metadata = {"name": name, "uid": f"u-{name}", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": "Running"}, **fields}


def seen_set(name: str, **metadata: Any) -> Manifest:
    owner = [{"kind": "InferenceCluster", "name": "c", "uid": "u-1"}]
    whole = {"name": name, "uid": f"u-{name}", "labels": {**LABELS, "fulcrum.dev/role": "decode"}, **metadata}
    return {"metadata": {"ownerReferences": owner, "creationTimestamp": "2026-01-01T00:00:00Z", **whole}}


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPUs"}


def workers_of(pods: list[Manifest], groups: list[Manifest]) -> dict[str, Any]:
    document = {
        "apiVersion": "fulcrum.dev/v1alpha1",
        "kind": "InferenceCluster",
        "metadata": {"name": "c", "namespace": "ml", "uid": "u-1"},
        "spec": {"model": {"name": "m"}, "pools": [POOL]},
    }
    seen = tuple(worker_pods(pods, groups))
    observed = Observed(cluster=document, pods=seen, deployment=None, service=None, groups=tuple(groups))
    snapshot = snapshot_of(observed, load_inference_cluster(document))
    assert {group["metadata"]["name"] for group in groups} <= snapshot.taken_names
    return {worker.name: worker for worker in snapshot.workers}


def test_a_group_is_one_worker_whatever_pods_it_has() -> None:
    follower = seen_pod("c-p-0-0-1", "c-p-0", "follower")
    workers = workers_of([seen_pod("c-p-0-0", "c-p-0"), follower], [seen_set("c-p-0")])
    assert {name: (w.ordinal, w.uid, w.deleting) for name, w in workers.items()} == {"c-p-0-0": (0, "u-c-p-0-0", False)}


def test_a_group_whose_leader_is_not_there_yet_has_its_place() -> None:
    (worker,) = workers_of([], [seen_set("c-p-2")]).values()
    assert (worker.name, worker.ordinal, worker.role, worker.phase) == ("c-p-2-0", 2, Role.DECODE, WorkerPhase.PENDING)
    assert not worker.deleting


def test_a_group_ends_with_its_set_and_counts_until_its_leader_is_gone() -> None:
    leader = seen_pod("c-p-0-0", "c-p-0")
    (ending,) = workers_of([leader], [seen_set("c-p-0", deletionTimestamp="2026-01-01T00:00:00Z")]).values()
    (orphan,) = workers_of([leader], []).values()
    assert (ending.deleting, orphan.deleting) == (True, True)


def test_a_follower_that_is_left_keeps_its_place_and_its_gpus() -> None:
    (worker,) = workers_of([seen_pod("c-p-0-0-1", "c-p-0", "follower")], []).values()
    assert (worker.name, worker.ordinal, worker.deleting) == ("c-p-0-0", 0, True)


def test_a_worker_is_lost_with_the_node_of_any_of_its_pods() -> None:
    leader, other = seen_pod("c-p-0-0", "c-p-0"), seen_pod("c-p-1-0", "c-p-1")
    followers = followers_of([leader, other, seen_pod("c-p-0-0-1", "c-p-0", "follower"), seen_pod("c-q-0")])
    assert [pod["metadata"]["name"] for pod in followers] == ["c-p-0-0-1"]
    lost = with_leaders(frozenset({"u-c-p-0-0-1"}), [leader, other], followers)
    assert lost == {"u-c-p-0-0-1", "u-c-p-0-0"}
    assert with_leaders(frozenset(), [leader, seen_pod("c-q-0")], followers) == frozenset()


async def test_a_lost_group_is_given_up_with_all_of_its_pods() -> None:
    deleted: list[tuple[str, str, int | None]] = []

    class Recorder:
        async def delete(
            self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
        ) -> None:
            deleted.append((resource.kind, name, grace_seconds))

    spec = spec_of()
    applier = Applier(
        cast("Kube", Recorder()),
        Metrics(),
        OWNER,
        spec,
        images={},
        groups=[seen_set("c-p-0")],
        followers=[seen_pod("c-p-0-0-1", "c-p-0", "follower"), seen_pod("c-p-1-0-1", "c-p-1", "follower")],
        installation=Installation(),
        token_fingerprint=None,
    )
    action = DeleteWorker(name="c-p-0-0", uid="u-c-p-0-0", reason=Reason.NODE_LOST, force=True)
    await applier.carry_out([action], now=datetime.now(UTC), changed=lambda _: None)
    assert deleted == [("LeaderWorkerSet", "c-p-0", None), ("Pod", "c-p-0-0", 0), ("Pod", "c-p-0-0-1", 0)]


def test_a_follower_without_a_node_keeps_the_worker_from_starting() -> None:
    follower = seen_pod("c-p-0-0-1", "c-p-0", "follower", status={"phase": "Pending", "conditions": [UNSCHEDULABLE]})
    (worker,) = workers_of([seen_pod("c-p-0-0", "c-p-0"), follower], [seen_set("c-p-0")]).values()
    assert worker.unschedulable == "no GPUs"


def test_a_gpu_that_failed_in_a_follower_is_one_of_the_followers_node() -> None:
    message = said(DeviceFault("GPU is lost", "rank TP9"))
    ended = {"terminated": {"exitCode": EXIT_DEVICE_FAILED, "message": message, "finishedAt": "2026-01-02T00:00:00Z"}}
    follower = seen_pod(
        "c-p-0-0-1",
        "c-p-0",
        "follower",
        spec={"containers": [], "nodeName": "n7"},
        status={"phase": "Running", "containerStatuses": [{"name": "worker", "lastState": ended}]},
    )
    leader = seen_pod("c-p-0-0", "c-p-0", spec={"containers": [], "nodeName": "n1"})
    (worker,) = workers_of([leader, follower], [seen_set("c-p-0")]).values()
    (gpu,) = failed_gpus([worker], InferenceClusterStatus(), datetime(2026, 1, 2, 1, tzinfo=UTC))
    assert (gpu.node, gpu.gpu, gpu.time) == ("n7", "rank TP9", "2026-01-02T00:00:00Z")
    # The LeaderWorkerSet controller deletes the group at once: its node is named all the same.
    leader["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:01Z"
    (worker,) = workers_of([leader, follower], [seen_set("c-p-0")]).values()
    assert failed_gpus([worker], InferenceClusterStatus(), datetime(2026, 1, 2, 1, tzinfo=UTC)) == (gpu,)


def test_all_pods_of_a_group_avoid_the_nodes_of_failed_gpus() -> None:
    spec = spec_of()
    pod = worker_pod(OWNER, spec, spec.pools[0], ordinal=0, role=Role.DECODE, image="i", avoided_nodes=["n1"])
    for template in templates(worker_group(pod, spec.pools[0])):
        affinity = template["spec"]["affinity"]
        assert affinity["nodeAffinity"] == pod["spec"]["affinity"]["nodeAffinity"]
        assert "podAffinity" in affinity
        assert problems({"apiVersion": "v1", "kind": "Pod", **template}, model_of("", "v1", "Pod"), "Pod") == []


def test_a_set_of_somebody_else_with_our_label_is_left_alone() -> None:
    foreign = seen_set("c-p-0", ownerReferences=[{"kind": "Other", "name": "x", "uid": "u-9"}])
    assert workers_of([seen_pod("c-p-0-0", "c-p-0")], [foreign]) == {}


def test_only_pools_on_several_nodes_miss_the_kind() -> None:
    assert groups_missing(spec_of(parallelism={"tensor": 8})) == {}
    assert groups_missing(spec_of(workers={"max": 0})) == {}
    assert "leaderworkerset.x-k8s.io/v1" in groups_missing(spec_of())["p"].message
