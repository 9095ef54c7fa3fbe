"""What one tick of the loop for one cluster has found, decided and could not do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from fulcrum.api.internal_token import fingerprint
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Gang, InferenceCluster, InferenceClusterStatus
from fulcrum.api.worker import AdapterSource
from fulcrum.controller.apply import Outcome
from fulcrum.controller.children import Owner
from fulcrum.controller.observed import Observed
from fulcrum.controller.published import keeping_measurements, with_measurements
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.decide import Snapshot
from fulcrum.report import BalancePlan, stopped_status

MOST_FAILURES: Final = 10
"""Failures of one tick that are told: a cluster may have hundreds of workers."""


@dataclass(slots=True)
class Memory:
    """What is only remembered to save work; with all of it lost the same decisions follow."""

    uid: str = ""
    acknowledged: set[tuple[str, int, int]] = field(default_factory=set)
    """(uid, restarts, epoch) of agents that know their role."""
    taken_names: set[str] = field(default_factory=set)
    """Names of Pods that are not of this cluster."""
    verified: tuple[str, int, int] | None = None
    """(uid, generation, workers that evictions must leave) whose children were all compared."""
    verified_at: float = 0.0
    serves: bool = False
    """Workers were ready in the last tick."""
    namespace_ended_at: float = float("-inf")
    """Monotonic time at which the API server last said that the cluster's namespace is being deleted."""
    told_adapters: dict[tuple[str, int], tuple[AdapterSource, ...]] = field(default_factory=dict)
    """LoRA adapters that agents were told, by (uid, restarts)."""
    told_failures: set[str] = field(default_factory=set)
    """What went wrong in the last tick, of which there are events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Something that could not be done."""

    message: str
    reason: Reason = Reason.RECONCILE_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The cluster's token, or why there is none."""

    text: str | None = field(default=None, repr=False)
    failure: Failure | None = None

    @property
    def fingerprint(self) -> str | None:
        return None if self.text is None else fingerprint(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one tick has found out."""

    snapshot: Snapshot
    watched: WatchedCluster
    token: Token
    gang: Gang
    """What places all Pods of a new worker on several nodes at once."""
    now: datetime
    """Just before agents were asked."""
    settled: bool
    """Whether unknown figures are more than not yet known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What one tick has found and decided."""

    owner: Owner
    observed: Observed
    cluster: InferenceCluster
    seen: Seen
    plan: BalancePlan
    memory: Memory

    @property
    def snapshot(self) -> Snapshot:
        """What the plan was made of."""
        return self.seen.snapshot


def summary_of(failures: Iterable[Failure]) -> str:
    """Return the first few failures, and how many more there are."""
    messages = [each.message for each in failures]
    more = len(messages) - MOST_FAILURES
    return "; ".join(messages[:MOST_FAILURES]) + (f"; and {more} more" if more > 0 else "")


def final_status(tick: Tick, outcome: Outcome, failures: list[Failure]) -> InferenceClusterStatus:
    """Return the planned status with what was measured, corrected by what came of the plan."""
    status, last = tick.plan.status, tick.cluster.status
    if failures:
        message = summary_of(failures)
        reason = next((f.reason for f in failures if f.reason is Reason.NAME_TAKEN), Reason.RECONCILE_FAILED)
        generation = tick.snapshot.generation
        status = stopped_status(reason, message, status=status, last=last, generation=generation, now=tick.seen.now)
    status = (
        with_measurements(status, tick.snapshot.measurements, last)
        if tick.seen.settled
        else keeping_measurements(status, last)
    )
    status = msgspec.structs.replace(status, adapters=tick.snapshot.measurements.adapters or None)
    if outcome.done or tick.plan.observed_only:
        return status
    return msgspec.structs.replace(status, last_decision=last.last_decision)
