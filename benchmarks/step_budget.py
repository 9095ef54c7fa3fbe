"""What vLLM's token budget of a step (`max_num_batched_tokens`) is worth: its own default against smaller ones.

A small budget keeps the steps of mixed workers short while they prefill (SplitFuse, arXiv 2401.08671), and costs each
prompt more steps. Prints the share of the requests inside their promise for each budget, with the constant part of a
prefill step once as the roofline has it (what serving adds included) and once as short as an idle decode step. Exits
with 1 where a smaller budget than vLLM's own serves at least one point more in both: then budgets would be worth
deriving from the promise.

    python benchmarks/step_budget.py
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.roofline import worker_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.arrivals import constant
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.policies import Aggregated, StaticSplit
from fulcrum.simulation.policy import Policy

BUDGETS: Final = (512, 1024, 2048, 4096, 8192)
SECONDS: Final = 60
WORTH: Final = 0.01


class Case(NamedTuple):
    """A load on four workers."""

    model: str
    tensor: int
    """H100s of a worker."""
    prompt_tokens: int
    output_tokens: int
    slo: LatencyTargets
    requests_per_second: float


CASES: Final = (
    Case("Llama-3.1-8B", 1, 4000, 200, LatencyTargets(ttft_seconds=1.0, tpot_seconds=0.03, attainment=0.95), 12.0),
    Case("Llama-3.1-70B", 4, 3000, 300, LatencyTargets(ttft_seconds=1.0, tpot_seconds=0.05, attainment=0.95), 6.0),
    Case("Llama-3.1-8B", 1, 1000, 300, LatencyTargets(ttft_seconds=1.0, tpot_seconds=0.02, attainment=0.95), 40.0),
)
POLICIES: Final[tuple[Policy, ...]] = (Aggregated(pool="p", workers=4), StaticSplit(pool="p", prefill=2, decode=2))


def main() -> int:
    """Run all cases; 0 unless a smaller budget would have served more."""
    better = any(gain(case, policy) >= WORTH for case in CASES for policy in POLICIES)
    print("a smaller budget serves more" if better else "no smaller budget serves a point more than vLLM's own")
    return int(better)


def gain(case: Case, policy: Policy) -> float:
    """Print what each budget serves; returns what the best smaller one adds to vLLM's own, at least."""
    print(
        f"{case.model} on {case.tensor} H100, {case.prompt_tokens} + {case.output_tokens} tokens, "
        f"{case.requests_per_second:g} requests/s, {case.slo.ttft_seconds:g} s / {case.slo.tpot_seconds * 1000:g} ms"
    )
    speed = worker_speed(known_model(case.model), accelerator("H100"), tensor=case.tensor)
    short = msgspec.structs.replace(speed.coefficients, prefill_a=speed.idle_step_seconds)
    gains = []
    for label, each in (("as measured", speed), ("idle step", replace(speed, coefficients=short))):
        served = {budget: attainment(case, each, budget, policy) for budget in BUDGETS}
        shares = "  ".join(f"{budget}: {100 * share:5.1f} %" for budget, share in served.items())
        print(f"  {policy.name:12} constant part {label:12} {shares}")
        gains.append(max(served[budget] for budget in BUDGETS[:-1]) - served[BUDGETS[-1]])
    return min(gains)


def attainment(case: Case, speed: WorkerSpeed, budget: int, policy: Policy) -> float:
    lengths = LogNormalLengths(
        prompt_mean=case.prompt_tokens, output_mean=case.output_tokens, prompt_spread=0.8, output_spread=0.8
    )
    load = stream(rate=constant(case.requests_per_second), lengths=lengths, seconds=SECONDS, seed=3)
    pool = PoolModel(name="p", speed=replace(speed, max_batched_tokens=budget))
    return simulate(load, ClusterModel(pools=(pool,)), policy, slo=case.slo).summary(case.slo).attainment


if __name__ == "__main__":
    sys.exit(main())
