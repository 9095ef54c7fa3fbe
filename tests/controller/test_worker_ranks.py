"""Workers of several ranks: what their Pods are told, on which ports they listen, and what carries their tokens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.charts.foreign_kinds import foreign_crds
from tests.controller.test_published_schemas import problems

from fulcrum.api.names import Role
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.children import Manifest, Owner, worker_pod
from fulcrum.controller.children.worker_group import worker_group
from fulcrum_local.apiserver.model_types import model_of

OWNER = Owner(name="c", namespace="ml", uid="u-1")
RDMA = {"count": 8, "socketInterface": "eth0", "devices": ["mlx5_0:1", "mlx5_1:1", "eth0"]}
NVSHMEM = {
    "NVSHMEM_REMOTE_TRANSPORT": "ibgda",
    "NVSHMEM_IB_ENABLE_IBGDA": "true",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "eth0",
    "NVSHMEM_HCA_LIST": "mlx5_0:1,mlx5_1:1",
    "NVSHMEM_ENABLE_NIC_PE_MAPPING": "1",
}


def spec_of(**pool: Any) -> InferenceClusterSpec:
    usual = {
        "name": "p",
        "accelerator": "H200-SXM-141GB",
        "parallelism": {"data": 16, "experts": True},
        "gpu": {"perNode": 8},
        "roles": ["decode"],
        "workers": {"max": 2},
    }
    document = {"model": {"name": "deepseek-ai/DeepSeek-V3"}, "pools": [{**usual, **pool}]}
    return msgspec.convert(document, InferenceClusterSpec)


def pod_of(**pool: Any) -> Manifest:
    spec = spec_of(**pool)
    return worker_pod(OWNER, spec, spec.pools[0], ordinal=0, role=Role.DECODE, image="i")


def container_of(pod: Manifest) -> Manifest:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def variables(**pool: Any) -> dict[str, str]:
    told = {each["name"]: each.get("value", "") for each in container_of(pod_of(**pool))["env"]}
    return {name: value for name, value in told.items() if name.startswith(("NVSHMEM", "NCCL", "NVIDIA"))}


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ({"rdma": RDMA}, {"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1", "NVIDIA_GDRCOPY": "enabled", **NVSHMEM}),
        (
            {"rdma": {}},
            {
                "NVIDIA_GDRCOPY": "enabled",
                "NVSHMEM_REMOTE_TRANSPORT": "ibgda",
                "NVSHMEM_IB_ENABLE_IBGDA": "true",
            },
        ),
        ({"rdma": RDMA, "roles": ["prefill", "decode"]}, {"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1"}),
        ({"roles": ["prefill"], "parallelism": {"data": 8, "experts": True}}, {"NVIDIA_GDRCOPY": "enabled"}),
        ({}, {}),
        ({"rdma": RDMA, "parallelism": {"tensor": 16}}, {}),
    ],
)
def test_libraries_are_told_of_the_network(pool: dict[str, Any], expected: dict[str, str]) -> None:
    assert variables(**pool) == expected


def test_a_template_says_it_better() -> None:
    env = [{"name": "NVSHMEM_REMOTE_TRANSPORT", "value": "ibrc"}]
    template = {"spec": {"containers": [{"name": "worker", "env": env}]}}
    assert variables(rdma=RDMA, template=template)["NVSHMEM_REMOTE_TRANSPORT"] == "ibrc"


def test_on_the_nodes_network_every_rank_has_a_port_for_its_side_channel() -> None:
    pod = pod_of(rdma={"hostNetwork": True})
    ports = {each["name"]: each["hostPort"] for each in container_of(pod)["ports"]}
    channels = {f"nixl-{rank}": 5600 + rank for rank in range(1, 16)}
    assert ports == {"engine": 8000, "agent": 8001, "nixl": 5600, "ranks": 29501, **channels}
    assert [each["name"] for each in container_of(pod_of())["ports"]] == ["engine", "agent", "nixl"]


def test_processes_on_a_cpu_exchange_tokens_through_shared_memory() -> None:
    def volumes(data: int) -> dict[str, str]:
        pod = pod_of(accelerator="cpu", gpu={}, parallelism={"data": data, "experts": data > 1})
        return {each["name"]: each["emptyDir"].get("sizeLimit", "") for each in pod["spec"]["volumes"]}

    assert volumes(2)["shm"] == "2Gi"
    assert "shm" not in volumes(1)


@pytest.mark.parametrize("pool", [{"rdma": RDMA}, {"rdma": {"hostNetwork": True}}])
def test_groups_of_ranks_are_what_the_published_schemas_take(pool: dict[str, Any]) -> None:
    group = worker_group(pod_of(**pool), spec_of(**pool).pools[0])
    crd = next(crd for crd in foreign_crds() if crd["spec"]["names"]["kind"] == "LeaderWorkerSet")
    schema = StructuralSchema(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    assert schema.unknown_fields(group) == []
    assert [str(error) for error in schema.validate(schema.default(group))] == []
    model = model_of("", "v1", "Pod")
    assert model is not None
    template = group["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        assert problems({"apiVersion": "v1", "kind": "Pod", **template[part]}, model, "Pod") == []
        told = {each["name"] for each in container_of(template[part])["env"]}
        assert set(NVSHMEM) <= told or "devices" not in pool["rdma"]
