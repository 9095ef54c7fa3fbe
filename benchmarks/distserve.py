"""Fidelity: DistServe's published attainment and placement, from its published fits, in our simulator.

DistServe (arXiv 2401.09670) prints for OPT-13B on ShareGPT (200 ms to the first token, 100 ms per token) the share of
requests inside the SLO at 1 to 4 requests/s per GPU: vLLM on one GPU, DistServe on three (prefill TP 2, decode TP 1).
Its search on one node of four A100 finds that placement, at 1.56 requests/s per GPU with 90 % inside.

What is assumed here. TTFT ends with the prefill, transfers over NVLink cost nothing, steps take at most 8192 tokens (as
its servers are started, `--context-max-tokens-per-batch`), requests go to the shortest queue (our router would prefill
some on the decode worker). DistServe's own simulator keeps no account of KV memory in decode; both ways are printed,
and the one without is held against the target.

Which requests the table was measured on is not published. The paper says that its prompts have 755.5 tokens on average;
here their lengths are log-normal with that mean, and a spread that is fitted to the table's rates up to 2.5/s: those
above it are held out. Each published figure comes from one run of 300 requests, an overload of 25 to 100 seconds: the
standard deviation of such a run is printed beside the mean of the draws, and how far a run of the simulator is from
the simulator's own mean, which is what the published run would be off if the simulator were exact. Placements are
searched on prompts with the deciles of those in DistServe's repository, which its own search ran on.

The largest error, at 2.0/s, is none of the spread: prompts that all have 755.5 tokens are printed, too. Two that come
within 100 ms of each other share a step or wait for one another, and at 6 prompts/s that alone makes more of them late
than the table has.

`--workload FILE` takes the requests of the repository themselves (`simdistserve/benchmarks/alignment/data-ground-truth/
opt-13b-sharegpt-workload/distserve-c21d11-300-3.exp`: 300 at 3/s, replayed faster for higher rates). The table is not
theirs: four of the first 66 that were measured at 3/s took more than 200 ms, where the table has 100 % inside.

`--measured FILE` (any number of times, together with `--workload`) takes what DistServe measured of each request on
real GPUs (`opt-13b-sharegpt/distserve-c21d11-300-*.exp` beside that folder; a part of a file will do), sends the whole
workload at the same pace, and compares the latencies of the requests that the file has.

The exit code is 1 when attainment is off by more than 3 points at any rate, or another placement is better.

    python benchmarks/distserve.py [--workload FILE [--measured FILE]...] [--reference FOLDER]
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.balance.demand import Slo
from fulcrum.capacity.profile import PiecewiseSpeed, distserve_speed
from fulcrum.simulation.cluster import ClusterModel, FirstToken, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.front_door import Chosen, FrontDoor
from fulcrum.simulation.job import Job
from fulcrum.simulation.policies import Aggregated, StaticSplit
from fulcrum.simulation.result import Result
from fulcrum.simulation.traffic import Request
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

SHARED = Path(__file__).resolve().parents[2] / "shared" / "reference"
MODEL = "facebook/opt-13b"
SLO = Slo(ttft_seconds=0.2, tpot_seconds=0.1, attainment=0.9)
RATES = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
PUBLISHED = {
    "vLLM": (97.0, 65.5, 52.8, 44.9, 36.7, 27.8, 23.6),
    "DistServe": (100.0, 100.0, 99.3, 87.3, 83.0, 77.3, 70.0),
}
TOLERANCE_POINTS = 3.0
GOLDEN_RATE, GOLDEN = 1.56, (1, 2, 1, 1)
MEAN_PROMPT_TOKENS = 755.5
FITTED_RATES = 4
"""So many of the lowest rates say how spread prompts are ..."""
SPREADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""... with one of these sigmas."""
# Deciles of the 300 requests in DistServe's repository; the correlation of -0.12 is left out.
PROMPT_DECILES = (9, 94, 279, 430, 573, 758, 867, 1047, 1319, 1512, 2003)
OUTPUT_DECILES = (2, 9, 14, 23, 36, 67, 164, 236, 337, 478, 1085)
MOST_TOKENS = 2048
STEP_TOKENS = 8192
UNBOUNDED_TOKENS = 10_000_000
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
    parser.add_argument("--workload", type=Path, help="DistServe's file of requests (.exp)")
    parser.add_argument("--measured", type=Path, action="append", help="DistServe's file of measured requests (.exp)")
    parser.add_argument("--reference", type=Path, default=SHARED, help="folder of distserve_*.json and .csv")
    arguments = parser.parse_args()
    if not (arguments.reference / "distserve_profile_a100.json").exists():
        print(f"skipped: {arguments.reference} has no distserve_profile_a100.json")
        return 0
    fits = Fits(arguments.reference)
    if arguments.workload is not None:
        loads = [recorded(arguments.workload)]
        print(f"{len(loads[0])} requests of {arguments.workload.name}")
    else:
        spread = fitted_spread(fits)
        loads = [synthetic(seed, spread) for seed in range(DRAWS)]
        print(
            f"{DRAWS} times {REQUESTS} requests; prompts with sigma {spread}, fitted up to {RATES[FITTED_RATES - 1]}/s"
        )
    prompts = np.concatenate([load.prompt_tokens for load in loads])
    outputs = np.concatenate([load.output_tokens for load in loads])
    print(f"mean {prompts.mean():.0f} + {outputs.mean():.0f} tokens\n")
    worst = attainment_table(fits, loads)
    for path in arguments.measured or ():
        if arguments.workload is None:
            parser.error("--measured needs the --workload that was measured")
        against_measured(fits, loads[0], path)
    same = placements_table(fits)
    met = worst <= TOLERANCE_POINTS
    print(
        f"\nattainment: off by {worst:.1f} points at most (target {TOLERANCE_POINTS:.0f}) {'ok' if met else 'MISSED'}"
    )
    print(f"golden placement is the best one found: {'ok' if same else 'MISSED'}")
    return 0 if met and same else 1


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

    def speed(self, tensor: int, *, vllm: bool = False, bounded: bool = True) -> PiecewiseSpeed:
        """Return a worker of OPT-13B; `bounded` False leaves KV memory out of account."""
        room = self._room[MODEL, tensor, 1] if bounded else UNBOUNDED_TOKENS
        document = self._vllm if vllm else self._ours
        return distserve_speed(document, MODEL, tensor=tensor, kv_capacity_tokens=room, max_batched_tokens=STEP_TOKENS)


class ShortestQueue(StaticSplit):
    """As DistServe schedules: the prefill worker with fewest queued tokens, the decode worker with fewest requests."""

    def front_door(self, cluster: ClusterModel, slo: Slo) -> FrontDoor | None:
        return None

    def route(self, request: Job, view: View) -> Chosen | Reason:
        return Chosen(
            min((each for each in view.workers if each.role is Role.PREFILL), key=lambda each: each.queued_tokens),
            min((each for each in view.workers if each.role is Role.DECODE), key=lambda each: each.decode_legs),
        )


def attainment_table(fits: Fits, loads: Sequence[Workload]) -> float:
    """Print the attainment at each rate; returns DistServe's largest difference, in points."""
    alone = fits.speed(1, vllm=True)
    lengths = np.concatenate([load.prompt_tokens for load in loads]).astype(float)
    late = np.array([alone.prefill_seconds(each, each * each) > SLO.ttft_seconds for each in lengths]).mean()
    print(f"{'requests/s per GPU':36}" + "".join(f"{rate:7.1f}" for rate in RATES))
    runs = np.array([[percent(split(load, fits, rate, GOLDEN, bounded=False)) for rate in RATES] for load in loads])
    rows = {
        "vLLM, published": PUBLISHED["vLLM"],
        "vLLM, simulated (fused steps)": tuple(mean(loads, on_vllm, fits, rate) for rate in RATES),
        "DistServe, published": PUBLISHED["DistServe"],
        "DistServe, simulated": tuple(runs.mean(axis=0).tolist()),
        "DistServe, simulated, KV bounded": tuple(mean(loads, split, fits, rate, GOLDEN) for rate in RATES),
    }
    if len(loads) > 1:
        rows["standard deviation of a run"] = tuple(runs.std(axis=0).tolist())
        alike = [synthetic(seed, 0.0) for seed in range(DRAWS)]
        rows["all prompts of the mean length"] = tuple(
            mean(alike, split, fits, rate, GOLDEN, bounded=False) for rate in RATES
        )
    for name, values in rows.items():
        print(f"{name:36}" + "".join(f"{value:7.1f}" for value in values))
    if len(loads) > 1:
        off = np.abs(runs - runs.mean(axis=0)).max(axis=1)
        print(
            f"A run of the simulator is {np.median(off):.1f} points off its own mean at some rate (median); "
            f"{(off <= TOLERANCE_POINTS).mean():.0%} of the runs are within {TOLERANCE_POINTS:.0f} at every rate."
        )
    if late > 0.03:
        promise = f"{SLO.ttft_seconds * 1e3:.0f} ms"
        print(f"By vLLM's fit {late:.0%} of these prompts take longer than {promise} even alone, so its published 97 %")
        print("at 1.0 requests/s were not measured on them. That row is shown and not held against us.")
    pairs = zip(rows["DistServe, published"], rows["DistServe, simulated"], strict=True)
    return max(abs(published - ours) for published, ours in pairs)


def against_measured(fits: Fits, load: Workload, path: Path) -> None:
    """Print latencies of the same requests, measured by DistServe and simulated."""
    numbers = {
        lengths: number
        for number, lengths in enumerate(zip(load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True))
    }
    found = [
        (numbers[lengths], row)
        for row in ast.literal_eval(path.read_text(encoding="utf-8"))
        if (lengths := (row["prompt_len"], max(1, row["output_len"]))) in numbers
    ]
    chosen = np.array([number for number, _ in found])
    issued = np.array([row["issue_time"] for _, row in found])
    arrived = load.arrival_seconds[chosen]
    pace = float(np.ptp(arrived) / np.ptp(issued))
    rate = pace / mean_gap(load)
    print(f"\n{path.name}: {len(found)} requests at {rate:.1f}/s   p50 ms  p90 ms  inside the promise")
    for bounded in (False, True):
        result = split(load, fits, rate / 3, GOLDEN, bounded=bounded)
        columns = (("ttft", SLO.ttft_seconds, result.ttft_seconds), ("tpot", SLO.tpot_seconds, result.tpot_seconds))
        for name, promise, simulated in columns:
            measured = np.array([row[f"{name}_ms"] / 1e3 for _, row in found])
            seconds = simulated[chosen]
            kinds = {f"simulated{', KV bounded' if bounded else ''}": seconds}
            for who, each in kinds.items() if bounded else {"measured": measured, **kinds}.items():
                known = each[~np.isnan(each)]
                p50, p90 = np.quantile(known, [0.5, 0.9]) * 1e3
                print(f"  {name.upper()} {who:24} {p50:16.1f} {p90:7.1f} {(known <= promise).mean():10.1%}")


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
        if mean(loads, split, fits, middle, placement, bounded=False) >= SLO.attainment * 100:
            low = middle
        else:
            high = middle
    return low


def split(
    load: Workload, fits: Fits, rate_per_gpu: float, placement: tuple[int, int, int, int], *, bounded: bool = True
) -> Result:
    """Simulate (prefill workers, TP, decode workers, TP)."""
    prefills, prefill_tp, decodes, decode_tp = placement
    gpus = prefills * prefill_tp + decodes * decode_tp
    cluster = ClusterModel(
        pools=(
            PoolModel(name="prefill", speed=fits.speed(prefill_tp, bounded=bounded), gpus_per_worker=prefill_tp),
            PoolModel(name="decode", speed=fits.speed(decode_tp, bounded=bounded), gpus_per_worker=decode_tp),
        ),
        first_token=FirstToken.PREFILL,
    )
    policy = ShortestQueue(pool="prefill", prefill=prefills, decode=decodes, decode_pool="decode")
    return simulate(load.scaled(rate_per_gpu * gpus * mean_gap(load)), cluster, policy, slo=SLO)


def on_vllm(load: Workload, fits: Fits, rate: float) -> Result:
    """Simulate one worker that does both."""
    cluster = ClusterModel(pools=(PoolModel(name="gpu", speed=fits.speed(1, vllm=True)),))
    return simulate(load.scaled(rate * mean_gap(load)), cluster, Aggregated(pool="gpu", workers=1), slo=SLO)


def mean(loads: Sequence[Workload], run: Callable[..., Result], *arguments: Any, **options: Any) -> float:
    """Percent inside the SLO, over all loads."""
    return float(np.mean([percent(run(load, *arguments, **options)) for load in loads]))


def percent(result: Result) -> float:
    """Percent inside the SLO."""
    return float(100 * result.within(SLO).mean())


def fitted_spread(fits: Fits) -> float:
    """Return the spread of prompt lengths whose attainment is nearest to the published one at the lower rates."""

    def error(spread: float) -> float:
        loads = [synthetic(seed, spread) for seed in range(DRAWS)]
        rates = zip(RATES[:FITTED_RATES], PUBLISHED["DistServe"][:FITTED_RATES], strict=True)
        return sum(
            (mean(loads, split, fits, rate, GOLDEN, bounded=False) - published) ** 2 for rate, published in rates
        )

    return min(SPREADS, key=error)


def mean_gap(load: Workload) -> float:
    """Seconds between two requests."""
    return load.duration_seconds / len(load)


def recorded(path: Path) -> Workload:
    """DistServe's file: a JSON list of `prompt_len`, `output_len`, `start_time`."""
    rows = json.loads(path.read_bytes())
    return Workload.of(
        Request(
            arrival_seconds=row["start_time"], prompt_tokens=row["prompt_len"], output_tokens=max(1, row["output_len"])
        )
        for row in rows
    )


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
