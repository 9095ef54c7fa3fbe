"""Calibrates the simulator by what real workers report of the requests that they have served: alone, and in a trace.

Alone says how long prompts of each length take; the trace, how much slower workers are beside each other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
from local_cluster import Cluster

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, SpeedCoefficients, WorkCounters
from fulcrum.balance.demand import Slo
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.capacity.trust import measured_speed
from fulcrum.replay import Client, Endpoint, Record, discover, replay
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.job import Job
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.policies.ours import load_report
from fulcrum.simulation.result import Result
from fulcrum.simulation.traffic import Request
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

KV_BLOCK_TOKENS = 32
"""vLLM's on CPUs."""
SLO = Slo(ttft_seconds=3.0, tpot_seconds=0.3, attainment=0.95)
"""As in examples/auto.yaml; nobody is turned away in the simulation."""
_LENGTHS = (16.0, 64.0, 256.0, 512.0, 1024.0)
LONE_PROMPTS = tuple(round(64 * 2 ** (4 * (7 * index % 13) / 12)) for index in range(13))
"""From 64 to 1,024 tokens, the long ones and the short ones mixed."""
LONE_OUTPUT = 17
_MOST_CROWDING = 1.0
_HALVINGS = 10
_ROUNDS = 10
"""Of correcting both factors: waiting prompts share steps, so that the work is not quite proportional to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What workers say of a trace, on average: seconds from the scheduling of a prompt to its end, and per step."""

    prefill_seconds: float
    step_seconds: float

    def within(self, share: float, other: Pace) -> bool:
        """Whether neither differs by more than this share."""
        ratios = (self.prefill_seconds / other.prefill_seconds, self.step_seconds / other.step_seconds)
        return all(abs(ratio - 1) <= share for ratio in ratios)

    def __str__(self) -> str:
        return f"prefill {self.prefill_seconds * 1e3:.0f} ms, step {self.step_seconds * 1e3:.1f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the simulator is told."""

    speed: WorkerSpeed
    leg_seconds: float = 0.0
    """Of each leg, outside of the engines."""
    crowding: float = 0.0
    """How much longer work takes for each other worker that computes."""

    def scaled(self, prefill: float, decode: float) -> Calibration:
        """Prefills and steps that take so many times as long."""
        a, b, c, *steps = msgspec.structs.astuple(self.speed.coefficients)
        coefficients = SpeedCoefficients.of(
            prefill=[each * prefill for each in (a, b, c)], decode=[each * decode for each in steps]
        )
        return dataclasses.replace(self, speed=dataclasses.replace(self.speed, coefficients=coefficients))

    def simulate(self, trace: Sequence[Request], prefill: int, decode: int) -> tuple[Result, Pace]:
        """The trace through a static split of such workers, and what they say of it."""
        model = ClusterModel(
            pools=(PoolModel(name="cpu", speed=self.speed),),
            leg_seconds=self.leg_seconds,
            crowding=self.crowding,
            block_tokens=KV_BLOCK_TOKENS,
        )
        policy = _Asked(pool="cpu", prefill=prefill, decode=decode)
        result = simulate(Workload.of(trace), model, policy, slo=SLO)
        return result, pace({}, policy.reports)


class _Asked(StaticSplit):
    """Has the reports of its workers at the end of the last request."""

    reports: dict[str, LoadReport]

    def on_end(self, request: Job, view: View) -> None:
        self.reports = {pod.name: load_report(pod, pod.worker) for pod in view.pods if pod.worker is not None}


def reports(cluster: Cluster) -> dict[str, LoadReport]:
    """`GET /load` of every worker, by name."""
    found = {}
    for worker in cluster.workers():
        with urllib.request.urlopen(f"http://{worker.ip}:8001/load", timeout=10) as response:
            found[worker.name] = msgspec.json.decode(response.read(), type=LoadReport)
    return found


def measured_at_start(found: dict[str, LoadReport]) -> Calibration:
    """What the workers measured before they became ready. They are alike, and disturbance only takes longer: at each
    length the quickest one counts."""
    speeds = [speed for report in found.values() if (speed := measured_speed(report)) is not None]
    batches = sorted({1, speeds[0].max_batch})
    prompts = [(1.0, length, length**2) for length in _LENGTHS]
    steps = [(1.0, batch, batch * length) for batch in batches for length in _LENGTHS]
    prefill = [min(each.prefill_seconds(length, square) for each in speeds) for _, length, square in prompts]
    decode = [min(each.decode_step_seconds(batch, context) for each in speeds) for _, batch, context in steps]
    coefficients = SpeedCoefficients.of(prefill=fit_relative(prompts, prefill), decode=fit_relative(steps, decode))
    return Calibration(speed=dataclasses.replace(speeds[0], coefficients=coefficients))


def measured_alone(cluster: Cluster, endpoint: Endpoint, start: Calibration) -> Calibration:
    """Requests one by one, by what the workers report of each: nobody computes but the one that serves it."""
    prompts, prefill, steps = [], [], []
    before = reports(cluster)
    for index, length in enumerate(LONE_PROMPTS):
        request = Request(arrival_seconds=0.0, prompt_tokens=length, output_tokens=LONE_OUTPUT)
        time.sleep(_SETTLE_SECONDS)
        run(cluster, endpoint, [request], seed=_LONE_SEED + index)
        after = reports(cluster)
        one, before = pace(before, after), after
        prompts.append((1.0, length, length**2))
        prefill.append(one.prefill_seconds)
        steps.append(one.step_seconds)
    speed = start.speed
    modelled = [speed.decode_step_seconds(1, length + LONE_OUTPUT / 2) for length in LONE_PROMPTS]
    k = SpeedCoefficients.of(
        prefill=fit_relative(prompts, prefill), decode=msgspec.structs.astuple(speed.coefficients)[3:]
    )
    found = dataclasses.replace(start, speed=dataclasses.replace(speed, coefficients=k))
    return found.scaled(1.0, sum(steps) / sum(modelled))


def pace(before: dict[str, LoadReport], after: dict[str, LoadReport]) -> Pace:
    """The work between two sets of reports: of prompts on prefill workers, of steps on decode workers."""
    prompts = tokens = prefill_seconds = decode_seconds = 0.0
    for name, report in after.items():
        now, then = report.work, before[name].work if name in before else _NOTHING
        assert now is not None
        assert then is not None
        if report.role is Role.PREFILL:
            prompts += now.prompts - then.prompts
            prefill_seconds += now.prefill_seconds - then.prefill_seconds
        else:
            tokens += now.decode_tokens - then.decode_tokens
            decode_seconds += now.decode_seconds - then.decode_seconds
    return Pace(prefill_seconds=prefill_seconds / prompts, step_seconds=decode_seconds / tokens)


def crowded(alone: Calibration, trace: Sequence[Request], real: Pace, *, prefill: int, decode: int) -> Calibration:
    """`alone`, with the crowding that makes the simulated workers as slow in the trace as the real ones were."""
    low, high = 0.0, _MOST_CROWDING
    for _ in range(_HALVINGS):
        middle = dataclasses.replace(alone, crowding=(low + high) / 2)
        _, simulated = middle.simulate(trace, prefill, decode)
        slower = simulated.prefill_seconds * simulated.step_seconds > real.prefill_seconds * real.step_seconds
        low, high = (low, middle.crowding) if slower else (middle.crowding, high)
    return dataclasses.replace(alone, crowding=(low + high) / 2)


def calibrated(
    start: Calibration, trace: Sequence[Request], records: Sequence[Record], real: Pace, *, prefill: int, decode: int
) -> Calibration:
    """`start`, slowed down or sped up until the simulated workers report what the real ones did.

    What first tokens took longer than that explains is what legs take outside of the engines.
    """
    found, prefill_factor, decode_factor = start, 1.0, 1.0
    for _ in range(_ROUNDS):
        _, simulated = found.simulate(trace, prefill, decode)
        prefill_factor *= real.prefill_seconds / simulated.prefill_seconds
        decode_factor *= real.step_seconds / simulated.step_seconds
        found = start.scaled(prefill_factor, decode_factor)
    result, _ = found.simulate(trace, prefill, decode)
    real_ttft_seconds = sum(record.ttft_seconds or 0.0 for record in records) / len(records)
    left_seconds = real_ttft_seconds - float(result.ttft_seconds.mean())
    return dataclasses.replace(found, leg_seconds=max(0.0, left_seconds / 2))


def typical(found: Sequence[Calibration]) -> Calibration:
    """The median of what several traces said of the same workers; all are scaled from one start."""
    each = [msgspec.structs.asdict(one.speed.coefficients) for one in found]
    coefficients = SpeedCoefficients(**{name: median(one[name] for one in each) for name in each[0]})
    speed = dataclasses.replace(found[0].speed, coefficients=coefficients)
    return dataclasses.replace(found[0], speed=speed, leg_seconds=median(one.leg_seconds for one in found))


def endpoint_of(cluster: Cluster) -> Endpoint:
    """What has to be known of the gateway; costs a request, which is no part of a trace."""

    async def go() -> Endpoint:
        async with Client(cluster.endpoint(), timeout_seconds=120) as client:
            return await discover(client)

    return asyncio.run(go())


def run(cluster: Cluster, endpoint: Endpoint, requests: Sequence[Request], *, seed: int) -> list[Record]:
    """Replay through the cluster's gateway."""

    async def go() -> list[Record]:
        async with Client(cluster.endpoint(), timeout_seconds=120) as client:
            return await replay(client, endpoint, requests, seed=seed)

    return asyncio.run(go())


_LONE_SEED = 1000
_SETTLE_SECONDS = 0.3
"""After reports, which cost the workers processor time, too."""
_NOTHING = WorkCounters(
    prompts=0, prompt_tokens=0, cached_tokens=0, prefill_seconds=0.0, decode_tokens=0, decode_seconds=0.0
)
