"""The next safe step towards what was decided. Pure."""

from fulcrum.rollout.actions import (
    Action,
    CreateWorker,
    DeleteWorker,
    SetRole,
    StartDrain,
    TellRole,
    TellSleep,
    changes_cluster,
)
from fulcrum.rollout.faults import is_late
from fulcrum.rollout.revision import (
    adapter_sources,
    chosen_kv_dtype,
    standing_workers,
    with_model,
    worker_config,
    worker_image,
    worker_revision,
)

__all__ = [
    "Action",
    "CreateWorker",
    "DeleteWorker",
    "SetRole",
    "StartDrain",
    "TellRole",
    "TellSleep",
    "adapter_sources",
    "changes_cluster",
    "chosen_kv_dtype",
    "is_late",
    "standing_workers",
    "with_model",
    "worker_config",
    "worker_image",
    "worker_revision",
]
