"""Simulated engines of several speeds under the demo's load and the production policy."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import yaml
from contests.judge import TURN_SECONDS
from demo import MANIFEST
from demo_load import PROMPTS_SPLIT, Load

from fulcrum.api.names import Role
from fulcrum.api.types import BalanceMode, InferenceClusterSpec
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.rehearsal.simulated import Rehearsals
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.result import Result
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

SPEC: dict[str, Any] = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))["spec"]
PROMISED_SHARE = 0.95


def speed(*, prefill: tuple[float, float], step_seconds: float, batch_seconds: float) -> WorkerSpeed:
    """`prefill`: seconds of any prompt, and of each of its tokens."""
    return WorkerSpeed(
        coefficients=SpeedCoefficients.of(prefill=(*prefill, 2e-7), decode=(step_seconds, batch_seconds, 0.0)),
        kv_capacity_tokens=8_000,
        max_batch=2,
        max_batched_tokens=2048,
    )


SLOW = speed(prefill=(0.1, 0.017), step_seconds=0.32, batch_seconds=0.08)
"""Two cores without AVX-512, shared by four workers, in float32."""
MEDIUM = speed(prefill=(0.03, 0.004), step_seconds=0.07, batch_seconds=0.015)
QUICK = speed(prefill=(0.005, 0.0003), step_seconds=0.006, batch_seconds=0.001)


def scaled(of: WorkerSpeed, factor: float) -> WorkerSpeed:
    """The same, with everything taking `factor` times as long."""
    times = [factor * each for each in msgspec.structs.astuple(of.coefficients)[:6]]
    return replace(of, coefficients=SpeedCoefficients.of(prefill=times[:3], decode=times[3:]))


class Watched(Ours):
    """The operator in mode Observe until it may act, as the demo lets it."""

    def __init__(self, load: Load, act_seconds: float) -> None:
        document = json.loads(json.dumps(SPEC))
        document["slo"] = {
            "ttft": f"{load.slo.ttft_seconds * 1000:.0f}ms",
            "tpot": f"{load.slo.tpot_seconds * 1000:.0f}ms",
        }
        self._auto = msgspec.convert(document, InferenceClusterSpec)
        document["balance"]["mode"] = BalanceMode.OBSERVE.value
        self._observe = msgspec.convert(document, InferenceClusterSpec)
        self._act_seconds = act_seconds
        prefill, decode = PROMPTS_SPLIT
        super().__init__(
            self._observe,
            initial=[("cpu", Role.PREFILL)] * prefill + [("cpu", Role.DECODE)] * decode,
            least_turn_seconds=TURN_SECONDS,
            rehearsals=Rehearsals(self._auto),
        )

    def on_tick(self, view: View) -> TickResult:
        self._spec = self._auto if view.now >= self._act_seconds else self._observe
        return super().on_tick(view)


def run(load: Load, truth: WorkerSpeed, *, act_seconds: float) -> Result:
    """The demo's load on engines that are as fast as `truth`."""
    model = ClusterModel(
        pools=(PoolModel(name="cpu", speed=truth),),
        leg_seconds=0.03,
        block_tokens=SPEC["engine"]["kvCache"]["blockSize"],
    )
    return simulate(Workload.of(load.requests), model, Watched(load, act_seconds), slo=slo(load))


def slo(load: Load) -> LatencyTargets:
    return LatencyTargets(
        ttft_seconds=load.slo.ttft_seconds, tpot_seconds=load.slo.tpot_seconds, attainment=PROMISED_SHARE
    )
