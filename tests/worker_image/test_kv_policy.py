"""Which restore policy runs where, and what vLLM is told of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.worker_image.agents import worker_config

from fulcrum.api.types import OffloadPolicy
from fulcrum.api.worker import KvCacheConfig, KvPoolConfig, OffloadConfig, WorkerConfig
from fulcrum_worker.config import PodIdentity
from fulcrum_worker.engine_command import engine_command
from fulcrum_worker.kv.policy import check_host_room, effective_policy, vllm_version, why_only_load

POD = PodIdentity(ip="10.1.2.3", name="chat-cpu-0", namespace="default")


def tiered(policy: str = "partialRecompute", **changes: Any) -> WorkerConfig:
    offload = OffloadConfig(host_bytes=1 << 30, policy=policy, eviction="arc")
    return worker_config(kv_cache=KvCacheConfig(dtype="bf16", offload=offload), **changes)


def argv(config: WorkerConfig, vllm: str | None = "0.32.0") -> tuple[str, ...]:
    return engine_command(config, POD, model=None, environment={}, vllm=vllm).argv


def connectors(config: WorkerConfig, vllm: str | None = "0.32.0") -> list[dict[str, Any]]:
    arguments = argv(config, vllm)
    transfer = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector"] == "MultiConnector"
    return list(transfer["kv_connector_extra_config"]["connectors"])


@pytest.mark.parametrize(
    ("config", "version", "because"),
    [
        (tiered(), "0.32.0", None),
        (tiered(), "0.32.0+cpu", None),
        (tiered(), "0.33.0", "not with 0.33.0"),
        (tiered(), None, "not with none"),
        (tiered(accelerator="H100-SXM-80GB"), "0.32.0", "not on H100-SXM-80GB"),
        (tiered(tensor_parallel=2), "0.32.0", "needs parallelism 1"),
        (tiered(pipeline_parallel=2), "0.32.0", "needs parallelism 1"),
    ],
)
def test_partial_recomputation_runs_only_where_it_was_tried(
    config: WorkerConfig, version: str | None, because: str | None
) -> None:
    reason = why_only_load(config, version)
    assert (reason is None) == (because is None)
    assert because is None or because in (reason or "")
    front = because is None
    assert effective_policy(config, version) is (OffloadPolicy.PARTIAL_RECOMPUTE if front else OffloadPolicy.LOAD)
    assert ("--scheduler-cls" in argv(config, version)) == front
    assert connectors(config, version)[1]["kv_connector_extra_config"]["front_recomputation"] is front


def test_load_needs_no_scheduler_of_ours() -> None:
    assert "--scheduler-cls" not in argv(tiered("load"))
    assert effective_policy(tiered("load"), "0.32.0") is OffloadPolicy.LOAD


def test_nixl_comes_first_and_the_tier_has_its_size() -> None:
    nixl, tier = connectors(tiered())
    assert nixl["kv_connector"] == "NixlConnector"
    assert tier["kv_connector_extra_config"]["cpu_bytes_to_use"] == 1 << 30
    assert tier["kv_connector_extra_config"]["eviction_policy"] == "arc"


def test_without_a_tier_nothing_changes() -> None:
    plain = argv(worker_config())
    assert "--scheduler-cls" not in plain
    assert json.loads(plain[plain.index("--kv-transfer-config") + 1])["kv_connector"] == "NixlConnector"
    assert effective_policy(worker_config(), "0.32.0") is None


def test_host_memory_holds_one_request_at_least() -> None:
    check_host_room(2048, 2048)
    with pytest.raises(ValueError, match=r"raise spec\.engine\.kvCache\.offload\.hostMemory") as refused:
        check_host_room(2047, 2048)
    assert "2047 tokens" in str(refused.value)


def test_the_installed_vllm_is_one_that_was_tried() -> None:
    assert why_only_load(tiered(), vllm_version()) is None


def test_the_pool_is_a_folder_of_its_own_below_host_memory() -> None:
    pool = KvPoolConfig(path="/kv-pool", size_bytes=1 << 40)
    offload = OffloadConfig(host_bytes=1 << 30, pool=pool)
    _, tier = connectors(worker_config(kv_cache=KvCacheConfig(dtype="bf16", offload=offload)))
    extra = tier["kv_connector_extra_config"]
    assert [each["root"] for each in extra["secondary_tiers"]] == ["/kv-pool/fulcrum-kv"]
    assert extra["secondary_tiers"][0]["size_bytes"] == 1 << 40
    assert extra["kv_layout"] == "cpu"
    assert extra["offload_prompt_only"] is False, "the next turn begins with the answer"
    assert "secondary_tiers" not in connectors(tiered())[1]["kv_connector_extra_config"]
    gpu = worker_config(
        accelerator="H100-SXM-80GB", attention_backend="FLASHINFER", kv_cache=KvCacheConfig(offload=offload)
    )
    assert connectors(gpu)[1]["kv_connector_extra_config"]["kv_layout"] == "FLASHINFER"
