"""How an engine is told to move KV: vLLM's `--kv-transfer-config`."""

from __future__ import annotations

from typing import Any, Final

from fulcrum.api.types import OffloadPolicy
from fulcrum.api.worker import OffloadConfig, WorkerConfig
from fulcrum_worker.config import CPU
from fulcrum_worker.engine_files import EngineFiles
from fulcrum_worker.engine_start import Roles, kv_role
from fulcrum_worker.kv.policy import FRONT, LAYOUT
from fulcrum_worker.kv.registration import CONNECTOR_MODULE, TIER_CONNECTOR
from fulcrum_worker.kv.speed_file import SPEED_FILE

POOL_FOLDER: Final = "fulcrum-kv"
"""Folder of the pool in its volume, which may have files of its own."""
_ALONE: Final = "kv_producer"
"""Role of the host tier of an engine that exchanges no KV, where there is no role for both."""


def transfer_config(
    config: WorkerConfig,
    restored: OffloadPolicy | None,
    files: EngineFiles | None,
    roles: Roles = Roles.LIVE,
) -> dict[str, Any] | None:
    """NIXL between workers, and host memory below it where the spec has it; None: neither.

    `restored` is how KV comes back from host memory; `files` are shared with the agent. `roles` is
    how engines of this vLLM get theirs.
    """
    offload = config.kv_cache.offload
    role = kv_role(roles, config.role)
    connectors = [_nixl(config, role)] if config.exchanges_kv and role is not None else []
    if offload is not None:
        connectors.append(_tier(config, offload, restored, files, role or _ALONE))
    if len(connectors) < 2:
        return connectors[0] if connectors else None
    return {
        "kv_connector": "MultiConnector",
        "kv_role": role,
        "kv_load_failure_policy": config.transfer.load_failure_policy,
        "kv_connector_extra_config": {"connectors": connectors},
    }


def _nixl(config: WorkerConfig, role: str) -> dict[str, Any]:
    return {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_buffer_device": "cpu" if config.accelerator == CPU else "cuda",
        "kv_load_failure_policy": config.transfer.load_failure_policy,
        "kv_connector_extra_config": {"backends": list(config.transfer.backends)},
    }


def _tier(
    config: WorkerConfig, offload: OffloadConfig, restored: OffloadPolicy | None, files: EngineFiles | None, role: str
) -> dict[str, Any]:
    tier: dict[str, Any] = {
        "kv_connector": TIER_CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": role,
        "kv_load_failure_policy": config.transfer.load_failure_policy,
        "kv_connector_extra_config": {
            "spec_name": "HostTierSpec",
            "spec_module_path": "fulcrum_worker.kv.spec",
            "cpu_bytes_to_use": offload.host_bytes,
            "eviction_policy": offload.eviction,
            FRONT: restored is OffloadPolicy.PARTIAL_RECOMPUTE,
            # Answers as well: the next turn of a conversation begins with them.
            "offload_prompt_only": False,
            SPEED_FILE: str(files.speed) if files is not None else None,
        },
    }
    if offload.pool is not None:
        tier["kv_connector_extra_config"] |= {
            LAYOUT: config.attention_backend or config.accelerator,
            "secondary_tiers": [
                {
                    "type": "PoolTier",
                    "module_path": "fulcrum_worker.kv.pool.tier",
                    "root": f"{offload.pool.path}/{POOL_FOLDER}",
                    "size_bytes": offload.pool.size_bytes,
                }
            ],
        }
    return tier
