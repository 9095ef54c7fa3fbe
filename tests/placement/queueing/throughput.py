"""How much load workers take when their steps are full and the wait does not matter: where searches end."""

from __future__ import annotations

from math import inf

from fulcrum.load.demand import Demand
from fulcrum.placement.queueing.batch import Context, batch_group
from fulcrum.placement.queueing.prefill import Stations, prompt_time


def prefill_throughput(demand: Demand, stations: Stations) -> float:
    """Return the requests/s that prefill workers do when their steps are full and the wait does not matter."""
    total = 0.0
    for speed, workers in stations:
        time = prompt_time(
            speed,
            constant=speed.coefficients.prefill_a,
            prefix_hit=demand.prefix_hit,
            budget_tokens=speed.max_batched_tokens,
        )
        isl = max(demand.isl_tokens, 1.0)
        constant = time.constant * max(isl * time.chunks, 1.0 / max(speed.max_batch, 1))
        seconds = constant + time.linear * isl + time.square * isl * isl * (1.0 + max(demand.isl_cv2, 0.0))
        total += workers / seconds if seconds > 0.0 else (inf if workers > 0 else 0.0)
    return total


def decode_throughput(demand: Demand, stations: Stations) -> float:
    """Return the requests/s that decode workers do with full batches and no regard to TPOT."""
    context = Context.of(demand)
    groups = [batch_group(speed, workers, context) for speed, workers in stations if workers > 0]
    tokens = sum(group.workers * group.room / group.steps[-1] if group.steps[-1] > 0.0 else inf for group in groups)
    return tokens / max(demand.osl_tokens, 1.0)
