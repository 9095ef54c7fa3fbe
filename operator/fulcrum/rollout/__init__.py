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
    as_seen,
    chosen_kv_dtype,
    chosen_model,
    standing_workers,
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
    "as_seen",
    "changes_cluster",
    "chosen_kv_dtype",
    "chosen_model",
    "is_late",
    "standing_workers",
    "worker_config",
    "worker_image",
    "worker_revision",
]
