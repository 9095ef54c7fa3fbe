"""How many workers of each role there are to be. Pure."""

from fulcrum.decide.decision import RoleScale
from fulcrum.decide.snapshot import GatewayState, ObservedWorker, Refusal, Snapshot, Termination, WorkerPhase
from fulcrum.decide.target import make_target

__all__ = [
    "GatewayState",
    "ObservedWorker",
    "Refusal",
    "RoleScale",
    "Snapshot",
    "Termination",
    "WorkerPhase",
    "make_target",
]
