"""What one worker carries, were work a fluid: nobody waits."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.api.names import Role
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets, Load


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRates:
    """Requests per second that one worker carries without waiting or spread; by role."""

    prefill: float
    decode: float
    mixed: float
    prompts: float = 1.0
    """Prompts that it prefills one after another, each for itself: its ranks."""
    answers: float = 1.0
    """Answers that it decodes at once."""
    share: float = 1.0
    """Of all requests, what its pool takes (`pools[].admits`)."""
    prompt_share: float = 1.0
    """Of the tokens of all prompts, what its pool takes. Prefill is counted in requests with a mean prompt."""

    def of_role(self, role: Role) -> float:
        """Return the rate in a role."""
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.MIXED: self.mixed}[role]

    def share_of(self, role: Role) -> float:
        """Return the share of a role's work that the pool takes."""
        return self.prompt_share if role is Role.PREFILL else self.share


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
    return UnitRates(
        prefill=ranks * min(prefill, link),
        decode=ranks * min(decode, link),
        mixed=ranks * both,
        prompts=ranks,
        answers=ranks * batch,
    )


def pull_seconds(demand: Demand, speed: WorkerSpeed) -> float:
    """Return how long a mean prompt's KV takes of a link at each end; what a decode worker has cached is not pulled."""
    return speed.transfer_seconds_per_token * demand.isl_tokens * (1.0 - min(max(demand.prefix_hit, 0.0), 1.0))
