"""Workers on several nodes whose Pods are placed at once: by Volcano, by Kueue, or by neither, which status says."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml
from tests.controller.test_published_schemas import problems

from fulcrum.api.crd import root_schema
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.api.types import ConditionType, Gang, InferenceClusterSpec
from fulcrum.controller.apply import Applier
from fulcrum.controller.children import Manifest, Owner, worker_pod
from fulcrum.controller.children.worker_group import pod_group, worker_group
from fulcrum.controller.gang_schedulers import API_GROUPS, GangSchedulers, scheduling_note
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import Kube, Resource
from fulcrum.controller.metrics import Metrics
from fulcrum.decide import Snapshot
from fulcrum.kube import ApiError, Unreachable
from fulcrum.report import plan
from fulcrum.rollout import CreateWorker, DeleteWorker, worker_revision
from fulcrum_local.apiserver.model_types import model_of

OWNER = Owner(name="c", namespace="ml", uid="u-1")
CRDS = Path(__file__).parents[2].parent / "shared" / "reference" / "crds"
POOL: dict[str, Any] = {
    "name": "p",
    "accelerator": "H200-SXM-141GB",
    "parallelism": {"data": 16, "experts": True},
    "gpu": {"perNode": 8},
    "workers": {"max": 4},
}


def spec_of(scheduling: dict[str, Any] | None = None, **pool: Any) -> InferenceClusterSpec:
    document = {"model": {"name": "m"}, "pools": [{**POOL, **pool}], "scheduling": scheduling or {}}
    return msgspec.convert(document, InferenceClusterSpec)


def pod_of(spec: InferenceClusterSpec) -> Manifest:
    return worker_pod(OWNER, spec, spec.pools[0], ordinal=3, role=Role.MIXED, image="i")


def group_of(gang: Gang, queue: str | None = None, **pool: Any) -> Manifest:
    spec = spec_of(**pool)
    return worker_group(pod_of(spec), spec.pools[0], gang=gang, queue=queue)


def templates(group: Manifest) -> list[Manifest]:
    template = group["spec"]["leaderWorkerTemplate"]
    return [template["leaderTemplate"], template["workerTemplate"]]


@cache
def published(name: str) -> StructuralSchema:
    path = CRDS / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    (version,) = (each for each in document["spec"]["versions"] if each["storage"])
    return StructuralSchema(version["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("queue", [None, "team-a"])
@pytest.mark.parametrize("pool", [{}, {"priorityClassName": "high"}])
def test_a_pod_group_is_what_volcano_takes(queue: str | None, pool: dict[str, Any]) -> None:
    spec = spec_of(**pool)
    made = pod_group(pod_of(spec), spec.pools[0], queue=queue)
    schema = published("scheduling.volcano.sh_podgroups.yaml")
    assert schema.unknown_fields(made) == []
    assert [str(error) for error in schema.validate(schema.default(made))] == []
    assert made["spec"]["minMember"] == 2
    assert made["spec"].get("queue") == queue
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u-1"


@pytest.mark.parametrize("gang", list(Gang))
def test_a_group_is_what_its_controller_takes(gang: Gang) -> None:
    group = group_of(gang, "team-a")
    schema = published("leaderworkerset.x-k8s.io_leaderworkersets.yaml")
    assert schema.unknown_fields(group) == []
    assert [str(error) for error in schema.validate(schema.default(group))] == []
    model = model_of("", "v1", "Pod")
    assert model is not None
    for template in templates(group):
        assert problems({"apiVersion": "v1", "kind": "Pod", **template}, model, "Pod") == []


def test_all_pods_of_volcanos_groups_name_the_pod_group_and_no_other_pods_do() -> None:
    spec = spec_of()
    name = pod_group(pod_of(spec), spec.pools[0], queue="q")["metadata"]["name"]
    assert name.startswith("c-p-3-")
    group = group_of(Gang.VOLCANO, "q")
    for part in (group, *templates(group)):
        assert part["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == name
    assert [each["spec"]["schedulerName"] for each in templates(group)] == ["volcano", "volcano"]
    for gang in (Gang.OFF, Gang.KUEUE):
        other = group_of(gang, "q")
        for part in (other, *templates(other)):
            assert "scheduling.k8s.io/group-name" not in (part["metadata"].get("annotations") or {})
        assert all("schedulerName" not in each["spec"] for each in templates(other))
    own = group_of(Gang.VOLCANO, template={"spec": {"schedulerName": "ours"}})
    assert [each["spec"]["schedulerName"] for each in templates(own)] == ["ours", "ours"]


def test_another_size_or_queue_is_another_pod_group() -> None:
    two, four = spec_of(), spec_of(parallelism={"data": 32, "experts": True})
    names = {
        pod_group(pod_of(spec), spec.pools[0], queue=queue)["metadata"]["name"]
        for spec in (two, four)
        for queue in (None, "q")
    }
    assert len(names) == 4


def test_kueue_finds_the_queue_on_the_set_alone() -> None:
    group = group_of(Gang.KUEUE, "team-a")
    assert group["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert all("kueue.x-k8s.io/queue-name" not in each["metadata"]["labels"] for each in templates(group))
    assert group_of(Gang.KUEUE)["metadata"] == group_of(Gang.OFF)["metadata"]


def test_who_schedules_a_worker_is_no_part_of_its_revision() -> None:
    plain, queued = spec_of(), spec_of({"gang": "Kueue", "queue": "team-a"})
    hashes = {worker_revision(cluster="c", spec=spec, pool=spec.pools[0]) for spec in (plain, queued)}
    assert len(hashes) == 1


def test_kueue_needs_a_queue() -> None:
    schema = StructuralSchema(root_schema())
    spec = {"model": {"name": "m"}, "pools": [POOL], "scheduling": {"gang": "Kueue"}}
    document = {"apiVersion": "fulcrum.dev/v1alpha1", "kind": "InferenceCluster", "metadata": {"name": "c"}}
    (message,) = (e.message for e in schema.validate(schema.default({**document, "spec": spec})))
    assert "names a LocalQueue" in message


class Server:
    """An API server that has the kinds of some schedulers, or does not answer."""

    def __init__(self, *there: Gang, answers: bool = True) -> None:
        self.there, self.answers, self.asked = there, answers, 0

    @property
    def api(self) -> Server:
        return self

    async def get(self, path: str) -> dict[str, Any]:
        self.asked += 1
        if not self.answers:
            raise Unreachable("no answer")
        if path not in {API_GROUPS[gang] for gang in self.there}:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return {}


def schedulers(server: Server, seconds: list[float] | None = None) -> GangSchedulers:
    clock = seconds or [0.0]
    return GangSchedulers(cast("Kube", server), resync_seconds=60.0, clock=lambda: clock[0])


@pytest.mark.parametrize(
    ("there", "scheduling", "chosen"),
    [
        ((), {}, Gang.OFF),
        ((Gang.VOLCANO,), {}, Gang.VOLCANO),
        ((Gang.VOLCANO, Gang.KUEUE), {"queue": "q"}, Gang.VOLCANO),
        ((Gang.KUEUE,), {"queue": "q"}, Gang.KUEUE),
        ((Gang.KUEUE,), {}, Gang.OFF),
        ((Gang.VOLCANO,), {"gang": "Off"}, Gang.OFF),
        ((Gang.VOLCANO,), {"gang": "Kueue", "queue": "q"}, Gang.KUEUE),
    ],
)
async def test_auto_takes_what_is_there(there: tuple[Gang, ...], scheduling: dict[str, Any], chosen: Gang) -> None:
    assert await schedulers(Server(*there)).chosen(spec_of(scheduling)) is chosen


async def test_workers_of_one_pod_ask_nothing() -> None:
    server = Server(Gang.VOLCANO)
    spec = spec_of({"gang": "Auto"}, parallelism={"data": 8})
    assert await schedulers(server).chosen(spec) is Gang.OFF
    assert server.asked == 0
    assert scheduling_note(spec, Gang.OFF) == ""


async def test_a_scheduler_that_is_named_and_not_there_makes_no_worker_and_says_so() -> None:
    asked = spec_of({"gang": "Volcano"})
    found = await schedulers(Server()).missing(asked)
    assert found["p"].reason is Reason.GANG_SCHEDULER_MISSING
    assert "install Volcano" in found["p"].message
    assert await schedulers(Server(Gang.VOLCANO)).missing(asked) == {}
    assert await schedulers(Server(answers=False)).missing(asked) == {}, "unknown is not missing"
    assert await schedulers(Server()).missing(spec_of()) == {}


async def test_an_answer_stands_for_a_while_and_through_silence() -> None:
    server, seconds = Server(Gang.VOLCANO), [0.0]
    found = schedulers(server, seconds)
    assert await found.has(Gang.VOLCANO)
    seconds[0], server.answers = 100.0, False
    assert await found.has(Gang.VOLCANO)
    assert server.asked == 2
    server.answers, server.there = True, ()
    assert await found.has(Gang.VOLCANO) is False
    assert await found.has(Gang.VOLCANO) is False
    assert server.asked == 3


def test_progressing_says_that_pods_start_one_by_one() -> None:
    spec = spec_of()
    note = scheduling_note(spec, Gang.OFF)
    assert "start Pod by Pod" in note
    assert scheduling_note(spec, Gang.VOLCANO) == scheduling_note(spec_of({"gang": "Off"}), Gang.OFF) == ""
    decided = plan(Snapshot(name="c", generation=1, spec=spec, scheduling_note=note), datetime.now(UTC))
    said = {condition.type: condition.message for condition in decided.status.conditions}
    assert note in said[ConditionType.PROGRESSING]


class Recorder:
    """Takes note of what is written."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []

    async def create(self, resource: Resource, manifest: Manifest) -> Manifest | None:
        self.calls.append(("create", resource.kind, manifest["metadata"]["name"]))
        return {**manifest, "metadata": {**manifest["metadata"], "uid": "u-new"}}

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str | None, grace_seconds: int | None = None
    ) -> None:
        self.calls.append(("delete", resource.kind, name))


async def test_the_pod_group_comes_before_its_pods_and_goes_with_them() -> None:
    spec, recorder = spec_of(), Recorder()
    name = pod_group(pod_of(spec), spec.pools[0], queue=None)["metadata"]["name"]
    standing = group_of(Gang.VOLCANO)["metadata"] | {"uid": "u-set"}
    applier = Applier(
        cast("Kube", recorder),
        Metrics(),
        OWNER,
        spec,
        images={},
        groups=[{"metadata": standing}],
        installation=Installation(),
        gang=Gang.VOLCANO,
        token_fingerprint=None,
    )
    create = CreateWorker(name="c-p-3", pool="p", ordinal=3, role=Role.MIXED, reason=Reason.WORKER_CREATED)
    delete = DeleteWorker(name="c-p-3-0", uid="u-set", reason=Reason.WORKER_REMOVED, force=False)
    await applier.carry_out([create], now=datetime.now(UTC), changed=lambda _: None)
    await applier.carry_out([delete], now=datetime.now(UTC), changed=lambda _: None)
    assert recorder.calls == [
        ("create", "PodGroup", name),
        ("create", "LeaderWorkerSet", "c-p-3"),
        ("delete", "LeaderWorkerSet", "c-p-3"),
        ("delete", "PodGroup", name),
    ]
