"""What one worker carries without waiting or spread: where searches start."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets, Load
from fulcrum.performance.queueing.decode import pull_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRates:
    """Requests per second that one worker carries without waiting or spread; by role."""

    prefill: float
    decode: float
    mixed: float
    share: float = 1.0
    """Of the requests that its pool takes (`pools[].admits`); the rates are of these."""

    def of_role(self, role: Role) -> float:
        """Return the rate in a role."""
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.MIXED: self.mixed}[role]


def unit_rates(speed: WorkerSpeed, load: Load, slo: LatencyTargets) -> UnitRates:
    """Return what one worker carries at full load: the fluid limit."""
    prompt, answer = load.prefill, load.decode
    fresh = prompt.isl_tokens * (1 - prompt.prefix_hit)
    squared = prompt.isl_tokens**2 * (1 + prompt.isl_cv2) * (1 - prompt.prefix_hit**2)
    # Steps that are full share their constant.
    sharing = max(1.0, min(speed.max_batched_tokens / max(fresh, 1.0), speed.max_batch))
    prefill = 1 / max(speed.prefill_seconds(sharing * fresh, sharing * squared) / sharing, 1e-9)
    context = answer.isl_tokens + answer.osl_tokens * (1 + answer.osl_cv2) / 2
    batch = min(speed.decode_batch(slo.tpot_seconds, context), speed.kv_capacity_tokens / context)
    batch = max(batch, 1.0)
    decode = batch / (answer.osl_tokens * max(speed.decode_step_seconds(batch, batch * context), 1e-9))
    link = 1 / max(pull_seconds(prompt, speed), 1e-9)
    both = 1 / (1 / prefill + 1 / decode)
    ranks = speed.ranks
    return UnitRates(prefill=ranks * min(prefill, link), decode=ranks * min(decode, link), mixed=ranks * both)
