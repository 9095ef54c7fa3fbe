"""The production router in front of workers that are textbook queues: it must do about as well as one common queue.

To send each request where the least work waits is the same as one queue for all (M/M/k), if the router knew the work
exactly. It does not know how far the request under way is, but it does know prompts; sending by lot (k times M/M/1) is
what it has to be far from.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.simulation.test_queueing import erlang_c
from tests.simulation.worlds import make_cluster, make_speed

from fulcrum.load.demand import Slo
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.workload import Workload

COUNT = 20_000
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
    slo = Slo(ttft_seconds=100.0, tpot_seconds=1.0, attainment=0.95)
    result = simulate(load, make_cluster(speed), Aggregated(pool="p", workers=workers), slo=slo)
    assert result.count(Outcome.SERVED) == COUNT
    served = prompts / TOKENS
    waits = result.ttft_seconds - served
    assert waits.min() > -1e-6
    common = erlang_c(workers, workers * utilisation) / (workers * (1 - utilisation))
    by_lot = utilisation / (1 - utilisation)
    wait = float(waits[COUNT // 10 :].mean())
    assert wait >= common * 0.8  # nobody does better than one queue, but for chance
    assert wait <= (common * 1.2 if workers == 1 else common + 0.2 * (by_lot - common))
