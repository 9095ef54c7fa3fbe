"""One run of the real NVIDIA Dynamo: its planner, its router and its simulated engines. `dynamo_real.py` starts this.

It runs in an environment that has Dynamo and not Fulcrum. The job (`dynamo_real.Job`) comes on standard input, and what
became of the requests goes to standard output, both as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def main() -> None:
    """Run the job and print what became of its requests."""
    job = json.load(sys.stdin)
    # Dynamo writes its log to standard output, too: only the result may go there.
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        json.dump(run(job), answer)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Return Dynamo's summary."""
    from dynamo._core import run_mocker_trace_replay

    roles = ["prefill", "decode"] if job["prefill_workers"] else ["aggregated"]
    engines = {role: engine(job, role) for role in roles}
    arguments = {
        "extra_engine_args": engines.get("aggregated"),
        "prefill_engine_args": engines.get("prefill"),
        "decode_engine_args": engines.get("decode"),
    }
    workers = {"num_workers": job["decode_workers"]}
    if job["prefill_workers"]:
        workers = {"num_prefill_workers": job["prefill_workers"], "num_decode_workers": job["decode_workers"]}
    with planner(job, arguments) as adapter:
        native = run_mocker_trace_replay(
            [job["trace"]],
            **arguments,
            **workers,
            router_mode="round_robin" if job["planner"] is None else "kv_router",
            trace_format="mooncake",
            trace_block_size=job["trace_block_tokens"],
            sla_ttft_ms=job["ttft_seconds"] * 1e3,
            sla_itl_ms=job["tpot_seconds"] * 1e3,
            capture_planner_details=False,
            scaling_policy=adapter,
        )
    return dict(native.summary)


def engine(job: dict[str, Any], role: str) -> dict[str, Any]:
    """Return the simulated engine of a role, as fast as the job's profile says."""
    from dynamo.mocker.config import normalize_mocker_config

    rank = {
        "backend": "vllm",
        "worker_type": role,
        "num_gpu_blocks": job["kv_capacity_tokens"] // job["block_tokens"],
        "block_size": job["block_tokens"],
        "max_num_seqs": job["max_batch"],
        "max_num_batched_tokens": job["max_batched_tokens"],
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": job["profile"]}},
    }
    config: dict[str, Any] = normalize_mocker_config({"engine": rank, "startup_time": job["start_seconds"]})
    return config


def planner(job: dict[str, Any], arguments: dict[str, Any]) -> AbstractContextManager[Any]:
    """Return the planner, which knows the engines' speed as after a sweep of its own; None where workers stay."""
    if job["planner"] is None:
        return nullcontext()
    from dynamo.common.forward_pass_metrics import ForwardPassMetrics, ScheduledRequestMetrics
    from dynamo.replay.planner import prepare_planner_replay

    prompts = [
        ForwardPassMetrics(
            wall_time=seconds,
            scheduled_requests=ScheduledRequestMetrics(num_prefill_requests=1, sum_prefill_tokens=tokens),
        )
        for tokens, seconds in job["prefill_steps"]
    ]
    answers = [
        ForwardPassMetrics(
            wall_time=seconds,
            scheduled_requests=ScheduledRequestMetrics(num_decode_requests=batch, sum_decode_kv_tokens=context),
        )
        for batch, context, seconds in job["decode_steps"]
    ]
    adapter = prepare_planner_replay(**arguments, planner_config_arg=json.dumps(job["planner"]), capture_details=False)
    if job["prefill_workers"]:
        adapter.install_benchmark_fpms(prefill_fpms=prompts, decode_fpms=answers)
    else:
        adapter.install_benchmark_fpms(agg_fpms=prompts + answers)
    return adapter  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
