"""The real NVIDIA Dynamo for `dynamo.py`: its environment, and its runs on a workload with a speed of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.traffic import PREFIX_BLOCK_TOKENS
from fulcrum.simulation.workload import Workload

ROOT = Path(__file__).resolve().parents[1]
BLOCK_TOKENS = 16
CONTEXTS = (500, 2000, 4000, 8000)
"""Contexts of the decode steps that the planner is shown, in tokens: those of its own sweep."""
POINTS = 8
"""Steps per axis that the planner is shown, as many as in its own sweep."""
GRID = 64
"""Points per axis of the profile that its engines interpolate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What `dynamo_replay.py` is told."""

    trace: str
    """File in Mooncake's format."""
    trace_block_tokens: int
    profile: str
    """File with the seconds of engine steps, as Dynamo's engines read it."""
    prefill_steps: list[tuple[int, float]]
    """(prompt tokens, seconds) of steps that the planner has measured."""
    decode_steps: list[tuple[int, int, float]]
    """(batch, context tokens, seconds) of steps that the planner has measured."""
    kv_capacity_tokens: int
    block_tokens: int
    max_batch: int
    max_batched_tokens: int
    start_seconds: float
    ttft_seconds: float
    tpot_seconds: float
    prefill_workers: int = 0
    """0: the workers are aggregated."""
    decode_workers: int = 0
    """Or aggregated ones."""
    planner: dict[str, Any] | None = None
    """Its configuration; None: workers keep their number and role, and requests go to them in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """What became of the requests."""

    within: int
    """Requests inside both promises: TTFT, and the mean time per token after the first one, as ours are judged."""
    completed: int
    worker_hours: float
    """Of all workers, from their start to their end; a worker has one GPU there."""


def environment(given: Path | None) -> Path:
    """Return the Python that has Dynamo: the one of a given environment, or of `build/dynamo`, which is made.

    The lock holds all that Dynamo imports here. It is installed without dependencies: Dynamo asks for a release of its
    simulator of which PyPI has a placeholder only, and the last build before that release stands in the lock.
    """
    if given is None:
        settings = {**os.environ, "VENV": "build", "PIP_NO_DEPS": "1", "PYTHON": sys.executable}
        subprocess.run(["sh", "requirements/tool.sh", "dynamo"], cwd=ROOT, env=settings, check=True)
        given = ROOT / "build" / "dynamo"
    return given / "bin" / "python"


def same_speed(speed: WorkerSpeed, load: Workload) -> WorkerSpeed:
    """Return a speed that both simulators can have: prefill in proportion to the tokens of a step.

    Dynamo's profile knows the tokens of a step alone, not whose they are. The work of all prompts together stays as it
    is: the part per step is spread over steps of the mean prompt, and attention is that of the mean token's prompt.
    """
    k, prompts = speed.coefficients, load.prompt_tokens.astype(np.float64)
    per_step = k.prefill_a / float(np.minimum(prompts, speed.max_batched_tokens).mean())
    attention = k.prefill_c * float(prompts @ prompts / prompts.sum())
    coefficients = msgspec.structs.replace(
        k, prefill_a=0.0, prefill_b=k.prefill_b + per_step + attention, prefill_c=0.0
    )
    return replace(speed, coefficients=coefficients, transfer_base_seconds=0.0, transfer_seconds_per_token=0.0)


def write_trace(load: Workload, path: Path) -> None:
    """Write a workload in Mooncake's format; prompts without prefix ids share nothing."""
    fresh = max((each for ids in load.prefix_ids or () for each in ids), default=0)
    with path.open("w") as file:
        for index in range(len(load)):
            prompt = int(load.prompt_tokens[index])
            blocks = -(-prompt // PREFIX_BLOCK_TOKENS)
            ids = list(load.prefix_ids[index])[:blocks] if load.prefix_ids is not None else []
            missing = blocks - len(ids)
            ids += range(fresh + 1, fresh + 1 + missing)
            fresh += missing
            line = {
                "timestamp": round(float(load.arrival_seconds[index]) * 1e3),
                "input_length": prompt,
                "output_length": int(load.output_tokens[index]),
                "hash_ids": ids,
            }
            file.write(json.dumps(line) + "\n")


def write_profile(speed: WorkerSpeed, path: Path) -> None:
    """Write the seconds of engine steps as Dynamo's engines read them."""
    tokens = np.linspace(0.0, float(speed.max_batched_tokens), GRID)
    contexts = np.geomspace(16.0, 131072.0, GRID)
    active = np.concatenate(([1.0], np.geomspace(16.0, float(speed.kv_capacity_tokens), GRID)))
    steps = [
        [1e3 * speed.decode_step_seconds(min(max(sum_ / context, 1.0), speed.max_batch), sum_) for context in contexts]
        for sum_ in active
    ]
    np.savez(
        path,
        prefill_isl=tokens,
        prefill_ttft_ms=np.array([1e3 * speed.prefill_seconds(each, 0.0) for each in tokens]),
        decode_active_kv_tokens=active,
        decode_context_length=contexts,
        decode_itl=np.array(steps),
    )


def job_of(load: Workload, speed: WorkerSpeed, slo: LatencyTargets, *, start_seconds: float, folder: Path) -> Job:
    """Write trace and profile into `folder`, and return a job without workers."""
    trace, profile = folder / "trace.jsonl", folder / "profile.npz"
    write_trace(load, trace)
    write_profile(speed, profile)
    most, batches = speed.max_batched_tokens, range(1, speed.max_batch + 1, max(1, speed.max_batch // POINTS))
    return Job(
        trace=str(trace),
        trace_block_tokens=PREFIX_BLOCK_TOKENS,
        profile=str(profile),
        prefill_steps=[
            (tokens, speed.prefill_seconds(tokens, 0.0)) for tokens in range(100, most + 1, (most - 100) // POINTS)
        ],
        decode_steps=[
            (batch, batch * context, speed.decode_step_seconds(batch, batch * context))
            for context in CONTEXTS
            for batch in batches
            if batch * context <= speed.kv_capacity_tokens
        ],
        kv_capacity_tokens=speed.kv_capacity_tokens,
        block_tokens=BLOCK_TOKENS,
        max_batch=speed.max_batch,
        max_batched_tokens=most,
        start_seconds=start_seconds,
        ttft_seconds=slo.ttft_seconds,
        tpot_seconds=slo.tpot_seconds,
    )


def with_workers(job: Job, prefill: int, decode: int, *, planner: dict[str, Any] | None = None) -> Job:
    """Return the job with these workers; without prefill workers the others are aggregated."""
    return replace(job, prefill_workers=prefill, decode_workers=decode, planner=planner)


def planner_config(
    slo: LatencyTargets, *, aggregated: bool, rules: Sequence[str], least: int, most: int
) -> dict[str, Any]:
    """Return the planner's configuration; `rules` are `throughput` and `load`, `least` and `most` its GPU budget."""
    return {
        "mode": "agg" if aggregated else "disagg",
        "environment": "virtual",
        "optimization_target": "sla",
        "ttft_ms": slo.ttft_seconds * 1e3,
        "itl_ms": slo.tpot_seconds * 1e3,
        "enable_throughput_scaling": "throughput" in rules,
        "enable_load_scaling": "load" in rules,
        "min_gpu_budget": least,
        "max_gpu_budget": most,
        "report_interval_hours": None,
        "live_dashboard_port": 0,
        "control_api_port": 0,
        "pre_deployment_sweeping_mode": "none",
    }


def run(python: Path, job: Job) -> RealRun:
    """Run a job in the environment of `python`."""
    done = subprocess.run(
        [python, "-P", Path(__file__).with_name("dynamo_replay.py")],
        input=json.dumps(asdict(job)).encode(),
        capture_output=True,
        env={**os.environ, "DYN_LOG": "error"},  # else it logs every choice of a worker
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"dynamo ended with {done.returncode}:\n{done.stderr.decode()[-3000:]}")
    summary = json.loads(done.stdout)
    return RealRun(
        within=summary["goodput_completed_requests"],
        worker_hours=summary["gpu_hours"],
        completed=summary["completed_requests"],
    )
