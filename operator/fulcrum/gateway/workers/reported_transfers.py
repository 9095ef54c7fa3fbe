"""What moving KV costs before any transfer was seen, of a model that only the workers' agents describe.

The gateway's configuration says it where the tables know the model by its name. It says nothing of a model that a
ConfigMap describes: an edit of that would replace all gateways.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from fulcrum.api.worker import ENGINE_KV_DTYPES, WorkerConfig
from fulcrum.capacity.config_fields import ModelConfigError
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.model_facts import facts_of_config
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.transfers import worker_transfer
from fulcrum.gateway.workers.registry import KnownWorker
from fulcrum.routing import ClusterView

logger = logging.getLogger(__name__)

_Seen = tuple[WorkerConfig, str | None, dict[str, Any]]
"""Configuration of a worker, element type of its KV, and its model's config.json."""


class ReportedTransfers:
    """Follows the pools that the gateway's configuration says nothing of. It may be lost: it is reported again."""

    def __init__(self, pools: Iterable[str]) -> None:
        self._seen: dict[str, _Seen | None] = dict.fromkeys(pools)
        """What the cost of each pool is from."""

    def expect(self, workers: Iterable[KnownWorker], cluster: ClusterView) -> None:
        """Tell routing what the latest reports of `workers` say; of two revisions in a pool, one of both counts."""
        if not self._seen:
            return
        first: dict[str, _Seen] = {}
        for worker in sorted(workers, key=lambda each: each.name):
            pool, config, report = worker.record.pool, worker.record.config, worker.report
            if pool in self._seen and config is not None and report is not None and report.model_config is not None:
                first.setdefault(pool, (config, report.kv_cache_dtype, report.model_config))
        for pool, seen in first.items():
            if self._seen[pool] == seen:
                continue
            self._seen[pool] = seen
            if (cost := _cost(*seen)) is not None:
                cluster.transfers.expect(pool, cost)


def _cost(config: WorkerConfig, took: str | None, document: dict[str, Any]) -> TransferCost | None:
    try:
        model = facts_of_config(document)
    except ModelConfigError as error:
        logger.warning("reported_model_unusable model=%s error=%r", config.model, str(error))
        return None
    dtype = took or ENGINE_KV_DTYPES.get(config.kv_cache.dtype, "")
    scaled = model.kind is not None and model.kind.scaled and dtype == "auto"
    return worker_transfer(config, model, kv=Precision.FP8 if dtype.startswith("fp8") or scaled else Precision.BF16)
