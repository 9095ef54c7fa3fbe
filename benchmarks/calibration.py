"""Calibrates the simulator by what real workers have served: prompts one by one, and traces.

Alone they say how much longer a longer prompt takes. In a trace both have to report the same work, and the spread of
latencies says how much slower workers are beside each other: then light moments are quicker, and crowded ones slower.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median

import msgspec
import numpy as np
from local_cluster import Cluster, wait_until
from numpy.typing import NDArray

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, SpeedCoefficients, WorkCounters
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.capacity.trust import measured_speed
from fulcrum.load.demand import LatencyTargets
from fulcrum.replay import Client, Endpoint, Outcome, Record, discover, replay
from fulcrum.simulation.cluster import ClusterModel, Links, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.policies.ours import load_report
from fulcrum.simulation.result import Result
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.traffic import Request
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

POOL = "cpu"
"""Of all simulated workers."""
KV_BLOCK_TOKENS = 32
"""vLLM's on CPUs."""
SLO = LatencyTargets(ttft_seconds=3.0, tpot_seconds=0.3, attainment=0.95)
"""As in examples/auto.yaml; nobody is turned away in the simulation."""
_LENGTHS = (16.0, 64.0, 256.0, 512.0, 1024.0)
LONE_PROMPTS = tuple(round(64 * 2 ** (4 * (7 * index % 13) / 12)) for index in range(13))
"""From 64 to 1,024 tokens, the long ones and the short ones mixed."""
LONE_OUTPUT = 17
_CROWDINGS = tuple(step / 40 for step in range(17))
"""What is tried, up to 40 %."""
_SHARES = tuple(range(5, 100, 10))
"""Percentiles that are compared."""
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
    links: Links = field(default_factory=Links)
    slo: LatencyTargets = SLO

    def scaled(self, prefill: float, decode: float) -> Calibration:
        """Prefills and steps that take so many times as long."""
        a, b, c, *steps = msgspec.structs.astuple(self.speed.coefficients)[:6]
        coefficients = SpeedCoefficients.of(
            prefill=[each * prefill for each in (a, b, c)], decode=[each * decode for each in steps]
        )
        return dataclasses.replace(self, speed=dataclasses.replace(self.speed, coefficients=coefficients))

    def off(self, served: Served) -> float:
        """How far the percentiles of simulated latencies are from the real ones, typically, as a fraction."""
        result, _ = self.simulate(served.trace, served.prefill, served.decode)
        pairs = ((result.ttft_seconds, served.ttft_seconds), (result.tpot_seconds, served.tpot_seconds))
        logs = [np.log(np.nanpercentile(mine, _SHARES) / np.nanpercentile(its, _SHARES)) for mine, its in pairs]
        return float(np.sqrt(np.mean(np.square(logs))))

    def simulate(self, trace: Sequence[Request], prefill: int, decode: int) -> tuple[Result, Pace]:
        """The trace through a static split of such workers, and what they say of it."""
        model = ClusterModel(
            pools=(PoolModel(name=POOL, speed=self.speed),),
            leg_seconds=self.leg_seconds,
            crowding=self.crowding,
            block_tokens=KV_BLOCK_TOKENS,
            links=self.links,
        )
        policy = _Asked(pool=POOL, prefill=prefill, decode=decode)
        result = simulate(Workload.of(trace), model, policy, slo=self.slo)
        return result, pace({}, policy.reports)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A trace that real workers have served, so many of each role."""

    trace: Sequence[Request]
    ttft_seconds: NDArray[np.float64]
    tpot_seconds: NDArray[np.float64]
    """NaN for a single token."""
    pace: Pace
    prefill: int
    decode: int

    @classmethod
    def of(cls, cluster: Cluster, trace: Sequence[Request], *, seed: int, prefill: int, decode: int) -> Served:
        """Replay it through the cluster's gateway; nobody may be lost or turned away."""
        endpoint = endpoint_of(cluster)
        before = reports(cluster)
        records = run(cluster, endpoint, trace, seed=seed)
        assert all(record.outcome is Outcome.OK for record in records)
        return cls(
            trace=trace,
            ttft_seconds=np.array([record.ttft_seconds for record in records], dtype=np.float64),
            tpot_seconds=np.array([record.tpot_seconds for record in records], dtype=np.float64),
            pace=pace(before, reports_after(cluster, before, len(trace))),
            prefill=prefill,
            decode=decode,
        )


class _Asked(StaticSplit):
    """Has the reports of its workers at the end of the last request."""

    reports: dict[str, LoadReport]

    def on_end(self, request: SimulatedRequest, view: View) -> None:
        self.reports = {pod.name: load_report(pod) for pod in view.pods if pod.ranks}


def reports(cluster: Cluster) -> dict[str, LoadReport]:
    """`GET /load` of every worker, by name."""
    found = {}
    for worker in cluster.workers():
        with urllib.request.urlopen(f"http://{worker.ip}:8001/load", timeout=10) as response:
            found[worker.name] = msgspec.json.decode(response.read(), type=LoadReport)
    return found


def reports_after(cluster: Cluster, before: dict[str, LoadReport], requests: int) -> dict[str, LoadReport]:
    """The reports that have all of so many answered requests: an engine books the last ones after it has answered."""

    def settled() -> dict[str, LoadReport] | None:
        found = reports(cluster)
        idle = not any(report.running or report.waiting for report in found.values())
        return found if idle and _prompts(found) - _prompts(before) >= requests else None

    return wait_until("the reports of what was served", settled, seconds=30)


def _prompts(found: dict[str, LoadReport]) -> float:
    return sum(report.work.prompts for report in found.values() if report.work is not None)


def quickest(found: dict[str, LoadReport]) -> Calibration:
    """What was measured of alike workers. Disturbance only takes longer: at each length the quickest one counts."""
    speeds = [speed for report in found.values() if (speed := measured_speed(report)) is not None]
    batches = sorted({1, speeds[0].max_batch})
    prompts = [(1.0, length, length**2) for length in _LENGTHS]
    steps = [(1.0, batch, batch * length) for batch in batches for length in _LENGTHS]
    prefill = [min(each.prefill_seconds(length, square) for each in speeds) for _, length, square in prompts]
    decode = [min(each.decode_step_seconds(batch, context) for each in speeds) for _, batch, context in steps]
    coefficients = SpeedCoefficients.of(prefill=fit_relative(prompts, prefill), decode=fit_relative(steps, decode))
    return Calibration(speed=dataclasses.replace(speeds[0], coefficients=coefficients))


def measured_alone(cluster: Cluster, endpoint: Endpoint, start: Calibration) -> Calibration:
    """`start` with prompts as long as the workers report of single ones, while nobody else computes."""
    prompts, seconds = [], []
    before = reports(cluster)
    for index, length in enumerate(LONE_PROMPTS):
        request = Request(arrival_seconds=0.0, prompt_tokens=length, output_tokens=LONE_OUTPUT)
        time.sleep(_SETTLE_SECONDS)
        run(cluster, endpoint, [request], seed=_LONE_SEED + index)
        after = reports_after(cluster, before, 1)
        prompts.append((1.0, length, length**2))
        seconds.append(pace(before, after).prefill_seconds)
        before = after
    steps = msgspec.structs.astuple(start.speed.coefficients)[3:6]
    coefficients = SpeedCoefficients.of(prefill=fit_relative(prompts, seconds), decode=steps)
    return dataclasses.replace(start, speed=dataclasses.replace(start.speed, coefficients=coefficients))


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


def crowding_of(start: Calibration, served: Sequence[Served]) -> float:
    """The crowding with which latencies spread as in what was served.

    A queue hangs on every request before it, so that single figures jump: a parabola through all that is tried says
    which crowding is best.
    """
    off = [mean(_slowed(start, each, crowding).off(each) ** 2 for each in served) for crowding in _CROWDINGS]
    bend, slope, _ = np.polyfit(_CROWDINGS, off, 2)
    best = -slope / (2 * bend) if bend > 0 else _CROWDINGS[int(np.argmin(off))]
    return float(np.clip(best, _CROWDINGS[0], _CROWDINGS[-1]))


def calibrated(start: Calibration, served: Sequence[Served], crowding: float) -> Calibration:
    """`start` with this crowding, and typically as quick as the workers said of what was served."""
    return _typical([_slowed(start, each, crowding) for each in served])


def _slowed(start: Calibration, served: Served, crowding: float) -> Calibration:
    """`start`, slowed down or sped up until the simulated workers report what the real ones did.

    What first tokens took longer than that explains is what legs take outside of the engines.
    """
    start = dataclasses.replace(start, crowding=crowding)
    found, prefill_factor, decode_factor = start, 1.0, 1.0
    for _ in range(_ROUNDS):
        _, simulated = found.simulate(served.trace, served.prefill, served.decode)
        prefill_factor *= served.pace.prefill_seconds / simulated.prefill_seconds
        decode_factor *= served.pace.step_seconds / simulated.step_seconds
        found = start.scaled(prefill_factor, decode_factor)
    result, _ = found.simulate(served.trace, served.prefill, served.decode)
    left_seconds = float(served.ttft_seconds.mean() - result.ttft_seconds.mean())
    return dataclasses.replace(found, leg_seconds=max(0.0, left_seconds / 2))


def _typical(found: Sequence[Calibration]) -> Calibration:
    """The median of what several traces said of the same workers; all are scaled from one start."""
    each = [msgspec.structs.astuple(one.speed.coefficients)[:6] for one in found]
    middle = [median(values) for values in zip(*each, strict=True)]
    coefficients = SpeedCoefficients.of(prefill=middle[:3], decode=middle[3:])
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
