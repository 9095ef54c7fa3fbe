"""The agent's configuration: one JSON document and the Pod's identity, both from the environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fulcrum.api.engine_args import check_engine_args
from fulcrum.api.names import ENV_POD_IP, ENV_POD_NAME, ENV_POD_NAMESPACE, ENV_WORKER_CONFIG, Role
from fulcrum.api.types import OffloadEviction, OffloadPolicy
from fulcrum.api.worker import ENGINE_KV_DTYPES, OffloadConfig, WorkerConfig
from fulcrum.capacity.cpu import NO_FP8_KV, refuses_fp8_kv

CPU: Final = "cpu"
_CONNECTORS: Final = ("nixl",)
_LOAD_FAILURE_POLICIES: Final = ("recompute", "fail")


class BadConfigError(ValueError):
    """The configuration cannot be used; the message names the field and what it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIdentity:
    """Identity of this worker; everything it serves binds on `ip`."""

    ip: str
    name: str
    namespace: str

    @property
    def url_host(self) -> str:
        """The address as it stands in a URL (IPv6 in brackets)."""
        return f"[{self.ip}]" if ":" in self.ip else self.ip


def read_config(environment: Mapping[str, str]) -> tuple[WorkerConfig, PodIdentity]:
    """Reads and checks everything the agent needs; raises BadConfigError, which names the field."""
    return _read_worker_config(environment), _read_pod_identity(environment)


def check_machine(config: WorkerConfig, cpuinfo: str) -> None:
    """Raises BadConfigError where no engine of this configuration runs on a machine with this /proc/cpuinfo."""
    if config.accelerator == CPU and config.kv_cache.dtype == "fp8" and refuses_fp8_kv(cpuinfo):
        raise BadConfigError(f"{ENV_WORKER_CONFIG}: kvCache.dtype (spec.engine.kvCache.dtype): {NO_FP8_KV}")


def check_expert_backend(config: WorkerConfig, backends: Sequence[str] | None) -> None:
    """Raises BadConfigError where the installed vLLM, which knows `backends`, does not know the one that is asked for.

    None is unknown: vLLM then says it itself.
    """
    asked = config.all2all_backend
    if asked is not None and backends is not None and asked not in backends:
        raise BadConfigError(
            f"{ENV_WORKER_CONFIG}: all2allBackend (spec.pools[].parallelism.expertBackend): {asked!r} is not one of "
            f"this vLLM's: {', '.join(backends)}"
        )


def check_host_memory(config: WorkerConfig, *, shm_bytes: int | None, limit_bytes: int | None) -> None:
    """Raises BadConfigError where the host tier does not fit in /dev/shm or under the container's memory limit.

    None is unknown. vLLM would fill the memory at its start, and the kernel would end it without a word.
    """
    offload = config.kv_cache.offload
    if offload is None:
        return
    asked = f"{ENV_WORKER_CONFIG}: kvCache.offload (spec.engine.kvCache.offload.hostMemory): {offload.host_bytes} bytes"
    if shm_bytes is not None and offload.host_bytes > shm_bytes:
        raise BadConfigError(
            f"{asked} are more than /dev/shm holds ({shm_bytes}): lower hostMemory, or "
            "take the volume for /dev/shm out of spec.pools[].template, so that the operator sets it"
        )
    if limit_bytes is not None and offload.host_bytes >= limit_bytes:
        raise BadConfigError(
            f"{asked} do not fit under the container's memory limit ({limit_bytes}): lower hostMemory, or raise "
            "spec.pools[].resources.limits.memory"
        )


def check_locked_memory(config: WorkerConfig, *, unlimited: bool) -> None:
    """Raises BadConfigError where RDMA could not register the memory that it moves: KV would go over TCP, unseen."""
    if config.rdma and not unlimited:
        raise BadConfigError(
            f"{ENV_WORKER_CONFIG}: rdma (spec.pools[].rdma): RLIMIT_MEMLOCK is limited here, and RDMA locks the memory "
            "that it moves. Set LimitMEMLOCK=infinity in the systemd unit of the nodes' container runtime (containerd, "
            "cri-o) and restart it; or set spec.pools[].rdma.runAsRoot: the operator then needs --allow-host-access"
        )


def _read_pod_identity(environment: Mapping[str, str]) -> PodIdentity:
    ip = environment.get(ENV_POD_IP, "")
    try:
        ipaddress.ip_address(ip)
    except ValueError:
        raise BadConfigError(f"{ENV_POD_IP}: {ip!r} is not an IP address; the Pod's own address belongs here") from None
    return PodIdentity(
        ip=ip, name=environment.get(ENV_POD_NAME, "worker"), namespace=environment.get(ENV_POD_NAMESPACE, "default")
    )


def _read_worker_config(environment: Mapping[str, str]) -> WorkerConfig:
    document = environment.get(ENV_WORKER_CONFIG)
    if not document:
        raise BadConfigError(f"{ENV_WORKER_CONFIG}: is not set; it holds the worker's configuration as JSON")
    try:
        config = msgspec.json.decode(document, type=WorkerConfig)
    except msgspec.ValidationError as error:
        # msgspec ends its message with the path of the field, as in "Expected `int`, got `str` - at
        # `$.kvCache.blockSize`".
        raise BadConfigError(f"{ENV_WORKER_CONFIG}: {error}") from None
    except msgspec.DecodeError as error:
        raise BadConfigError(f"{ENV_WORKER_CONFIG}: is not JSON: {error}") from None
    for field, problem in _problems(config):
        raise BadConfigError(f"{ENV_WORKER_CONFIG}: {field}: {problem}")
    return config


def _offload_checks(offload: OffloadConfig | None) -> tuple[tuple[str, bool, str], ...]:
    if offload is None:
        return ()
    policies, evictions = (tuple(each.value for each in kind) for kind in (OffloadPolicy, OffloadEviction))
    return (
        ("kvCache.offload.hostBytes", offload.host_bytes > 0, "must be positive"),
        (
            "kvCache.offload.policy",
            offload.policy in policies,
            f"{offload.policy!r} is not one of {', '.join(policies)}",
        ),
        (
            "kvCache.offload.eviction",
            offload.eviction in evictions,
            f"{offload.eviction!r} is not one of {', '.join(evictions)}",
        ),
        ("kvCache.offload.pool.path", offload.pool is None or offload.pool.path.startswith("/"), "must be absolute"),
        ("kvCache.offload.pool.sizeBytes", offload.pool is None or offload.pool.size_bytes > 0, "must be positive"),
    )


def _problems(config: WorkerConfig) -> list[tuple[str, str]]:
    """Each field that no engine can be started with, and why. Paths are written as in the JSON document."""
    checks = (
        ("model", bool(config.model), "must not be empty"),
        ("servedName", bool(config.served_name), "must not be empty"),
        ("accelerator", bool(config.accelerator), "must not be empty"),
        ("maxModelLen", config.max_model_len is None or config.max_model_len > 0, "must be positive"),
        ("tensorParallel", config.tensor_parallel >= 1, "must be at least 1"),
        ("pipelineParallel", config.pipeline_parallel >= 1, "must be at least 1"),
        ("dataParallel", config.data_parallel >= 1, "must be at least 1"),
        (
            "kvCache.dtype",
            config.kv_cache.dtype in ENGINE_KV_DTYPES,
            f"{config.kv_cache.dtype!r} is not one of {', '.join(ENGINE_KV_DTYPES)}",
        ),
        (
            "kvCache.blockSize",
            config.kv_cache.block_size is None or config.kv_cache.block_size >= 1,
            "must be at least 1",
        ),
        (
            "kvCache.memoryBytes",
            config.kv_cache.memory_bytes is None or config.kv_cache.memory_bytes > 0,
            "must be positive",
        ),
        *_offload_checks(config.kv_cache.offload),
        (
            "kvCache.offload",
            config.kv_cache.offload is None or config.data_parallel == 1,
            "ranks of data parallel have no host tier; remove spec.engine.kvCache.offload, or set data to 1",
        ),
        (
            "task",
            not (config.pools and (config.exchanges_kv or config.kv_cache.offload is not None)),
            "workers of a pooling model neither exchange nor keep KV; set spec.pools[].roles to [mixed] and remove "
            "spec.engine.kvCache.offload",
        ),
        (
            "transfer.connector",
            config.transfer.connector in _CONNECTORS,
            f"{config.transfer.connector!r} is not one of {', '.join(_CONNECTORS)}",
        ),
        ("transfer.backends", bool(config.transfer.backends), "must name at least one NIXL backend"),
        (
            "transfer.loadFailurePolicy",
            config.transfer.load_failure_policy in _LOAD_FAILURE_POLICIES,
            f"{config.transfer.load_failure_policy!r} is not one of {', '.join(_LOAD_FAILURE_POLICIES)}",
        ),
        ("adapters.max", config.adapters is None or config.adapters.max >= 1, "must be at least 1"),
        ("adapters.maxRank", config.adapters is None or config.adapters.max_rank >= 1, "must be at least 1"),
        (
            "sleepMode",
            not (config.sleep_mode and (config.accelerator == CPU or config.exchanges_kv)),
            "vLLM's sleep mode (spec.balance.idleDepth: Engines) needs GPUs, and engines that exchange no KV",
        ),
        ("role", config.role is not Role.DRAINING, "a worker cannot be created as draining"),
        ("roleEpoch", config.role_epoch >= 0, "must not be negative"),
        ("startTimeoutSeconds", config.start_timeout_seconds > 0, "must be positive"),
        ("drainTimeoutSeconds", config.drain_timeout_seconds >= 0, "must not be negative"),
    )
    return [(field, problem) for field, holds, problem in checks if not holds] + [
        (f"engineArgs[{found.index}]", f"{found.argument!r} is refused: {found.message}")
        for found in check_engine_args(config.engine_args)
    ]
