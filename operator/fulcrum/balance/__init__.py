"""How many workers of each role, and the next safe step towards it. Pure."""

from fulcrum.balance.actions import (
    Action,
    CreateWorker,
    DeleteWorker,
    SetRole,
    StartDrain,
    TellRole,
    TellSleep,
    changes_cluster,
)
from fulcrum.balance.decision import RoleScale
from fulcrum.balance.faults import is_late
from fulcrum.balance.plan import BalancePlan, plan
from fulcrum.balance.revision import (
    adapter_sources,
    chosen_kv_dtype,
    standing_workers,
    with_model,
    worker_config,
    worker_image,
    worker_revision,
)
from fulcrum.balance.snapshot import GatewayState, ObservedWorker, Refusal, Snapshot, Termination, WorkerPhase
from fulcrum.balance.status import PlanEvent, stopped_status
from fulcrum.balance.target import make_target

__all__ = [
    "Action",
    "BalancePlan",
    "CreateWorker",
    "DeleteWorker",
    "GatewayState",
    "ObservedWorker",
    "PlanEvent",
    "Refusal",
    "RoleScale",
    "SetRole",
    "Snapshot",
    "StartDrain",
    "TellRole",
    "TellSleep",
    "Termination",
    "WorkerPhase",
    "adapter_sources",
    "changes_cluster",
    "chosen_kv_dtype",
    "is_late",
    "make_target",
    "plan",
    "standing_workers",
    "stopped_status",
    "with_model",
    "worker_config",
    "worker_image",
    "worker_revision",
]
