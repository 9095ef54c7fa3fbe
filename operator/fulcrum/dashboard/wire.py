"""The documents that the page receives, as JSON with camelCase names. What is unknown is left out."""

from __future__ import annotations

import msgspec

from fulcrum.api.status import BatchesStatus, Decision


class _Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One document of the stream."""


class Row(_Document, frozen=True, kw_only=True):
    """One cluster in the list."""

    key: str
    """`namespace/name`."""
    name: str
    namespace: str
    state: str
    """`bad`, `warn`, `busy` (on the way to its spec), `ok` or `unknown`."""
    reason: str = ""
    """Reason of the condition that `state` rests on."""
    model: str = ""
    mode: str = ""
    ratio: str | None = None
    target: str | None = None
    ready: str | None = None
    """Ready workers of desired ones, as `3/4`."""
    workers: int = 0
    """Pods of workers."""
    running: int | None = None
    """Requests in the engines' batches, over the workers that answered."""
    waiting: int | None = None
    kv: float | None = None
    """Highest share of KV blocks in use of any worker, 0 to 1."""
    rate: float | None = None
    """Requests per second that arrive."""
    forecast: float | None = None
    """Requests per second that are expected."""
    attainment: float | None = None
    promise: float | None = None
    """Share of requests that the spec promises inside the SLO, 0 to 1."""
    rejected: float | None = None


class ConditionRow(_Document, frozen=True, kw_only=True):
    """One condition of a cluster."""

    type: str
    status: str
    reason: str
    message: str
    since: str


class RoleRow(_Document, frozen=True, kw_only=True):
    """Workers of one role."""

    role: str
    desired: int
    ready: int
    draining: int


class Latency(_Document, frozen=True, kw_only=True):
    """One latency against its promise, as durations."""

    p50: str | None = None
    p90: str | None = None
    p99: str | None = None
    promise: str | None = None
    late: bool = False
    """Whether p90 exceeds the promise."""


class ForecastRow(_Document, frozen=True, kw_only=True):
    """The load that is planned for."""

    method: str
    rate: float
    upper: float | None = None
    horizon: str | None = None
    error: float | None = None


class DecisionRow(_Document, frozen=True, kw_only=True):
    """One decision, and why it was taken."""

    time: str
    reason: str
    message: str
    warning: bool = False


class Detail(_Document, frozen=True, kw_only=True):
    """One cluster in full, without its workers."""

    row: Row
    endpoint: str = ""
    conditions: tuple[ConditionRow, ...] = ()
    roles: tuple[RoleRow, ...] = ()
    ttft: Latency = Latency()
    tpot: Latency = Latency()
    forecast: ForecastRow | None = None
    rejections: dict[str, float] | None = None
    """Requests per second that are turned away, by reason; None: not known."""
    queued: float | None = None
    """Requests in the gateways' admission queues, on average; None: there is no queue, or it is not known."""
    batches: BatchesStatus | None = None
    decisions: tuple[DecisionRow, ...] = ()
    """Newest first."""
    last: Decision | None = None
    """The last decision as the status has it: with what it rests on, where the load was the reason."""


class WorkerRow(_Document, frozen=True, kw_only=True):
    """One worker."""

    name: str
    role: str
    pool: str
    state: str
    """`ready`, a Pod phase, or the reason for which its container waits."""
    created: str
    ready: bool = False
    restarts: int = 0
    running: int | None = None
    waiting: int | None = None
    kv: float | None = None
    """Share of KV blocks in use, 0 to 1."""
