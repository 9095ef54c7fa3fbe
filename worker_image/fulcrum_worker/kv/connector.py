"""vLLM's offloading connector, which also loads the rest of a prefix while the engine computes its front.

The scheduler's half decides and keeps book (`tier_scheduler`); the worker's half copies. What `policy: load` needs is
vLLM's own. Written against vLLM 0.32.0, whose classes it extends.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from fulcrum_worker.kv.host_worker import HostWorker
from fulcrum_worker.kv.pool.namespace import NotShareableError, namespace
from fulcrum_worker.kv.spec import HostTierSpec
from fulcrum_worker.kv.step_metadata import TierMetadata, TierWorkerMetadata
from fulcrum_worker.kv.tier_scheduler import IDLE_WAIT_SECONDS, TierScheduler

logger = logging.getLogger(__name__)


class TierConnector(OffloadingConnector):
    """`OffloadingConnector` with front recomputation, and without spinning while a load is under way."""

    scheduler_half = TierScheduler

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        # Not the constructor of `OffloadingConnector`, which makes a scheduler's half of its own.
        super(OffloadingConnector, self).__init__(vllm_config, role, kv_cache_config)
        config = build_offloading_config(vllm_config, kv_cache_config)
        self._canonical_layout = config.canonical_layout
        spec = OffloadingSpecFactory.create_spec(config)
        if isinstance(spec, HostTierSpec) and spec.has_pool and role == KVConnectorRole.SCHEDULER:
            try:
                spec.pool_namespace = namespace(spec, vllm_config)
            except (NotShareableError, AttributeError, ImportError) as error:  # the latter: another vLLM
                logger.warning("kv_pool_not_used reason=%r", str(error))
        self.connector_scheduler: TierScheduler | None = None
        self.connector_worker: OffloadingConnectorWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = self.scheduler_half(spec, vllm_config, kv_cache_config)
        else:
            self.connector_worker = OffloadingConnectorWorker(spec, vllm_config, kv_cache_config)
        self._started = False

    @property
    def host_worker(self) -> HostWorker | None:
        """Our worker; None on GPUs, where vLLM's own copies."""
        worker = self.connector_worker.worker if self.connector_worker is not None else None
        return worker if isinstance(worker, HostWorker) else None

    @property
    def tier(self) -> TierScheduler:
        """The scheduler's half."""
        assert self.connector_scheduler is not None
        return self.connector_scheduler

    def has_pending_block_frees(self) -> bool:
        """Whether blocks come free without a preemption."""
        return self.connector_scheduler is not None and self.connector_scheduler.holds_blocks

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Start this step's copies: on CPUs vLLM would start loads only after the forward pass."""
        super().bind_connector_metadata(connector_metadata)
        self._started = False
        worker = self.host_worker
        if worker is None or not isinstance(connector_metadata, TierMetadata):
            return
        for job_id, job in connector_metadata.fronts.items():
            worker.load_from_end(job_id, job.src_spec, job.dst_spec)
        for job_id, blocks in connector_metadata.kept.items():
            worker.keep(job_id, blocks)
        assert self.connector_worker is not None
        self.connector_worker.start_kv_transfers(connector_metadata)
        self._started = True

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start this step's copies where they have not begun."""
        if not self._started:
            super().start_load_kv(forward_context, **kwargs)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Requests whose load has ended. A step that computes nothing waits a little for one."""
        meta, worker = self._connector_metadata, self.host_worker
        if worker is not None and isinstance(meta, TierMetadata) and meta.idle:
            worker.await_change(IDLE_WAIT_SECONDS)
        finished: tuple[set[str], set[str]] = super().get_finished(finished_req_ids)
        return finished

    def build_connector_worker_meta(self) -> OffloadingWorkerMetadata | None:
        """What the scheduler's half learns of this step."""
        stock = super().build_connector_worker_meta()
        worker = self.host_worker
        if worker is None:
            return stock
        progress, moved = worker.progress(), worker.take_moved()
        if not progress and not moved[0]:
            return stock
        stock = stock or OffloadingWorkerMetadata()
        return TierWorkerMetadata(
            completed_jobs=stock.completed_jobs,
            transfer_stats=stock.transfer_stats,
            progress=progress,
            moved=moved,
        )
