"""Which part of the spec a worker is made from, and its hash: another hash means the worker is replaced."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.quantities import number_of_bytes
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.api.worker import KvCacheConfig, TransferConfig, WorkerConfig


def worker_config(
    *, cluster: str, spec: InferenceClusterSpec, pool: Pool, role: Role, role_epoch: int = 0
) -> WorkerConfig:
    """Return the configuration that a worker of `pool` starts with."""
    cache, transfer = spec.engine.kv_cache, spec.engine.transfer
    return WorkerConfig(
        cluster=cluster,
        pool=pool.name,
        model=spec.model.name,
        served_name=spec.model.served_name or cluster,
        accelerator=pool.accelerator,
        max_model_len=spec.model.max_model_len,
        tensor_parallel=pool.parallelism.tensor,
        pipeline_parallel=pool.parallelism.pipeline,
        kv_cache=KvCacheConfig(
            dtype=cache.dtype.value,
            block_size=cache.block_size,
            memory_bytes=number_of_bytes(cache.memory) if cache.memory is not None else None,
        ),
        transfer=TransferConfig(
            connector=transfer.connector,
            backends=transfer.backends,
            load_failure_policy=transfer.load_failure_policy.value,
        ),
        engine_args=spec.engine.args,
        role=role,
        role_epoch=role_epoch,
        drain_timeout_seconds=seconds(spec.balance.flip.drain_timeout),
    )


def worker_revision(*, cluster: str, spec: InferenceClusterSpec, pool: Pool) -> str:
    """Return the revision of a pool's workers, 10 hex digits.

    Role, epoch and drain timeout are left out: a running worker takes new ones without a restart. SLO, ratio,
    admission and gateway are no part of a worker. A configuration field that is at its default is left out too, so
    that an operator that knows more fields does not restart the workers of an older one.
    """
    config = worker_config(cluster=cluster, spec=spec, pool=pool, role=Role.MIXED)
    made_from = {
        "config": _without_defaults(
            msgspec.structs.replace(config, drain_timeout_seconds=WorkerConfig(**_REQUIRED).drain_timeout_seconds)
        ),
        "image": spec.engine.image,
        "credentials": spec.model.credentials.secret_name if spec.model.credentials else None,
        "cache": spec.model.cache.persistent_volume_claim if spec.model.cache else None,
        "template": pool.template,
    }
    return hashlib.sha256(msgspec.json.encode(made_from, order="sorted")).hexdigest()[:10]


_REQUIRED: dict[str, Any] = {"cluster": "", "pool": "", "model": "", "served_name": "", "accelerator": ""}


def _without_defaults(value: msgspec.Struct) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(value):
        current = getattr(value, field.name)
        if field.default is not msgspec.NODEFAULT and current == field.default:
            continue
        kept[field.encode_name] = _without_defaults(current) if isinstance(current, msgspec.Struct) else current
    return kept
