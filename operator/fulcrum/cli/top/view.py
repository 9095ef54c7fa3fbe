"""What one frame of `fulcrum top` shows. None is unknown, and shown as such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fulcrum.api.types import InferenceCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """One worker."""

    name: str
    role: str
    ready: bool
    state: str
    """`ready`, a Pod phase, or what keeps it from running."""
    age_seconds: float
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Fraction of KV blocks in use, 0 to 1."""
    prompt_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    answered: bool = False
    """The worker was asked for its load, and answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What the gateways counted between two looks."""

    rate: float
    """Requests per second that came, also the ones that were turned away."""
    failed: Mapping[str, float] = field(default_factory=dict)
    """Requests per second that were turned away or failed, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event of the cluster."""

    time: datetime
    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything at one moment."""

    now: datetime
    cluster: InferenceCluster
    workers: tuple[WorkerLine, ...] = ()
    gateways: int = 0
    """Gateway Pods that run."""
    gateways_answered: int = 0
    arrivals: Arrivals | None = None
    """None until two looks at every running gateway."""
    events: tuple[EventLine, ...] = ()
    """Newest first."""

    @property
    def reachable(self) -> bool:
        """Report whether anything answered at its Pod address."""
        return self.gateways_answered > 0 or any(worker.answered for worker in self.workers)
