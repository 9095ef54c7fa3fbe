"""vLLM's own metrics, read into what the agent reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fulcrum.api.worker import EngineProgress, KvPoolReport, OffloadReport, TransferCounters, WorkCounters
from fulcrum_worker.engine_limits import MAX_BATCH, MAX_BATCHED_TOKENS
from fulcrum_worker.engine_steps import LONGEST_STEP, STEPPED_AT
from fulcrum_worker.engine_work import GENERATED, WORK, work_counters
from fulcrum_worker.kv.pool import names as pool_names
from fulcrum_worker.kv.registration import HOST_TOKENS, HOST_USED

_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The newer name first."""
_CACHE_CONFIG: Final = "vllm:cache_config_info"
_BY_SOURCE: Final = "vllm:prompt_tokens_by_source_total"
"""Counted at the first token, and, unlike what `WORK` has, without prompts whose KV was pulled from a peer."""
_FAILED_TRANSFERS: Final = "vllm:nixl_num_failed_transfers_total"
_FAILED_NOTIFICATIONS: Final = "vllm:nixl_num_failed_notifications_total"
_EXPIRED: Final = "vllm:nixl_num_kv_expired_reqs_total"
_LOADED: Final = "vllm:kv_offload_load_bytes_total"
_LOAD_SECONDS: Final = "vllm:kv_offload_load_time_total"
_STORED: Final = "vllm:kv_offload_store_bytes_total"
_CACHED_BY_SOURCE: Final = "vllm:prompt_tokens_cached_by_source_total"
_POOL_COUNTERS: Final = {
    "read_bytes": f"{pool_names.READ_BYTES}_total",
    "written_bytes": f"{pool_names.WRITTEN_BYTES}_total",
    "bad_blocks": f"{pool_names.BAD_BLOCKS}_total",
    "dropped_blocks": f"{pool_names.DROPPED_BLOCKS}_total",
    "used_bytes": pool_names.USED_BYTES,
}
"""Field of the pool's report -> vLLM's or our metric."""
_POOL_SECONDS: Final = f"{pool_names.READ_SECONDS}_total"
_PREFIX: Final = "vllm:prefix_cache_queries_total"
_PREFIX_HITS: Final = "vllm:prefix_cache_hits_total"
"""In tokens."""
_STEPS: Final = "vllm:iteration_tokens_total_count"
_TOKENS: Final = ("vllm:prompt_tokens_total", GENERATED)
_COUNTERS: Final = (_FAILED_TRANSFERS, _FAILED_NOTIFICATIONS, _EXPIRED, _STEPS, *_TOKENS)
_WANTED: Final = (
    *(_RUNNING, _WAITING, *_KV_USAGE, _CACHE_CONFIG, MAX_BATCH, MAX_BATCHED_TOKENS, STEPPED_AT, LONGEST_STEP),
    *(*WORK, _BY_SOURCE, *_COUNTERS, _PREFIX, _PREFIX_HITS),
    *(HOST_USED, HOST_TOKENS, _LOADED, _LOAD_SECONDS, _STORED, _CACHED_BY_SOURCE),
    *(*_POOL_COUNTERS.values(), _POOL_SECONDS, pool_names.PROBLEM),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """One scrape of vLLM. None is unknown."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Fraction of KV blocks in use, 0 to 1; what only the prefix cache remembers counts as free."""
    kv_capacity_tokens: int | None = None
    kv_cache_dtype: str | None = None
    """Element type of the KV cache, in vLLM's words; None where engines differ or do not say."""
    work: WorkCounters | None = None
    max_batch: int | None = None
    max_batched_tokens: int | None = None
    transfers: TransferCounters | None = None
    progress: EngineProgress | None = None
    stepped_at: float | None = None
    """Machine's monotonic clock when the last step ended that computed something."""
    longest_step_seconds: float | None = None
    host_tokens: int | None = None
    host_used: float | None = None
    """Fraction of the host tier's memory that holds KV."""
    loaded_bytes: int | None = None
    load_seconds: float | None = None
    stored_bytes: int | None = None
    device_hit_tokens: int | None = None
    external_hit_tokens: int | None = None
    host_hit_tokens: int | None = None
    pool: KvPoolReport | None = None
    """Without its size; None where the engine has no pool."""
    prefix_tokens: int | None = None
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_hit_tokens: int | None = None
    ranks: tuple[EngineMetrics, ...] = ()
    """Of each rank of data parallel, in their order; empty where the engine is one rank."""

    def with_counts(self, offload: OffloadReport) -> OffloadReport:
        """Return the report of the host tier with what this scrape knows of it."""
        return msgspec.structs.replace(
            offload,
            host_tokens=self.host_tokens,
            host_used=self.host_used,
            device_hit_tokens=self.device_hit_tokens,
            external_hit_tokens=self.external_hit_tokens,
            host_hit_tokens=self.host_hit_tokens,
            loaded_bytes=self.loaded_bytes,
            load_seconds=self.load_seconds,
            stored_bytes=self.stored_bytes,
            pool=msgspec.structs.replace(self.pool, size_bytes=offload.pool.size_bytes)
            if offload.pool is not None and self.pool is not None
            else offload.pool,
        )

    def progress_at(self, now: float) -> EngineProgress | None:
        """Return the progress as it is now (the machine's monotonic clock)."""
        if self.progress is None or self.stepped_at is None:
            return self.progress
        return msgspec.structs.replace(
            self.progress,
            still_seconds=max(now - self.stepped_at, 0.0),
            longest_step_seconds=self.longest_step_seconds,
        )

    @property
    def kv_held_for_peers(self) -> float | None:
        """Fraction of KV blocks held for a decode engine that has not pulled them; None while it cannot be told.

        vLLM 0.32.0 has no metric for it: when a prefill leg ends, its request leaves `running` and its blocks stay in
        use until the peer has read them or the lease runs out. So it is all of the usage when nothing runs or waits
        (a decode request that is still loading KV counts as waiting), zero when nothing is in use, and mixed with the
        live requests' own blocks otherwise.
        """
        if self.kv_usage == 0:
            return 0.0
        if self.running == 0 and self.waiting == 0:
            return self.kv_usage
        return None

    @property
    def idle(self) -> bool:
        """True only when it is known that nothing runs, waits or is held for a peer."""
        return self.running == 0 and self.waiting == 0 and self.kv_held_for_peers == 0


def parse_engine_metrics(text: str) -> EngineMetrics:
    """Reads Prometheus text of vLLM; raises ValueError when it is none. Counts of several ranks are added up."""
    samples = _samples(text, _WANTED)
    count = len({sample.labels.get("engine") for sample in samples.get(_RUNNING, [])})
    whole = _metrics(samples)
    if count < 2:
        return whole
    ranks = (_metrics(_of_rank(samples, rank)) for rank in range(count))
    # vLLM says the blocks of all ranks for each of them (0.32: `MPClient._apply_ready_response`).
    blocks = None if whole.kv_capacity_tokens is None else whole.kv_capacity_tokens // count
    share = None if blocks is None else blocks // count
    return replace(
        whole, kv_capacity_tokens=blocks, ranks=tuple(replace(rank, kv_capacity_tokens=share) for rank in ranks)
    )


def _of_rank(samples: dict[str, list[Sample]], rank: int) -> dict[str, list[Sample]]:
    own = ((name, [each for each in of if each.labels.get("engine") == str(rank)]) for name, of in samples.items())
    return {name: of for name, of in own if of}


def _metrics(samples: dict[str, list[Sample]]) -> EngineMetrics:
    """Read samples of a whole engine, or of one of its ranks."""
    tiered = HOST_USED in samples
    usage = next((samples[name] for name in _KV_USAGE if name in samples), [])
    return EngineMetrics(
        running=_total(samples.get(_RUNNING)),
        waiting=_total(samples.get(_WAITING)),
        kv_usage=sum(sample.value for sample in usage) / len(usage) if usage else None,
        kv_capacity_tokens=_capacity_tokens(samples.get(_CACHE_CONFIG, [])),
        kv_cache_dtype=_cache_dtype(samples.get(_CACHE_CONFIG, [])),
        work=work_counters(
            {name: sum(sample.value for sample in samples[name]) for name in WORK if name in samples},
            computed_tokens=_from_source(samples.get(_BY_SOURCE, []), "local_compute"),
        ),
        transfers=_transfers(samples),
        progress=_progress(samples),
        stepped_at=_most(samples.get(STEPPED_AT)),
        longest_step_seconds=_most(samples.get(LONGEST_STEP)),
        max_batch=_largest(samples.get(MAX_BATCH)),
        max_batched_tokens=_largest(samples.get(MAX_BATCHED_TOKENS)),
        host_used=_most(samples.get(HOST_USED)),
        host_tokens=_largest(samples.get(HOST_TOKENS)),
        loaded_bytes=_total(samples.get(_LOADED)),
        load_seconds=sum(sample.value for sample in samples[_LOAD_SECONDS]) if _LOAD_SECONDS in samples else None,
        stored_bytes=_total(samples.get(_STORED)),
        device_hit_tokens=_from_source(samples.get(_BY_SOURCE, []), "local_cache_hit") if tiered else None,
        external_hit_tokens=_from_source(samples.get(_BY_SOURCE, []), "external_kv_transfer") if tiered else None,
        host_hit_tokens=_from_source(samples.get(_CACHED_BY_SOURCE, []), "host") if tiered else None,
        pool=_pool(samples) if pool_names.PROBLEM in samples else None,
        prefix_tokens=_total(samples.get(_PREFIX)),
        prefix_hit_tokens=_total(samples.get(_PREFIX_HITS)),
    )


def metric_totals(text: str, names: Iterable[str]) -> dict[str, float]:
    """Sample name -> its sum over all labels, for those of `names` that are there. Raises ValueError as above."""
    wanted = tuple(names)
    samples = _samples(text, wanted)
    return {name: sum(sample.value for sample in samples[name]) for name in wanted if name in samples}


def _samples(text: str, names: tuple[str, ...]) -> dict[str, list[Sample]]:
    # vLLM exports some thousand lines, nearly all of them histograms: parse the few that are wanted.
    lines = [line for line in text.splitlines() if line.startswith(names)]
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def _total(samples: list[Sample] | None) -> int | None:
    return None if not samples else round(sum(sample.value for sample in samples))


def _largest(samples: list[Sample] | None) -> int | None:
    most = _most(samples)
    return None if most is None else round(most)


def _most(samples: list[Sample] | None) -> float | None:
    return max(sample.value for sample in samples) if samples else None


def _from_source(samples: list[Sample], source: str) -> int | None:
    return _total([sample for sample in samples if sample.labels.get("source") == source])


def _transfers(samples: dict[str, list[Sample]]) -> TransferCounters | None:
    """All of it or nothing: whether KV was pulled or computed is judged by several of them together."""
    failed, unsaid, expired = (
        _total(samples.get(name)) for name in (_FAILED_TRANSFERS, _FAILED_NOTIFICATIONS, _EXPIRED)
    )
    pulled, computed = (
        _from_source(samples.get(_BY_SOURCE, []), source) for source in ("external_kv_transfer", "local_compute")
    )
    if failed is None or unsaid is None or expired is None or pulled is None or computed is None:
        return None
    return TransferCounters(
        pulled_tokens=pulled,
        computed_tokens=computed,
        failed_transfers=failed,
        failed_notifications=unsaid,
        expired_requests=expired,
    )


def _pool(samples: dict[str, list[Sample]]) -> KvPoolReport:
    problem = next((each.labels.get("problem") for each in samples[pool_names.PROBLEM] if each.value), None)
    seconds = samples.get(_POOL_SECONDS)
    counts = {field: _total(samples.get(name)) for field, name in _POOL_COUNTERS.items()}
    return KvPoolReport(
        size_bytes=0,
        hit_tokens=_from_source(samples.get(_CACHED_BY_SOURCE, []), "disk"),
        read_seconds=sum(sample.value for sample in seconds) if seconds else None,
        problem=problem,
        **counts,
    )


def _progress(samples: dict[str, list[Sample]]) -> EngineProgress | None:
    steps, *tokens = (_total(samples.get(name)) for name in (_STEPS, *_TOKENS))
    known = [count for count in tokens if count is not None]
    return EngineProgress(steps=steps, tokens=sum(known)) if steps is not None and len(known) == len(tokens) else None


def _capacity_tokens(samples: list[Sample]) -> int | None:
    total = 0
    for sample in samples:
        block_size, blocks = sample.labels.get("block_size", ""), sample.labels.get("num_gpu_blocks", "")
        if not (block_size.isdecimal() and blocks.isdecimal()):
            return None  # vLLM writes "None" until the cache is allocated
        total += int(block_size) * int(blocks)
    return total or None


def _cache_dtype(samples: list[Sample]) -> str | None:
    found = {sample.labels.get("cache_dtype") for sample in samples}
    return found.pop() or None if len(found) == 1 else None


async def scrape_engine(session: aiohttp.ClientSession, base_url: str, *, timeout_seconds: float) -> EngineMetrics:
    """Scrapes vLLM; whatever goes wrong leaves everything unknown."""
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with session.get(f"{base_url}/metrics", timeout=timeout) as response:
            response.raise_for_status()
            return parse_engine_metrics(await response.text())
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return EngineMetrics()
