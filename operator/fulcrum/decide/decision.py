"""What a decision comes to: which worker does what, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Explanation, KvRoute, SleepStatus
from fulcrum.decide.assign import Assignment
from fulcrum.decide.rehearsed import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Why workers are flipped, created and drained by a decision; other causes say so themselves."""

    flip: Reason = Reason.ROLE_FLIPPED
    create: Reason = Reason.WORKER_CREATED
    drain: Reason = Reason.WORKER_DRAINING
    load: str = ""
    """The load that flips are decided for, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Figures of a decision, for status and metrics."""

    reason: Reason | None = None
    """Why the target changes; None while it does not."""
    unknown: str | None = None
    """Why nothing can be decided."""
    over_capacity: bool = False
    calm: bool = False
    """Nothing changes, and so few requests miss the promise that nothing is looked for."""
    unreachable: bool = False
    """Not even an idle worker keeps the SLO; the plan is made for the nearest that one does."""
    failure: Exception | None = field(default=None, compare=False)
    """What a defect raised; what stands is held."""
    routes: tuple[KvRoute, ...] | None = ()
    """Where KV flows; none outside of mode Auto. None: not known, and what the status says of it stands."""
    explanation: Explanation | None = None
    """What the decision rests on, for people; None where nothing changes, or the load was not the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleScale:
    """One InferenceScale: what it asks for, and what it gets."""

    pool: str
    role: Role
    asked: int
    """`spec.replicas`; for one that is not there yet, what it begins with."""
    desired: int
    """`asked` within the bounds."""
    limit: str = ""
    """Why `desired` is another number than `asked`, for people; empty where it is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceDecision:
    """Input of the steps."""

    assignment: Assignment
    reasons: Reasons = Reasons()
    trace: Trace = field(default_factory=Trace)
    proposal: BalanceDecision | None = None
    """What would be done if the mode were Auto."""
    scales: tuple[RoleScale, ...] = ()
    """What each InferenceScale gets; mode External."""
    wanted: Wanted | None = None
    """What is to be rehearsed."""
    sleep: SleepStatus | None = None
    """Whether workers are to run; None without `balance.idleAfter`."""
