"""The production router in front of workers that are textbook queues: it must do about as well as one common queue.

To send each request where the least work waits is the same as one queue for all (M/M/k), if the router knew the work
exactly. It does not know how far the request under way is, but it does know prompts; sending by lot (k times M/M/1) is
what it has to be far from.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.simulation.textbook_queues import Seconds, waits
from tests.simulation.worlds import make_cluster, make_speed

from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.workload import Workload

COUNT = 5_000
TOKENS = 100_000


@pytest.mark.parametrize(("workers", "utilisation"), [(1, 0.6), (3, 0.7), (6, 0.8)])
def test_routing_by_work_is_nearly_one_queue(workers: int, utilisation: float) -> None:
    random = np.random.default_rng(workers)
    prompts = np.maximum(1, random.exponential(TOKENS, COUNT)).astype(np.int32)
    load = Workload(
        arrival_seconds=np.cumsum(random.exponential(1 / (workers * utilisation), COUNT)),
        prompt_tokens=prompts,
        output_tokens=np.ones(COUNT, dtype=np.int32),
        qos_class=np.zeros(COUNT, dtype=np.int16),
    )
    speed = make_speed(
        prefill=(0.0, 1 / TOKENS, 0.0), decode=(1e-9, 0.0, 0.0), kv_capacity_tokens=10**9, max_batch=1,
        max_batched_tokens=10**9,
    )  # fmt: skip
    slo = LatencyTargets(ttft_seconds=100.0, tpot_seconds=1.0, attainment=0.95)
    result = simulate(load, make_cluster(speed), Aggregated(pool="p", workers=workers), slo=slo)
    assert result.count(Outcome.SERVED) == COUNT
    services = prompts / TOKENS
    found = result.ttft_seconds - services
    assert found.min() > -1e-6
    # The same requests through both queues: less is left to chance than against the formulas for their means.
    common = waits(load.arrival_seconds, services, workers).mean()
    by_lot = waits_by_lot(load.arrival_seconds, services, random.integers(workers, size=COUNT)).mean()
    assert found.mean() >= common * 0.95  # nobody does better than one queue, but for chance
    assert found.mean() <= common + 0.2 * (by_lot - common) + 1e-6


def waits_by_lot(arrivals: Seconds, services: Seconds, worker_of: np.ndarray) -> Seconds:
    """Seconds in the queues of workers that are chosen without looking."""
    waited = np.zeros(len(arrivals))
    for worker in set(worker_of.tolist()):
        here = worker_of == worker
        waited[here] = waits(arrivals[here], services[here])
    return waited
