"""What a worker's Pod asks of its node, by the fields of its pool."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fulcrum.api.names import Role
from fulcrum.api.quantities import number_of_bytes
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import WorkerConfig
from fulcrum.controller.children import Manifest, Owner, worker_pod
from fulcrum.rollout import worker_revision

OWNER = Owner(name="chat", namespace="ml", uid="u-1")
H100: dict[str, Any] = {"name": "p", "accelerator": "H100-SXM-80GB", "workers": {"max": 4}}


def spec_of(*pools: dict[str, Any], **changes: Any) -> InferenceClusterSpec:
    return msgspec.convert({"model": {"name": "m"}, "pools": list(pools), **changes}, InferenceClusterSpec)


def pod_of(spec: InferenceClusterSpec, number: int = 0) -> Manifest:
    return worker_pod(OWNER, spec, spec.pools[number], ordinal=0, role=Role.DECODE, image="ours:1")


def worker(pod: Manifest) -> Manifest:
    (container,) = pod["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def config_of(spec: InferenceClusterSpec, number: int = 0) -> WorkerConfig:
    document = next(e["value"] for e in worker(pod_of(spec, number))["env"] if e["name"] == "FULCRUM_WORKER_CONFIG")
    return msgspec.json.decode(document, type=WorkerConfig)


def revision(spec: InferenceClusterSpec, number: int = 0) -> str:
    return worker_revision(cluster="chat", spec=spec, pool=spec.pools[number])


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (
            {"gpu": {"resource": "amd.com/gpu"}},
            {
                "requests": {"cpu": "2", "memory": "8Gi", "amd.com/gpu": "1"},
                "limits": {"amd.com/gpu": "1"},
            },
        ),
        (
            {"gpu": {"resourceClaimTemplate": "one-h100"}},
            {"requests": {"cpu": "2", "memory": "8Gi"}, "claims": [{"name": "gpus"}]},
        ),
        (
            {"rdma": {}, "parallelism": {"tensor": 2}},
            {
                "requests": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2", "rdma/ib": "1"},
                "limits": {"nvidia.com/gpu": "2", "rdma/ib": "1"},
            },
        ),
        (
            # A limit without a request is the request, as Kubernetes has it.
            {"resources": {"requests": {"cpu": "12"}, "limits": {"memory": "4Gi"}}},
            {"requests": {"cpu": "12", "nvidia.com/gpu": "1"}, "limits": {"memory": "4Gi", "nvidia.com/gpu": "1"}},
        ),
    ],
)
def test_resources(pool: dict[str, Any], expected: Manifest) -> None:
    assert worker(pod_of(spec_of({**H100, **pool})))["resources"] == expected


def test_a_cpu_workers_memory_is_its_weights_its_kv_cache_and_its_engine() -> None:
    cpu = {**H100, "accelerator": "cpu"}
    known = spec_of(cpu, model={"name": "meta-llama/Llama-3.1-8B-Instruct"}, engine={"kvCache": {"memory": "4Gi"}})
    memory = worker(pod_of(known))["resources"]["requests"]["memory"]
    assert 20_000 < int(memory.removesuffix("Mi")) < 21_000, "16 GB of weights, 4 GiB of KV, 1 GiB for the engine"


def test_a_claim_of_gpus_names_its_template() -> None:
    pod = pod_of(spec_of({**H100, "gpu": {"resourceClaimTemplate": "one-h100"}}))
    assert pod["spec"]["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "one-h100"}]


def test_rdma_gives_the_right_to_lock_memory_and_ucx_its_devices() -> None:
    spec = spec_of({**H100, "rdma": {"resource": "rdma/hca", "devices": ["mlx5_0:1", "eth0"]}})
    assert worker(pod_of(spec))["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert (config_of(spec).rdma, config_of(spec).rdma_devices) == (True, ("mlx5_0:1", "eth0"))
    plain = spec_of(H100)
    assert worker(pod_of(plain))["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not config_of(plain).rdma


def test_placement_priority_and_shared_memory() -> None:
    rack = {"keepWithin": "example.com/rack", "spreadOver": "kubernetes.io/hostname"}
    pod = pod_of(spec_of({**H100, "priorityClassName": "prod", "sharedMemory": "1Gi", "topology": rack}))["spec"]
    assert pod["priorityClassName"] == "prod"
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in pod["volumes"]
    (near,) = pod["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["topologyKey"] == "example.com/rack"
    (spread,) = pod["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    # Workers that always do both exchange nothing, and need no neighbours.
    assert "affinity" not in pod_of(spec_of({**H100, "roles": ["mixed"]}))["spec"]


def test_nodes_of_failed_gpus_are_avoided_and_never_shut() -> None:
    """The template keeps its own affinity. A required one would leave a cluster unserved whose nodes are all named."""
    own = [{"weight": 1, "preference": {}}]
    of_template = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": own}}
    for template, others in (({}, []), ({"spec": {"affinity": of_template}}, own), ({"spec": {"affinity": None}}, [])):
        spec = spec_of({**H100, "template": template})
        plain = pod_of(spec)
        pod = worker_pod(
            OWNER, spec, spec.pools[0], ordinal=0, role=Role.DECODE, image="ours:1", avoided_nodes=["n1", "n2"]
        )
        *before, term = pod["spec"]["affinity"]["nodeAffinity"].pop("preferredDuringSchedulingIgnoredDuringExecution")
        assert before == others
        # Each field of a node takes one value.
        assert term["preference"]["matchFields"] == [
            {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("n1", "n2")
        ]
        assert "requiredDuringSchedulingIgnoredDuringExecution" not in pod["spec"]["affinity"]["nodeAffinity"]
        assert pod["metadata"]["annotations"] == plain["metadata"]["annotations"], "of the same revision"
        assert pod["spec"]["affinity"].get("podAffinity") == (plain["spec"].get("affinity") or {}).get("podAffinity")


def test_a_pools_engine_lies_over_that_of_the_spec() -> None:
    own = {"image": "rocm:1", "args": ["--max-num-seqs=8"], "attentionBackend": "ROCM_ATTN"}
    spec = spec_of({**H100, "engine": own}, {**H100, "name": "q"}, engine={"image": "cuda:1", "args": ["--seed=1"]})
    assert (worker(pod_of(spec))["image"], worker(pod_of(spec, 1))["image"]) == ("rocm:1", "cuda:1")
    assert config_of(spec).engine_args == ("--seed=1", "--max-num-seqs=8")
    assert config_of(spec).attention_backend == "ROCM_ATTN"
    assert (config_of(spec, 1).engine_args, config_of(spec, 1).attention_backend) == (("--seed=1",), None)


def test_weights_that_a_worker_downloads_are_asked_for_on_its_disk() -> None:
    """16 GB of Llama-3.1-8B, and 8 GiB for all else; nothing where a claim has them, or where the size is unknown."""
    llama = {"name": "meta-llama/Llama-3.1-8B-Instruct"}
    spec = spec_of(H100, model=llama)
    (asked,) = [worker(pod_of(spec))["resources"]["requests"].get("ephemeral-storage")]
    assert asked is not None
    assert 14 + 8 < number_of_bytes(asked) / 2**30 < 16 + 8
    usual, longer = (worker(pod_of(each))["startupProbe"]["failureThreshold"] for each in (spec_of(H100), spec))
    assert 300 < longer - usual < 340, "seconds for 16 GB at 50 MB/s"
    for model in ({**llama, "cache": {"persistentVolumeClaim": "c"}}, {"name": "/models/llama-3.1-8b"}, {"name": "m"}):
        assert "ephemeral-storage" not in worker(pod_of(spec_of(H100, model=model)))["resources"]["requests"]
    assert revision(spec) == revision(spec_of({**H100}, model=llama))


@pytest.mark.parametrize(
    ("accelerators", "dtype", "backend"),
    [
        # (accelerator, roles) of each pool
        ((("H100-SXM-80GB", None),), "fp8", None),
        ((("H100-SXM-80GB", None), ("H200-SXM-141GB", None)), "fp8", None),
        ((("H100-SXM-80GB", None), ("L40S-48GB", ["decode"])), "fp8", "FLASHINFER"),
        ((("H100-SXM-80GB", None), ("L40S-48GB", ["decode"])), "bf16", None),
        ((("A100-SXM-80GB", None), ("L40S-48GB", None)), "fp8", None),
        ((("H100-SXM-80GB", None), ("B200-SXM-180GB", None)), "bf16", "FLASHINFER"),
        ((("H100-SXM-80GB", None), ("L40S-48GB", ["mixed"])), "fp8", None),
        ((("H100-SXM-80GB", None), ("MI300X-192GB", None)), "fp8", None),
    ],
)
def test_pools_of_unlike_gpus_get_a_common_attention_backend(
    accelerators: tuple[tuple[str, list[str] | None], ...], dtype: str, backend: str | None
) -> None:
    pools = [
        {**H100, "name": f"p{n}", "accelerator": name, **({"roles": roles} if roles else {})}
        for n, (name, roles) in enumerate(accelerators)
    ]
    assert config_of(spec_of(*pools, engine={"kvCache": {"dtype": dtype}})).attention_backend == backend


@pytest.mark.parametrize(
    "change",
    [
        {"gpu": {"resource": "amd.com/gpu"}},
        {"rdma": {}},
        {"resources": {"requests": {"cpu": "3"}}},
        {"sharedMemory": "1Gi"},
        {"priorityClassName": "prod"},
        {"topology": {"keepWithin": "rack"}},
        {"engine": {"image": "other:1"}},
        {"engine": {"args": ["--seed=1"]}},
        {"engine": {"attentionBackend": "TRITON_ATTN"}},
    ],
)
def test_what_changes_the_pod_is_another_revision(change: dict[str, Any]) -> None:
    assert revision(spec_of({**H100, **change})) != revision(spec_of(H100))


def test_fields_that_say_what_is_so_anyway_restart_no_worker() -> None:
    same = {"gpu": {"resource": "nvidia.com/gpu"}, "resources": {}, "topology": {}, "engine": {}}
    assert revision(spec_of({**H100, **same})) == revision(spec_of(H100))


OFFLOAD: dict[str, Any] = {"engine": {"kvCache": {"offload": {"hostMemory": "24Gi"}}}}


@pytest.mark.parametrize(
    ("pool", "engine", "memory", "shm"),
    [
        (H100, {}, "8Gi", "4Gi"),
        (H100, OFFLOAD, "32768Mi", "28672Mi"),
        ({**H100, "sharedMemory": "1Gi"}, OFFLOAD, "32768Mi", "25600Mi"),
        ({"name": "p", "accelerator": "cpu", "workers": {"max": 1}}, {}, "2048Mi", None),
        ({"name": "p", "accelerator": "cpu", "workers": {"max": 1}}, OFFLOAD, "26624Mi", "24640Mi"),
    ],
)
def test_a_host_tier_has_its_memory(pool: dict[str, Any], engine: dict[str, Any], memory: str, shm: str | None) -> None:
    pod = pod_of(spec_of(pool, **engine))
    assert worker(pod)["resources"]["requests"]["memory"] == memory
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in pod["spec"]["volumes"] if volume["name"] == "shm"]
    assert sizes == ([shm] if shm is not None else [])
    mounts = [mount["mountPath"] for mount in worker(pod)["volumeMounts"]]
    assert ("/dev/shm" in mounts) == (shm is not None)


def test_a_worker_is_told_of_its_host_tier() -> None:
    offload = {"hostMemory": "24Gi", "policy": "load", "eviction": "arc"}
    told = config_of(spec_of(H100, engine={"kvCache": {"offload": offload}})).kv_cache.offload
    assert told is not None
    assert (told.host_bytes, told.policy, told.eviction) == (24 << 30, "load", "arc")
    assert config_of(spec_of(H100)).kv_cache.offload is None


def test_a_host_tier_makes_a_revision_and_its_absence_none() -> None:
    without, tiered = revision(spec_of(H100)), revision(spec_of(H100, **OFFLOAD))
    assert without == revision(spec_of(H100, engine={"kvCache": {}}))
    assert without != tiered
    other = {"engine": {"kvCache": {"offload": {"hostMemory": "24Gi", "eviction": "arc"}}}}
    assert revision(spec_of(H100, **other)) != tiered
