"""Fidelity: DistServe's published attainment and placement, from its published fits, in our simulator.

DistServe (arXiv 2401.09670) prints for OPT-13B on ShareGPT (200 ms to the first token, 100 ms per token) the share of
requests inside the SLO at 1 to 4 requests/s per GPU: vLLM on one GPU, DistServe on three (prefill TP 2, decode TP 1).
Its search on one node of four A100 finds that placement, at 1.56 requests/s per GPU with 90 % inside.

What is assumed here. TTFT ends with the prefill, steps take at most 8192 tokens (as its servers are started,
`--context-max-tokens-per-batch`), requests go to the shortest queue (our router would prefill some on the decode
worker). Two rows are printed. `forward passes` is what DistServe's own simulator does: no KV memory to run out of, free
transfers, no time between two steps; it is held against the target. `as its engine runs` has what single requests
show that were measured on its engine (`distserve_measured.py`, `distserve_model.Host`).

Which requests the table was measured on is not published, and they are not those of DistServe's repository: what it
measured of these, on the same placement and at the same rates, has 96.3 % inside where the table has 100, and 35.7 %
where it has 70. The paper says that its prompts have 755.5 tokens on average; here their lengths are log-normal with
that mean, and a spread that is fitted to the table's rates up to 2.5/s: those above it are held out. Each published
figure comes from one run of 300 requests, an overload of 25 to 100 seconds: the standard deviation of such a run is
printed beside the mean of the draws, and how far a run of the simulator is from the simulator's own mean, which is what
the published run would be off if the simulator were exact. Placements are searched on prompts with the deciles of those
in DistServe's repository, which its own search ran on.

The largest error, at 2.0/s, is none of the spread: prompts that all have 755.5 tokens are printed, too. Two that come
within 100 ms of each other share a step or wait for one another, and at 6 prompts/s that alone makes more of them late
than the table has.

The exit code is 1 when attainment is off by more than 3 points at any rate, or another placement is better.

    python benchmarks/distserve.py [--reference FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from distserve_model import GOLDEN, HOST, REFERENCE, SLO, Fits, mean_gap, percent, split

from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.result import Result
from fulcrum.simulation.workload import Workload

RATES = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
PUBLISHED = {
    "vLLM": (97.0, 65.5, 52.8, 44.9, 36.7, 27.8, 23.6),
    "DistServe": (100.0, 100.0, 99.3, 87.3, 83.0, 77.3, 70.0),
}
TOLERANCE_POINTS = 3.0
GOLDEN_RATE = 1.56
MEAN_PROMPT_TOKENS = 755.5
FITTED_RATES = 4
"""So many of the lowest rates say how spread prompts are ..."""
SPREADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""... with one of these sigmas."""
# Deciles of the 300 requests in DistServe's repository; the correlation of -0.12 is left out.
PROMPT_DECILES = (9, 94, 279, 430, 573, 758, 867, 1047, 1319, 1512, 2003)
OUTPUT_DECILES = (2, 9, 14, 23, 36, 67, 164, 236, 337, 478, 1085)
MOST_TOKENS = 2048
REQUESTS = 300
DRAWS = 60
SEARCH_DRAWS = 5
# (prefill workers, their TP, decode workers, their TP) on at most four GPUs.
PLACEMENTS = tuple(
    (prefills, prefill_tp, decodes, decode_tp)
    for prefills in (1, 2, 3)
    for prefill_tp in (1, 2)
    for decodes in (1, 2, 3)
    for decode_tp in (1, 2)
    if prefills * prefill_tp + decodes * decode_tp <= 4
)


def main() -> int:
    """Run the benchmark; 0 when the target is met, or when the fits are not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, default=REFERENCE, help="folder of distserve_*.json and .csv")
    arguments = parser.parse_args()
    if not (arguments.reference / "distserve_profile_a100.json").exists():
        print(f"skipped: {arguments.reference} has no distserve_profile_a100.json")
        return 0
    fits = Fits(arguments.reference)
    spread = fitted_spread(fits)
    loads = [synthetic(seed, spread) for seed in range(DRAWS)]
    prompts = np.concatenate([load.prompt_tokens for load in loads])
    outputs = np.concatenate([load.output_tokens for load in loads])
    print(f"{DRAWS} times {REQUESTS} requests; prompts with sigma {spread}, fitted up to {RATES[FITTED_RATES - 1]}/s")
    print(f"mean {prompts.mean():.0f} + {outputs.mean():.0f} tokens\n")
    worst = attainment_table(fits, loads)
    same = placements_table(fits)
    met = worst <= TOLERANCE_POINTS
    print(
        f"\nattainment: off by {worst:.1f} points at most (target {TOLERANCE_POINTS:.0f}) {'ok' if met else 'MISSED'}"
    )
    print(f"golden placement is the best one found: {'ok' if same else 'MISSED'}")
    return 0 if met and same else 1


def attainment_table(fits: Fits, loads: Sequence[Workload]) -> float:
    """Print the attainment at each rate; returns DistServe's largest difference, in points."""
    alone = fits.speed(1, vllm=True)
    lengths = np.concatenate([load.prompt_tokens for load in loads]).astype(float)
    late = np.array([alone.prefill_seconds(each, each * each) > SLO.ttft_seconds for each in lengths]).mean()
    print(f"{'requests/s per GPU':36}" + "".join(f"{rate:7.1f}" for rate in RATES))
    runs = np.array([[percent(split(load, fits, rate)) for rate in RATES] for load in loads])
    rows = {
        "vLLM, published": PUBLISHED["vLLM"],
        "vLLM, simulated (fused steps)": tuple(mean(loads, on_vllm, fits, rate) for rate in RATES),
        "DistServe, published": PUBLISHED["DistServe"],
        "DistServe, forward passes": tuple(runs.mean(axis=0).tolist()),
        "DistServe, as its engine runs": tuple(mean(loads, split, fits, rate, host=HOST) for rate in RATES),
    }
    rows["standard deviation of a run"] = tuple(runs.std(axis=0).tolist())
    alike = [synthetic(seed, 0.0) for seed in range(DRAWS)]
    rows["all prompts of the mean length"] = tuple(mean(alike, split, fits, rate) for rate in RATES)
    for name, values in rows.items():
        print(f"{name:36}" + "".join(f"{value:7.1f}" for value in values))
    off = np.abs(runs - runs.mean(axis=0)).max(axis=1)
    print(
        f"A run of the simulator is {np.median(off):.1f} points off its own mean at some rate (median); "
        f"{(off <= TOLERANCE_POINTS).mean():.0%} of the runs are within {TOLERANCE_POINTS:.0f} at every rate."
    )
    if late > 0.03:
        promise = f"{SLO.ttft_seconds * 1e3:.0f} ms"
        print(f"By vLLM's fit {late:.0%} of these prompts take longer than {promise} even alone, so its published 97 %")
        print("at 1.0 requests/s were not measured on them. That row is shown and not held against us.")
    pairs = zip(rows["DistServe, published"], rows["DistServe, forward passes"], strict=True)
    return float(max(abs(published - ours) for published, ours in pairs))


def placements_table(fits: Fits) -> bool:
    """Print the rate per GPU of each placement; returns whether DistServe's is the best."""
    loads = [synthetic(seed, None) for seed in range(SEARCH_DRAWS)]
    found = {placement: highest_rate(fits, loads, placement) for placement in PLACEMENTS}
    print(f"\n{'placement on up to 4 GPUs':36} requests/s per GPU with {SLO.attainment:.0%} inside")
    for placement, rate in sorted(found.items(), key=lambda each: -each[1])[:6]:
        prefills, prefill_tp, decodes, decode_tp = placement
        golden = f"  DistServe's: {GOLDEN_RATE}" if placement == GOLDEN else ""
        print(f"  {prefills} x prefill TP{prefill_tp}, {decodes} x decode TP{decode_tp:<8} {rate:14.2f}{golden}")
    return max(found, key=lambda placement: found[placement]) == GOLDEN


def highest_rate(fits: Fits, loads: Sequence[Workload], placement: tuple[int, int, int, int]) -> float:
    """Return the highest rate per GPU with the promised attainment, to 0.02."""
    low, high = 0.0, 6.0
    while high - low > 0.02:
        middle = (low + high) / 2
        if mean(loads, split, fits, middle, placement) >= SLO.attainment * 100:
            low = middle
        else:
            high = middle
    return low


def on_vllm(load: Workload, fits: Fits, rate: float) -> Result:
    """Simulate one worker that does both."""
    cluster = ClusterModel(pools=(PoolModel(name="gpu", speed=fits.speed(1, vllm=True)),))
    return simulate(load.scaled(rate * mean_gap(load)), cluster, Aggregated(pool="gpu", workers=1), slo=SLO)


def mean(loads: Sequence[Workload], run: Callable[..., Result], *arguments: Any, **options: Any) -> float:
    """Percent inside the SLO, over all loads."""
    return float(np.mean([percent(run(load, *arguments, **options)) for load in loads]))


def fitted_spread(fits: Fits) -> float:
    """Return the spread of prompt lengths whose attainment is nearest to the published one at the lower rates."""

    def error(spread: float) -> float:
        loads = [synthetic(seed, spread) for seed in range(DRAWS)]
        rates = zip(RATES[:FITTED_RATES], PUBLISHED["DistServe"][:FITTED_RATES], strict=True)
        return sum((mean(loads, split, fits, rate) - published) ** 2 for rate, published in rates)

    return min(SPREADS, key=error)


def synthetic(seed: int, spread: float | None) -> Workload:
    """Requests at about 3/s. Prompts have the published mean and this spread (those beyond the model's context are
    drawn again), or, without one, the deciles of the repository's."""
    random, count = np.random.default_rng(seed), REQUESTS
    levels = np.linspace(0, 1, len(OUTPUT_DECILES))
    if spread is None:
        drawn = np.interp(random.random(count), levels, PROMPT_DECILES)
    else:
        drawn = random.lognormal(np.log(MEAN_PROMPT_TOKENS) - spread**2 / 2, spread, 3 * count)
    prompts = np.maximum(1, drawn[drawn < MOST_TOKENS][:count]).round().astype(np.int32)
    outputs = np.interp(random.random(count), levels, OUTPUT_DECILES).round().astype(np.int32)
    arrival_seconds = np.cumsum(random.exponential(1 / 3, count))
    return Workload(
        arrival_seconds=arrival_seconds,
        prompt_tokens=prompts,
        output_tokens=np.maximum(1, np.minimum(outputs, MOST_TOKENS - prompts)).astype(np.int32),
        qos_class=np.zeros(count, dtype=np.int16),
    )


if __name__ == "__main__":
    sys.exit(main())
