"""What the two halves of the connector tell each other once a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)

from fulcrum_worker.kv.host_worker import LoadProgress


@dataclass
class TierMetadata(OffloadingConnectorMetadata):
    """From the scheduler to the worker, once a step."""

    fronts: dict[int, TransferJob] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    """Job -> blocks of it, from the end, that are still wanted."""
    idle: bool = False
    """No request computes in this step."""


@dataclass
class TierWorkerMetadata(OffloadingWorkerMetadata):
    """From the worker to the scheduler, once a step."""

    progress: dict[int, LoadProgress] = field(default_factory=dict)
    moved: tuple[int, float] = (0, 0.0)
