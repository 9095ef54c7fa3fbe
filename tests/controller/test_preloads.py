"""The Job that downloads weights ahead of workers: its document, when it is made, and what its state leads to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from kubernetes import client
from tests.controller.test_published_schemas import OWNER, of
from tests.decide.world import World

from fulcrum.api.names import Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceCluster, InferenceClusterSpec, InferenceClusterStatus, PreloadStatus
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.controller.children import worker_pod
from fulcrum.controller.children.preload_job import preload_job
from fulcrum.controller.installation import Installation
from fulcrum.controller.preloads import Preloads, held_up
from fulcrum.decide import ObservedWorker, Refusal, WorkerPhase
from fulcrum.kube import ApiError
from fulcrum.report import plan
from fulcrum.rollout import CreateWorker

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEMPLATE = {
    "spec": {
        "imagePullSecrets": [{"name": "pull"}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [{"name": "worker", "env": [{"name": "HF_ENDPOINT", "value": "http://mirror"}]}],
    }
}


def cluster_of(*, status: PreloadStatus | None = None, paused: bool = False, **model: Any) -> InferenceCluster:
    metadata: dict[str, Any] = {"name": "chat", "namespace": "ml", "uid": "u-1", "generation": 1}
    if paused:
        metadata["annotations"] = {"fulcrum.dev/paused": "true"}
    cache = {"persistentVolumeClaim": "models", "preload": True}
    spec = {
        "model": {"name": "org/m", "cache": cache, "credentials": {"secretName": "hf"}, **model},
        "pools": [
            {"name": "h100", "accelerator": "H100-SXM-80GB", "workers": {"min": 1, "max": 4}, "template": TEMPLATE}
        ],
    }
    document = {"apiVersion": "fulcrum.dev/v1alpha1", "kind": "InferenceCluster", "metadata": metadata, "spec": spec}
    found = load_inference_cluster(document)
    return msgspec.structs.replace(found, status=InferenceClusterStatus(preload=status))


def job_of(spec: InferenceClusterSpec) -> dict[str, Any]:
    return preload_job(OWNER, spec, spec.pools[0], image="i", model=None)


def test_the_job_is_as_published_and_asks_for_no_gpu() -> None:
    job = job_of(cluster_of(revision="v1").spec)
    pod = job["spec"]["template"]
    assert of({"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "p", **pod["metadata"]}}) == []
    known = client.ApiClient()._ApiClient__deserialize(job, "V1Job")  # type: ignore[attr-defined]
    assert client.ApiClient().sanitize_for_serialization(known) == job, "a field that V1Job does not have"
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python3", "-m", "fulcrum_worker.preload", "org/m", "--revision=v1"]
    assert set(container["resources"]["limits"]) == set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert not pod["spec"]["automountServiceAccountToken"]
    assert [reference["uid"] for reference in job["metadata"]["ownerReferences"]] == ["u-1"]
    assert len(job["metadata"]["name"]) <= 57, "its Pods add six characters to a label of 63"


def test_the_job_pulls_and_downloads_as_workers_do() -> None:
    spec = cluster_of().spec
    made, worker = (
        job_of(spec)["spec"]["template"]["spec"],
        worker_pod(OWNER, spec, spec.pools[0], ordinal=0, role=Role.MIXED, image="i", token_fingerprint="f")["spec"],
    )
    for name in ("imagePullSecrets", "tolerations", "securityContext"):
        assert made[name] == worker[name]
    assert {volume["name"] for volume in made["volumes"]} == {"cache", "tmp"}
    assert next(v for v in made["volumes"] if v["name"] == "cache") in worker["volumes"]
    assert {each["name"] for each in made["containers"][0]["env"]} == {"HF_TOKEN", "HF_ENDPOINT"}
    assert made["containers"][0]["image"] == worker["containers"][0]["image"]


def test_its_name_follows_from_claim_model_and_revision() -> None:
    other = {"persistentVolumeClaim": "c", "preload": True}
    names = {
        job_of(cluster_of(**m).spec)["metadata"]["name"]
        for m in ({}, {"revision": "v2"}, {"name": "o"}, {"cache": other})
    }
    assert len(names) == 4
    assert job_of(cluster_of(maxModelLen=1000).spec)["metadata"]["name"] in names


class Jobs:
    """An API server with Jobs only; `refuses` is the code of its answers."""

    def __init__(self, *, refuses: int | None = None) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.refuses = refuses

    async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any] | None:
        self.calls.append("get")
        return self.jobs.get(name)

    async def create(self, resource: Any, manifest: dict[str, Any]) -> dict[str, Any] | None:
        self.calls.append("create")
        if self.refuses is not None:
            raise ApiError(self.refuses, "no", "the server could not find the requested resource")
        begun = {"uid": "j-1", "creationTimestamp": NOW.isoformat()}
        made = {**manifest, "metadata": {**manifest["metadata"], **begun}, "status": {}}
        self.jobs[manifest["metadata"]["name"]] = made
        return made

    def end(self, kind: str, **condition: str) -> None:
        for job in self.jobs.values():
            job["status"] = {"conditions": [{"type": kind, "status": "True", **condition}]}

    def look(self, cluster: InferenceCluster, *pods: dict[str, Any], after_seconds: float = 0) -> PreloadStatus | None:
        kube: Any = self
        self.calls.clear()
        now = NOW + timedelta(seconds=after_seconds)
        return asyncio.run(Preloads(kube, Installation()).of(OWNER, cluster, ModelFacts(), pods, now))


def test_a_job_is_made_once_and_is_not_looked_at_once_it_is_complete() -> None:
    jobs = Jobs()
    running = jobs.look(cluster_of())
    assert running is not None
    assert (running.state, jobs.calls) == ("Running", ["get", "create"])
    assert (jobs.look(cluster_of(status=running)), jobs.calls) == (running, ["get"])
    jobs.end("Complete")
    complete = jobs.look(cluster_of(status=running))
    assert complete is not None
    assert complete.state == "Complete"
    jobs.jobs.clear()  # after ttlSecondsAfterFinished
    assert (jobs.look(cluster_of(status=complete)), jobs.calls) == (complete, [])
    other = jobs.look(cluster_of(status=complete, revision="v2"))
    assert other is not None
    assert (other.state, jobs.calls) == ("Running", ["get", "create"])


def test_a_failure_says_the_programs_last_line_and_is_run_again_when_the_job_is_deleted() -> None:
    jobs = Jobs()
    running = jobs.look(cluster_of())
    jobs.end("Failed", message="Job has reached the specified backoff limit")
    ended = {"terminated": {"exitCode": 1, "message": "1 of 2 GB\norg/m cannot be downloaded: GatedRepoError: 403\n"}}
    owner = {"uid": "j-1", "kind": "Job", "name": "x"}
    pod = {"metadata": {"ownerReferences": [owner]}, "status": {"containerStatuses": [{"state": ended}]}}
    failed = jobs.look(cluster_of(status=running), pod)
    assert failed is not None
    assert failed.message is not None
    assert "GatedRepoError: 403" in failed.message
    assert f"kubectl delete job {failed.job}" in failed.message
    without = jobs.look(cluster_of(status=running))
    assert without is not None
    assert "backoff limit" in (without.message or "")
    jobs.jobs.clear()
    again = jobs.look(cluster_of(status=failed))
    assert again is not None
    assert (again.state, jobs.calls) == ("Running", ["get", "create"])
    for status in (again, jobs.look(cluster_of(status=again))):
        assert held_up(status, cluster_of(), ()) == {}, "workers waited for the first try"


def test_a_program_that_was_killed_is_said_to_be() -> None:
    jobs = Jobs()
    running = jobs.look(cluster_of())
    jobs.end("Failed", message="Job has reached the specified backoff limit")
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "org/m: 3.0 of 140.0 GB"}}
    owner = {"uid": "j-1", "kind": "Job", "name": "x"}
    pod = {"metadata": {"ownerReferences": [owner]}, "status": {"containerStatuses": [{"state": ended}]}}
    failed = jobs.look(cluster_of(status=running), pod)
    assert failed is not None
    assert "OOMKilled (exit code 137)" in (failed.message or "")


@pytest.mark.parametrize("code", [409, 429, 500, 503])
def test_an_api_server_that_is_busy_ends_no_wait(code: int) -> None:
    for known in (None, PreloadStatus(job=job_of(cluster_of().spec)["metadata"]["name"], state="Running")):
        found = Jobs(refuses=code).look(cluster_of(status=known))
        assert found is not None
        assert found.state == "Running"
        assert held_up(found, cluster_of(), ()) != {}


def test_workers_do_not_wait_for_a_pod_that_does_not_start() -> None:
    jobs = Jobs()
    running = jobs.look(cluster_of())
    owner = {"uid": "j-1", "kind": "Job", "name": "x"}
    for phase, waits in (("Pending", False), ("Running", True)):
        pod = {"metadata": {"ownerReferences": [owner]}, "status": {"phase": phase}}
        assert held_up(jobs.look(cluster_of(status=running), pod, after_seconds=10), cluster_of(), ()) != {}
        late = jobs.look(cluster_of(status=running), pod, after_seconds=1000)
        assert (held_up(late, cluster_of(), ()) != {}) is waits
        assert late is not None
        assert ("kubectl describe job" in (late.message or "")) is not waits


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "cache", "hostPath": {"path": "/"}}]},
        {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}},
        {"containers": "x"},
        {"containers": [{"name": "worker", "env": "x"}]},
    ],
)
def test_no_job_is_made_from_a_template_that_is_refused(spec: dict[str, Any]) -> None:
    cluster = cluster_of()
    (sound,) = cluster.spec.pools
    made = Jobs()
    made.look(cluster)
    bad = msgspec.structs.replace(sound, name="bad", template={"spec": spec})
    for pools, calls in (((bad,), []), ((bad, sound), ["get", "create"])):
        jobs = Jobs()
        jobs.look(msgspec.structs.replace(cluster, spec=msgspec.structs.replace(cluster.spec, pools=pools)))
        assert jobs.calls == calls
        assert jobs.jobs == (made.jobs if calls else {})


def test_a_job_that_goes_is_waited_for() -> None:
    jobs = Jobs()
    jobs.look(cluster_of())
    (job,) = jobs.jobs.values()
    for changes in (
        {"deletionTimestamp": NOW.isoformat()},
        {"ownerReferences": [{"kind": "InferenceCluster", "name": OWNER.name, "uid": "earlier"}]},
    ):
        found = jobs.look(cluster_of())
        job["metadata"] |= changes
        assert jobs.look(cluster_of()) == found == PreloadStatus(job=job["metadata"]["name"], state="Running")


@pytest.mark.parametrize("code", [403, 404])
def test_an_api_server_without_jobs_or_rights_fails_the_preload_and_holds_up_nothing(code: int) -> None:
    found = Jobs(refuses=code).look(cluster_of())
    assert found is not None
    assert found.state == "Failed"
    assert "docs/operations/preload.md" in (found.message or "")
    assert held_up(found, cluster_of(), ()) == {}


def test_nothing_is_made_while_paused_without_the_field_or_over_anothers_job() -> None:
    jobs = Jobs()
    assert (jobs.look(cluster_of(paused=True)), jobs.calls) == (None, ["get"])
    assert (jobs.look(cluster_of(cache={"persistentVolumeClaim": "models"})), jobs.calls) == (None, [])
    name = job_of(cluster_of().spec)["metadata"]["name"]
    jobs.jobs[name] = {"metadata": {"name": name, "uid": "x", "ownerReferences": []}}
    found = jobs.look(cluster_of())
    assert found is not None
    assert "delete it" in (found.message or "")
    assert jobs.calls == ["get"]


def test_first_workers_wait_for_the_job_and_others_do_not() -> None:
    cluster = cluster_of()
    running = PreloadStatus(job="j", state="Running")
    waits = held_up(running, cluster, ())
    assert waits == {"h100": Refusal(message="Job j downloads the weights.", reason=Reason.PRELOADING)}
    worker: Any = ObservedWorker(
        name="w",
        uid="w",
        pool="h100",
        ordinal=0,
        role=Role.MIXED,
        role_epoch=0,
        spec_hash="h",
        phase=WorkerPhase.RUNNING,
        ready=True,
        deleting=False,
    )
    assert held_up(running, cluster, [worker]) == {}
    assert held_up(PreloadStatus(job="j", state="Complete"), cluster, ()) == {}


def test_waiting_for_weights_is_progress_and_a_failure_degrades_without_holding_up_workers() -> None:
    cluster = cluster_of()
    world = World(cluster.spec)
    running = PreloadStatus(job="j", state="Running")
    waits = plan(replace(world.snapshot(), preload=running, refused=held_up(running, cluster, ())), world.now)
    assert not any(isinstance(action, CreateWorker) for action in waits.actions)
    said = {each.type.value: each for each in waits.status.conditions}
    assert said["Degraded"].status.value == "False"
    assert "Workers wait for the weights: Job j downloads the weights." in said["Progressing"].message
    assert waits.status.preload == running
    failed = PreloadStatus(job="j", state="Failed", message="the disk is full")
    starts = plan(replace(world.snapshot(), preload=failed), world.now)
    assert any(isinstance(action, CreateWorker) for action in starts.actions)
    degraded = next(each for each in starts.status.conditions if each.type.value == "Degraded")
    assert (degraded.status.value, degraded.reason) == ("True", "PreloadFailed")
    assert "the disk is full" in degraded.message
