"""vLLM's tiered offloading, with a worker for CPUs."""

from __future__ import annotations

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
    OffloadingWorker,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from fulcrum_worker.kv.host_worker import HostWorker, Pace
from fulcrum_worker.kv.registration import HOST_TOKENS, HOST_USED


class HostTierSpec(TieringOffloadingSpec):
    """Host memory as a tier: on GPUs vLLM's own worker copies, on CPUs ours."""

    _worker: OffloadingWorker | None
    pool_namespace: str | None = None
    """Where this engine's blocks are in the pool; None: they mean nothing to other engines."""

    @property
    def has_pool(self) -> bool:
        """Whether KV goes on from host memory to the pool."""
        return bool(self.secondary_tier_configs)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """vLLM's metrics and ours."""
        used = OffloadingGaugeMetadata(documentation="Fraction of the host tier's memory that holds KV.")
        tokens = OffloadingGaugeMetadata(documentation="Tokens whose KV fits in the host tier.")
        return {**super().build_metric_definitions(extra_config), HOST_USED: used, HOST_TOKENS: tokens}

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return the worker that copies between the engine's cache and host memory."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            try:
                self._worker = HostWorker(
                    kv_caches, region=region, blocks_per_chunk=self.blocks_per_chunk, pace=self.pace()
                )
            except BaseException:
                region.cleanup()
                raise
        return self._worker

    def pace(self) -> Pace | None:
        """How slow the link is made; None: as quick as it is."""
        return None
