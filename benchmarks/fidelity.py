"""Fidelity: a trace through real vLLM workers, and through the simulator, which knows no more than what they report.

    python benchmarks/fidelity.py        # brings up examples/auto.yaml at 2P:2D, and takes it down again

The workers say what they measured before they became ready, their room for KV, the limits of a step, and how long
their prompts and steps have taken so far (`/load`). Prompts that come one by one show how much longer longer ones
take. Then a trace calibrates the simulator (`calibration`): under load all workers are slower, as they share a machine,
and the simulator is told by how much. Another trace of that load, with other arrivals and lengths, runs through both.

All of it shares a few cores with whatever else runs on the machine. Where the workers themselves report prompts and
steps that took more than 5 % longer or shorter than they did before, the machine has changed and not the model: then
that trace calibrates as well, and the next one is held out, up to five times.
Exits with 0 only when p50 and p90 of TTFT and TPOT are within 15 %; with 2 when the machine was never steady.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from calibration import (
    Calibration,
    Served,
    calibrated,
    crowding_of,
    endpoint_of,
    measured_alone,
    quickest,
    reports,
)
from local_cluster import Cluster, local_cluster, wait_until
from numpy.typing import NDArray

from fulcrum.simulation.traffic import Phase, generate

MANIFEST = Path(__file__).parent.parent / "examples" / "auto.yaml"
PREFILL, DECODE = 2, 2
"""Workers of either role."""
UTILISATION = 0.5
"""Of the busier role: enough for queues, and not enough for one that only grows."""
EXPECTED_CROWDING = 0.15
"""Before it is known; the first trace's load goes by it."""
SECONDS = 140.0
CALIBRATION_SEED, SEEDS = 6, (7, 8, 9, 10, 11)
STEADY = 0.05
UNSTEADY = 2
"""Exit code: the workers' own pace changed between traces, each time."""
MIX = (300, 24)
"""Prompt and output tokens, log-normal."""
SPREAD = 0.5
TOLERANCE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """p50 and p90, in seconds."""

    ttft: tuple[float, float]
    tpot: tuple[float, float]

    @classmethod
    def of(cls, ttft: NDArray[np.float64], tpot: NDArray[np.float64]) -> Latencies:
        return cls(ttft=_p50_p90(ttft), tpot=_p50_p90(tpot))

    def off(self, real: Latencies) -> float:
        """The largest error of the four, relative to the real one."""
        pairs = zip((*self.ttft, *self.tpot), (*real.ttft, *real.tpot), strict=True)
        return max(abs(mine / its - 1) for mine, its in pairs)

    def __str__(self) -> str:
        return "; ".join(
            f"{name} p50 {p50 * 1e3:6.1f} ms  p90 {p90 * 1e3:6.1f} ms"
            for name, (p50, p90) in (("TTFT", self.ttft), ("TPOT", self.tpot))
        )


def measure(cluster: Cluster, seconds: float = SECONDS) -> int:
    """Run both with traces of so many seconds, and print what they say; returns the exit code."""
    turn_nobody_away(cluster)
    cluster.patch({"balance": {"mode": "Manual", "ratio": {"prefill": PREFILL, "decode": DECODE}}})
    wait_until("2P:2D", partial(has_roles, cluster), seconds=60)
    start = quickest(reports(cluster))
    print(f"at start   {start.speed.coefficients}")
    start = measured_alone(cluster, endpoint_of(cluster), start)
    print(f"alone      {start.speed.coefficients}")
    expected = dataclasses.replace(start, crowding=EXPECTED_CROWDING)
    served = [serve(cluster, phase(expected, seconds), seed=CALIBRATION_SEED)]
    for seed in SEEDS:
        told = calibrated(start, served, crowding_of(start, served))
        apart = calibrated(start, served, crowding=0.0)
        held_out = serve(cluster, phase(told, seconds), seed=seed)
        result, simulated_pace = told.simulate(held_out.trace, PREFILL, DECODE)
        real = Latencies.of(held_out.ttft_seconds, held_out.tpot_seconds)
        simulated = Latencies.of(result.ttft_seconds, result.tpot_seconds)
        result, _ = apart.simulate(held_out.trace, PREFILL, DECODE)
        uncrowded = Latencies.of(result.ttft_seconds, result.tpot_seconds)
        print(
            f"calibrated {told.speed.coefficients}, {told.leg_seconds * 1e3:.0f} ms per leg outside of the engines, "
            f"{told.crowding:.1%} longer for each other worker that computes"
        )
        print(f"{len(held_out.trace)} requests in {seconds:.0f} s; {held_out.pace}, simulated {simulated_pace}")
        print(f"real       {real}\nsimulated  {simulated} (off by {simulated.off(real):.1%})")
        print(f"if no worker slowed another down  {uncrowded} (off by {uncrowded.off(real):.1%})")
        if held_out.pace.within(STEADY, simulated_pace):
            off = simulated.off(real)
            print(f"off by at most {off:.1%} (target {TOLERANCE:.0%})")
            return int(off > TOLERANCE)
        served.append(held_out)
    print(f"the workers' own pace changed by more than {STEADY:.0%} between traces, each time: nothing can be said")
    return UNSTEADY


def serve(cluster: Cluster, what: Phase, *, seed: int) -> Served:
    return Served.of(cluster, generate([what], seed=seed), seed=seed, prefill=PREFILL, decode=DECODE)


def turn_nobody_away(cluster: Cluster) -> None:
    """Latencies of whom the gateway lets in would say more of the gateway than of the workers."""
    if cluster.cluster()["spec"].get("admission", {}).get("policy") == "Off":
        return
    before = {pod["metadata"]["uid"] for pod in cluster.pods("gateway")}
    cluster.patch({"admission": {"policy": "Off"}})
    wait_until("gateways that turn nobody away", partial(gateways_are_new, cluster, before), seconds=60)


def gateways_are_new(cluster: Cluster, before: set[str]) -> bool:
    pods = cluster.pods("gateway")
    ready = [any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"]) for pod in pods]
    return bool(pods) and all(ready) and before.isdisjoint(pod["metadata"]["uid"] for pod in pods)


def has_roles(cluster: Cluster) -> bool:
    return cluster.roles() == {"prefill": PREFILL, "decode": DECODE}


def phase(told: Calibration, seconds: float) -> Phase:
    """Traffic that keeps the busier role at `UTILISATION` when all workers compute."""
    slower = 1 + told.crowding * (PREFILL + DECODE - 1)
    speed = told.scaled(slower, slower).speed
    prompt, output = MIX
    squares = prompt**2 * float(np.exp(SPREAD**2))
    batch = speed.max_batch
    prefills = PREFILL / speed.prefill_seconds(prompt, squares)
    decodes = DECODE * batch / (output * speed.decode_step_seconds(batch, batch * prompt))
    return Phase(
        seconds=seconds,
        requests_per_second=UTILISATION * min(prefills, decodes),
        prompt_tokens_mean=prompt,
        output_tokens_mean=output,
        spread=SPREAD,
    )


def _p50_p90(seconds: NDArray[np.float64]) -> tuple[float, float]:
    p50, p90 = np.nanpercentile(seconds, (50, 90))
    return float(p50), float(p90)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as home, local_cluster(Path(home), manifest=MANIFEST, name="auto") as cluster:
        wait_until("four workers", lambda: cluster.cluster()["status"].get("ready") == "4/4", seconds=300)
        return measure(cluster)


if __name__ == "__main__":
    sys.exit(main())
