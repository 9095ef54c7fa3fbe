"""Batch requests beside online ones in the simulator: they use what is idle, and are ended at any stage."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.worlds import SLO, make_cluster, make_speed

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, ClassKind, ClassMatch, QosClass
from fulcrum.simulation.arrivals import constant
from fulcrum.simulation.engine import Simulation, simulate
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies.fixed import Fixed
from fulcrum.simulation.workload import merged

CLASSES = (
    QosClass(name="chat", priority=10),
    QosClass(name="batch", priority=0, kind=ClassKind.BATCH, match=ClassMatch(header="x-class", value="batch")),
)
LENGTHS = LogNormalLengths(prompt_mean=200, output_mean=60, prompt_spread=0.8, output_spread=0.8)


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rate=st.floats(0.5, 12.0),
    roles=st.sampled_from([(Role.PREFILL, Role.DECODE), (Role.MIXED,), (Role.PREFILL, Role.DECODE, Role.DECODE)]),
)
def test_every_request_ends_and_all_memory_is_free_again(seed: int, rate: float, roles: tuple[Role, ...]) -> None:
    online = stream(rate=constant(rate), lengths=LENGTHS, seconds=20, seed=seed, cv=2.0, qos_class="chat")
    batch = stream(rate=constant(30.0), lengths=LENGTHS, seconds=20, seed=seed + 1, qos_class="batch")
    load = merged([online, batch])
    policy = Fixed([("p", role) for role in roles], admission=AdmissionPolicy.PREDICTIVE, classes=CLASSES)
    speed = make_speed(
        prefill=(0.01, 1e-3, 0.0), decode=(0.02, 2e-3, 0.0), max_batched_tokens=256, kv_capacity_tokens=6000
    )
    simulation = Simulation(load, make_cluster(speed), policy, slo=SLO)
    result = simulation.run()
    assert all(worker.kv_used_blocks == 0 and worker.idle for worker in simulation._engines)
    assert result.count(Outcome.PENDING) == result.count(Outcome.FAILED) == 0
    chat = load.qos_class == load.classes.index("chat")
    assert np.all(result.outcome[chat & ~np.isnan(result.ttft_seconds)] == Outcome.SERVED), "an answer is never cut"
    assert result.rejections.get(Reason.NOTHING_IDLE, 0) > 0


def test_idle_workers_answer_batch_requests() -> None:
    online = stream(rate=constant(1.0), lengths=LENGTHS, seconds=60, seed=3, qos_class="chat")
    load = merged([online, stream(rate=constant(30.0), lengths=LENGTHS, seconds=60, seed=4, qos_class="batch")])
    policy = Fixed([("p", Role.PREFILL), ("p", Role.DECODE)], admission=AdmissionPolicy.PREDICTIVE, classes=CLASSES)
    result = simulate(load, make_cluster(), policy, slo=SLO)
    chat = load.qos_class == load.classes.index("chat")
    assert result.within(SLO)[chat].all()
    made = load.output_tokens[result.outcome == Outcome.SERVED].sum()
    assert made > 10 * load.output_tokens[chat].sum()
