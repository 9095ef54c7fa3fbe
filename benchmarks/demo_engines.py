"""The demo's engines: how much CPU each gets, and how fast they are once they stand still."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final

import aiohttp
import msgspec
import yaml
from calibration import reports
from demo_load import OUTPUT_TOKENS, PROMPT_TOKENS, full_step_seconds, prefill_seconds
from local_cluster import Cluster, metric

from fulcrum.api.names import PORT_GATEWAY_INSIDE
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.capacity.trust import measured_speed
from fulcrum_worker.engine_access import headers_of
from fulcrum_worker.measure import measure_engine

WORKERS: Final = 4
_LENGTHS: Final = (16, 32, 64, 128, 256, 512, 1024)
"""Tokens of the prompts by which several measurements are made into one: those that the demo sends."""
OTHERS_CORES: Final = 0.25
"""Of a machine, for all that is no engine: API server, kubelet, operator, gateway, and the client."""
MOST_CORES: Final = 1.5
"""Of one worker: an engine computes in one thread, and its API server beside it."""
CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
SAME: Final = 1.3
"""Two rounds of measurements agree when neither a prefill nor a step took more than so many times as long."""
SETTLE_SECONDS: Final = 180.0
"""No new round begins after so long: what still changes by then is another program."""
BUDGET_SECONDS: Final = 8.0
"""Of one round, on engines that are quick enough for it."""
PATIENCE_SECONDS: Final = 120.0
"""How long a single engine is waited for until it can be measured at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How fast the engines are while all of them work."""

    speed: WorkerSpeed
    rounds: int
    ratio: float
    """Between the last two rounds, of what differs most: at least 1."""

    @property
    def steady(self) -> bool:
        return self.ratio <= SAME


def cores_each(cores: float) -> str:
    """Return the CPU limit of each worker, as Kubernetes writes it, on a machine with so many cores."""
    each = min((cores - OTHERS_CORES) / WORKERS, MOST_CORES)
    return f"{int(each * 1000) // 25 * 25}m"


def usable_cores() -> float:
    """Return the cores that this process may use: a container's quota counts, too."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = CGROUP_QUOTA.read_text(encoding="ascii").split()
        return min(cores, float(quota) / float(period))
    except (OSError, ValueError):
        return cores  # no cgroup v2 here, or no quota ("max")


def with_cpu(manifest: Path, folder: Path, cpu: str) -> Path:
    """Return a copy of `manifest` in `folder` whose workers have this CPU limit."""
    document = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    for pool in document["spec"]["pools"]:
        for container in pool["template"]["spec"]["containers"]:
            # The request too: the operator's default one may be above a small limit, which no API server takes.
            container["resources"] = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
    copy = folder / manifest.name
    copy.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return copy


def is_ready(cluster: Cluster) -> bool:
    """Whether all workers serve, and the gateways are of the newest spec, know them all and have tried their pairs."""
    return all_ready(cluster) and cluster.rolled_out() and all(map(_knows_all, cluster.pods("gateway")))


def not_ready(cluster: Cluster) -> str:
    """Return what is still waited for, in a few words."""
    workers = cluster.workers()
    ready = sum(worker.ready for worker in workers)
    if ready < WORKERS:
        return f"{ready} of {WORKERS} ready"
    return "the gateway tries pairs of workers" if cluster.rolled_out() else "the gateway starts"


def all_ready(cluster: Cluster) -> bool:
    return bool(cluster.cluster()["status"].get("ready") == f"{WORKERS}/{WORKERS}")


def _knows_all(gateway: dict[str, Any]) -> bool:
    if "deletionTimestamp" in gateway["metadata"]:
        return True
    url = f"http://{gateway['status']['podIP']}:{PORT_GATEWAY_INSIDE}/metrics"
    known, pending = (metric(url, f"fulcrum_gateway_{name}") for name in ("workers", "prewarms_pending"))
    return known == WORKERS and pending == 0


def measured(cluster: Cluster, tell: Callable[[str], None]) -> Measured:
    """Measure all engines at the same time, again and again, until two rounds agree or the time is over.

    Raises LookupError when no engine can be measured.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    before: list[WorkerSpeed] = []
    rounds = 0
    while True:
        rounds += 1
        now = _one_round(cluster)
        if not now:
            raise LookupError("no engine could be measured: see the log of a worker Pod")
        tell(f"round {rounds}: {summary(typical(now))}")
        ratio = difference(typical(now), typical(before)) if before else inf
        if ratio <= SAME or time.monotonic() > deadline:
            return Measured(speed=typical([*before, *now]), rounds=rounds, ratio=ratio)
        before = now


def typical(speeds: Sequence[WorkerSpeed]) -> WorkerSpeed:
    """Return the speed of an engine that takes, at each length and batch, as long as the middle one of these."""
    batches = sorted({1, speeds[0].max_batch})
    prompts = [(1.0, float(length), float(length**2)) for length in _LENGTHS]
    steps = [(1.0, float(batch), float(batch * length)) for batch in batches for length in _LENGTHS]
    prefill = [median(each.prefill_seconds(tokens, squares) for each in speeds) for _, tokens, squares in prompts]
    decode = [median(each.decode_step_seconds(batch, context) for each in speeds) for _, batch, context in steps]
    coefficients = SpeedCoefficients.of(prefill=fit_relative(prompts, prefill), decode=fit_relative(steps, decode))
    return replace(speeds[0], coefficients=coefficients)


def difference(one: WorkerSpeed, other: WorkerSpeed) -> float:
    """Return how many times as long the slower one takes, for a short prompt or for a full batch's step."""
    prompt_tokens, output_tokens = PROMPT_TOKENS[0], OUTPUT_TOKENS[0]
    ratios = (
        prefill_seconds(one, prompt_tokens) / prefill_seconds(other, prompt_tokens),
        full_step_seconds(one, output_tokens) / full_step_seconds(other, output_tokens),
    )
    return max(max(ratio, 1 / ratio) for ratio in ratios)


def summary(speed: WorkerSpeed) -> str:
    tokens = PROMPT_TOKENS[0]
    return (
        f"{tokens} prompt tokens in {prefill_seconds(speed, tokens):.2f} s, "
        f"a full batch's step in {full_step_seconds(speed, OUTPUT_TOKENS[0]) * 1000:.0f} ms"
    )


def _one_round(cluster: Cluster) -> list[WorkerSpeed]:
    found = []
    for report, speed in zip(reports(cluster).values(), asyncio.run(_measure_all(cluster)), strict=True):
        measured_now = measured_speed(msgspec.structs.replace(report, speed=speed))
        if measured_now is not None:
            found.append(measured_now)
    return found


async def _measure_all(cluster: Cluster) -> Sequence[SpeedCoefficients | None]:
    async with aiohttp.ClientSession(headers=headers_of(cluster.token())) as session:
        return await asyncio.gather(
            *(
                measure_engine(
                    session,
                    f"http://{worker.ip}:8000",
                    cluster.name,
                    max_model_len=None,
                    budget_seconds=BUDGET_SECONDS,
                    patience_seconds=PATIENCE_SECONDS,
                )
                for worker in cluster.workers()
            )
        )
