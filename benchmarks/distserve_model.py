"""DistServe's cluster in our simulator: its published fits, its scheduling, and what its engine does besides."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.capacity.profile import distserve_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel, FirstToken, Links, PoolModel, Pulling
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.result import Result
from fulcrum.simulation.simulated_gateway import Chosen, SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"
MODEL = "facebook/opt-13b"
SLO = LatencyTargets(ttft_seconds=0.2, tpot_seconds=0.1, attainment=0.9)
GOLDEN = (1, 2, 1, 1)
"""Prefill workers, their tensor parallelism, decode workers, theirs: what DistServe places on four A100."""
GPUS = 3
"""Of the golden placement."""
STEP_TOKENS = 8192
UNBOUNDED_TOKENS = 10_000_000
KV_BYTES_PER_TOKEN = 2 * 40 * 5120 * 2
"""Keys and values of 40 layers of 5120 in FP16."""
NVLINK_BYTES_PER_SECOND = 300e9
"""A100, one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the engine does between forward passes, while its decode GPU waits; DistServe's fits leave it out.

    One thread runs both engines and the HTTP server: it schedules, calls the workers, detokenizes, and writes to each
    request's stream between one decode step and the next. KV is pulled there, too, one request after the other.
    """

    step_seconds: float
    """Of each decode step."""
    request_seconds: float
    """Of each request in a decode step."""
    pull_seconds: float
    """Of each pull, besides the time of the link."""


HOST = Host(step_seconds=2.2e-3, request_seconds=0.10e-3, pull_seconds=4.8e-3)
"""Fitted to the TPOT of requests that DistServe measured at up to 2.5 requests/s per GPU, by `distserve_measured.py`;
what was measured above that, and TTFT and attainment at any rate, did not go into it."""


class Fits:
    """DistServe's files."""

    def __init__(self, folder: Path) -> None:
        self._ours: Mapping[str, Any] = json.loads((folder / "distserve_profile_a100.json").read_bytes())
        self._vllm: Mapping[str, Any] = json.loads((folder / "distserve_profile_a100_vllm.json").read_bytes())
        with (folder / "distserve_kv_tokens.csv").open(encoding="utf-8") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            names = {name.strip(): name for name in rows.fieldnames or ()}
            self._room = {
                (row[names["model"]].strip(), int(row[names["tp"]]), int(row[names["pp"]])): int(
                    row[names["max_num_tokens"]]
                )
                for row in rows
            }

    def speed(self, tensor: int, *, vllm: bool = False, bounded: bool = True, host: Host | None = None) -> WorkerSpeed:
        """Return a worker of OPT-13B; `bounded` False leaves KV memory out of account."""
        return distserve_speed(
            self._vllm if vllm else self._ours,
            MODEL,
            tensor=tensor,
            kv_capacity_tokens=self._room[MODEL, tensor, 1] if bounded else UNBOUNDED_TOKENS,
            max_batched_tokens=STEP_TOKENS,
            host_step_seconds=host.step_seconds if host else 0.0,
            host_request_seconds=host.request_seconds if host else 0.0,
            stage_seconds=0.0 if host else 1e-3,
        )


class ShortestQueue(StaticSplit):
    """As DistServe schedules: the prefill worker with fewest queued tokens, the decode worker with fewest requests."""

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway | None:
        return None

    def route(self, request: SimulatedRequest, view: View) -> Chosen | Reason:
        return Chosen(
            min((each for each in view.workers if each.role is Role.PREFILL), key=lambda each: each.queued_tokens),
            min((each for each in view.workers if each.role is Role.DECODE), key=lambda each: each.decode_legs),
        )


def split(
    load: Workload,
    fits: Fits,
    rate_per_gpu: float | None = None,
    placement: tuple[int, int, int, int] = GOLDEN,
    *,
    host: Host | None = None,
) -> Result:
    """Simulate (prefill workers, TP, decode workers, TP), at a rate or as the requests come.

    Without `host` as DistServe's own simulator does: forward passes alone, KV memory without an end, transfers for
    free. With it as its engine runs: bounded memory, time between the steps, KV that is pulled there.
    """
    prefills, prefill_tp, decodes, decode_tp = placement
    bounded = host is not None
    prefill = fits.speed(prefill_tp, bounded=bounded, host=host)
    decode = fits.speed(decode_tp, bounded=bounded, host=host)
    cluster = ClusterModel(
        pools=(
            PoolModel(name="prefill", speed=prefill, gpus_per_worker=prefill_tp),
            PoolModel(name="decode", speed=decode, gpus_per_worker=decode_tp),
        ),
        first_token=FirstToken.PREFILL,
        links=Links(
            pulling=Pulling.BETWEEN,
            bytes_per_second=NVLINK_BYTES_PER_SECOND,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            latency_seconds=host.pull_seconds,
        )
        if host
        else Links(),
    )
    policy = ShortestQueue(pool="prefill", prefill=prefills, decode=decodes, decode_pool="decode")
    if rate_per_gpu is not None:
        load = load.scaled(rate_per_gpu * (prefills * prefill_tp + decodes * decode_tp) * mean_gap(load))
    return simulate(load, cluster, policy, slo=SLO)


def mean_gap(load: Workload) -> float:
    """Seconds between two requests."""
    return load.duration_seconds / len(load)


def percent(result: Result) -> float:
    """Percent inside the SLO."""
    return float(100 * result.within(SLO).mean())
