"""Which part of the spec a worker is made from, and its hash: another hash means the worker is replaced."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from fulcrum.api.engine_types import STORED_BLOCK_SIZE, STORED_IMAGE, KvCache, KvCacheDtype
from fulcrum.api.names import KV_POOL_PATH, Role
from fulcrum.api.objects import without_defaults
from fulcrum.api.pool_attention import attention_backend, exchanges_kv
from fulcrum.api.quantities import number_of_bytes
from fulcrum.api.telemetry_types import traces_url
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.api.worker import (
    AdaptersConfig,
    AdapterSource,
    KvCacheConfig,
    KvPoolConfig,
    OffloadConfig,
    TransferConfig,
    WorkerConfig,
)
from fulcrum.capacity.kv_dtype import KvDtype, resolved_kv_dtype
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name
from fulcrum.capacity.model_kinds import ModelKind
from fulcrum.capacity.start_timeout import start_timeout_seconds
from fulcrum.decide.snapshot import ObservedWorker

_POD_FIELDS = ("gpu", "rdma", "resources", "shared_memory", "priority_class_name", "topology")
_REQUIRED: dict[str, Any] = {"cluster": "", "pool": "", "model": "", "served_name": "", "accelerator": ""}


def as_seen(
    workers: Iterable[ObservedWorker],
    *,
    cluster: str,
    spec: InferenceClusterSpec,
    refused: Container[str] = (),
    now: datetime,
) -> tuple[ObservedWorker, ...]:
    """Return the workers as a snapshot has them: without times after `now`, and with `stale` set.

    Stale are workers that were made from another spec, and may be made anew: not those of `refused` pools.
    """
    revisions = {pool.name: worker_revision(cluster=cluster, spec=spec, pool=pool) for pool in spec.pools}
    images = {pool.name: worker_image(spec, pool) for pool in spec.pools}
    exchanging = frozenset(pool.name for pool in spec.pools if exchanges_kv(pool))

    def seen(worker: ObservedWorker) -> ObservedWorker:
        image = images.get(worker.pool)
        renewed = image is not None and worker.release_image not in (None, image)
        renewed |= worker.exchanges_no_kv and worker.pool in exchanging
        stale = worker.pool not in refused and (renewed or worker.spec_hash != revisions.get(worker.pool))
        known = worker.as_of(now)
        # Of thousands of workers few change: a copy of each would take a tenth of a plan.
        return known if stale == known.stale else replace(known, stale=stale)

    return tuple(map(seen, workers))


def standing_workers(
    cluster: str, spec: InferenceClusterSpec, workers: Iterable[ObservedWorker]
) -> list[ObservedWorker]:
    """Return the workers of the present revisions: what is made beside them has to understand them."""
    revisions = {pool.name: worker_revision(cluster=cluster, spec=spec, pool=pool) for pool in spec.pools}
    return [each for each in workers if each.live and each.spec_hash == revisions.get(each.pool)]


def chosen_model(
    known: ModelFacts, note: str, *, model_name: str, standing: Iterable[ObservedWorker]
) -> tuple[ModelFacts, str]:
    """Return the model that new workers are made for (`known`, with the attention of those that stand), and a note.

    `note` says where what is known is from; what a new revision gets instead is added to it.
    A config.json that comes, changes or goes is no part of a revision: it restarts none, and all go on understanding
    each other.
    """
    usual = facts_of_name(model_name).attention
    made_for = Counter(worker.attention or usual for worker in standing)
    if not made_for or known.attention in made_for:
        return known, note
    (kept, _), wanted = made_for.most_common(1)[0], known.attention
    kind = replace(known.kind or ModelKind(), attention=kept)
    change = f"the workers that stand were made for {kept.value} attention; a new revision is made for {wanted.value}"
    return replace(known, kind=kind), "; ".join(each for each in (note, change) if each)


def chosen_kv_dtype(
    spec: InferenceClusterSpec, model: ModelFacts | None, standing: Iterable[ObservedWorker]
) -> KvDtype:
    """Return the element type of the KV cache that new workers get.

    What `auto` came to for workers of the present revisions (`standing`) stays: an upgrade that knows more about a
    model restarts none, and all workers go on understanding each other.
    """
    wanted = resolved_kv_dtype(spec, model.kind if model is not None else None)
    if spec.engine.kv_cache.dtype is not KvCacheDtype.AUTO:
        return wanted
    came_to = Counter(worker.kv_dtype for worker in standing)
    if not came_to or wanted.dtype in came_to:
        return wanted
    kept, _ = came_to.most_common(1)[0]
    why = f"the workers that stand were made with {kept.value}; a new revision gets {wanted.dtype.value}: {wanted.why}"
    return KvDtype(dtype=kept, why=why)


def worker_config(
    *,
    cluster: str,
    spec: InferenceClusterSpec,
    pool: Pool,
    role: Role,
    role_epoch: int = 0,
    kv_dtype: KvCacheDtype | None = None,
    model: ModelFacts | None = None,
) -> WorkerConfig:
    """Return the configuration that a worker of `pool` starts with.

    `kv_dtype` is what the spec's element type of the KV cache came to; None: as the spec has it. `model` is what is
    known of the model; None: what its name says.
    """
    cache, transfer = spec.engine.kv_cache, spec.engine.transfer
    dtype, known = kv_dtype or cache.dtype, model or facts_of_name(spec.model.name)
    return WorkerConfig(
        cluster=cluster,
        pool=pool.name,
        model=spec.model.name,
        served_name=spec.model.served_name or cluster,
        accelerator=pool.accelerator,
        task=spec.model.task,
        model_revision=spec.model.revision,
        trust_remote_code=spec.model.trust_remote_code,
        max_model_len=spec.model.max_model_len,
        tensor_parallel=pool.parallelism.tensor,
        pipeline_parallel=pool.parallelism.pipeline,
        data_parallel=pool.parallelism.data,
        expert_parallel=pool.parallelism.experts,
        all2all_backend=pool.expert_backend,
        nodes=pool.nodes,
        kv_cache=_kv_cache_config(cache, dtype),
        transfer=TransferConfig(
            connector=transfer.connector,
            backends=transfer.backends,
            load_failure_policy=transfer.load_failure_policy.value,
        ),
        attention_backend=attention_backend(spec, pool, kind=known.attention, fp8=dtype is KvCacheDtype.FP8),
        exchanges_kv=exchanges_kv(pool) or pool.workers.max == 0,
        rdma=pool.rdma is not None,
        rdma_devices=pool.rdma.devices if pool.rdma is not None else (),
        socket_interface=pool.rdma.socket_interface if pool.rdma is not None else None,
        ports=pool.ports,
        media_domains=spec.engine.media_domains,
        traces_url=_traces_url(spec),
        adapters=_adapters_config(spec),
        sleep_mode=spec.balance.engine_sleep_level > 0,
        engine_args=spec.engine_args(pool),
        role=role,
        role_epoch=role_epoch,
        start_timeout_seconds=start_timeout_seconds(spec, known),
        drain_timeout_seconds=spec.drain_timeout_seconds,
    )


def _adapters_config(spec: InferenceClusterSpec) -> AdaptersConfig | None:
    wanted = spec.adapters
    if wanted is None:
        return None
    return AdaptersConfig(max=wanted.max, max_rank=wanted.max_rank, initial=adapter_sources(spec))


def adapter_sources(spec: InferenceClusterSpec) -> tuple[AdapterSource, ...]:
    """Return the adapters that every worker is to have."""
    listed = spec.adapters.list if spec.adapters is not None else ()
    return tuple(
        AdapterSource(name=each.name, source=each.source, revision=each.revision, rank=each.rank) for each in listed
    )


def _traces_url(spec: InferenceClusterSpec) -> str | None:
    tracing = spec.telemetry.tracing
    return traces_url(tracing.endpoint) if tracing is not None and tracing.engine else None


def _kv_cache_config(cache: KvCache, dtype: KvCacheDtype) -> KvCacheConfig:
    """Return the KV cache of an engine; `dtype` is what the spec's element type came to."""
    return KvCacheConfig(
        dtype=dtype.value,
        skip_layers=cache.skip_layers,
        block_size=cache.block_size,
        memory_bytes=number_of_bytes(cache.memory) if cache.memory is not None else None,
        offload=_offload_config(cache),
    )


def _offload_config(cache: KvCache) -> OffloadConfig | None:
    if (tiers := cache.offload) is None:
        return None
    shared = tiers.pool
    return OffloadConfig(
        host_bytes=number_of_bytes(tiers.host_memory),
        policy=tiers.policy.value,
        eviction=tiers.eviction.value,
        pool=KvPoolConfig(path=KV_POOL_PATH, size_bytes=number_of_bytes(shared.size)) if shared else None,
    )


def worker_image(spec: InferenceClusterSpec, pool: Pool) -> str | None:
    """Return the image that the spec names for the workers of `pool`; None: that of the operator's release."""
    own = pool.engine.image if pool.engine is not None else None
    return own or spec.engine.image


def worker_revision(*, cluster: str, spec: InferenceClusterSpec, pool: Pool) -> str:
    """Return the revision of a pool's workers, 10 hex digits.

    Role, epoch, timeouts and the list of adapters are left out: a running worker takes new ones, or needs none any
    more. So is what
    `kvCache.dtype: auto` comes to, what a config.json says of the model, and whether KV is exchanged: what stands is
    kept (`chosen_kv_dtype`, `chosen_model`, `as_seen`). SLO, ratio, admission and gateway are no part of a worker.
    A configuration field that is at its default is left out too, so that an operator that knows more fields does not
    restart the workers of an older one. An absent image counts as the one that release 0.1.0 takes for it, so that
    neither going there nor coming back restarts workers.
    """
    config, usual = worker_config(cluster=cluster, spec=spec, pool=pool, role=Role.MIXED), WorkerConfig(**_REQUIRED)
    cache, model = config.kv_cache, spec.model
    if cache.block_size == STORED_BLOCK_SIZE:
        cache = msgspec.structs.replace(cache, block_size=None)
    made_from = {
        "config": without_defaults(
            msgspec.structs.replace(
                config,
                start_timeout_seconds=usual.start_timeout_seconds,
                drain_timeout_seconds=usual.drain_timeout_seconds,
                exchanges_kv=usual.exchanges_kv,
                kv_cache=cache,
                adapters=config.adapters and msgspec.structs.replace(config.adapters, initial=()),
            )
        ),
        "image": worker_image(spec, pool) or STORED_IMAGE,
        "credentials": model.credentials.secret_name if model.credentials else None,
        "cache": model.cache.persistent_volume_claim if model.cache else None,
        "template": pool.template,
    }
    if (claim := spec.engine.kv_cache.pool_claim) is not None:
        made_from["kv_pool"] = claim
    pod = {name: without_defaults(getattr(pool, name)) for name in _POD_FIELDS}
    made_from |= {name: value for name, value in pod.items() if value not in (None, {})}
    return hashlib.sha256(msgspec.json.encode(made_from, order="sorted")).hexdigest()[:10]
