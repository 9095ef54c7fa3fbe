"""How good the sizing is: estimated attainment and numbers of workers against a simulated queue.

    python benchmarks/queueing.py

The reference (`tests/performance/queueing/reference_queue.py`) is a discrete-event queue that steps as vLLM does: token
budget, chunks, KV memory, preemption, a router that counts requests. For each role, worker, load, spread of lengths and
size it prints the attainment of both where the reference is above 80 %, and then, for rates that need 1 to 64 workers,
the smallest number that each says is enough. Exits with 0 only when the targets below hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.placement.queueing.reference_queue import ReferenceQueue, draw_requests, settled
from tests.placement.queueing.throughput import decode_throughput, prefill_throughput

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand
from fulcrum.placement.queueing import (
    decode_attainment,
    mixed_attainment,
    prefill_attainment,
)

TARGET_POINTS = 2.0
"""Mean absolute error of attainment, in points, where the reference is above 80 %."""
TARGET_SIZED = 0.90
"""Share of sizings within one worker, or 10 %, of the smallest number that the reference says is enough."""
TARGET_MICROSECONDS = 1000.0
"""Median of one estimate for 1,000 workers; generous, as other work may share the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One role of one kind of worker with one kind of request."""

    name: str
    role: str
    speed: WorkerSpeed
    demand: Demand
    """With the rate left open."""
    ttft_seconds: float
    tpot_seconds: float

    def estimated(self, rate: float, workers: int) -> float:
        """Return the attainment by formula."""
        demand, stations = replace(self.demand, rate=rate), [(self.speed, workers)]
        if self.role == "prefill":
            return prefill_attainment(demand, stations, ttft_seconds=self.ttft_seconds)
        if self.role == "decode":
            return decode_attainment(demand, stations, tpot_seconds=self.tpot_seconds)
        return mixed_attainment(demand, stations, ttft_seconds=self.ttft_seconds, tpot_seconds=self.tpot_seconds).joint

    def simulated(self, rate: float, workers: int, *, seed: int) -> float:
        """Return the attainment that the reference has once it is settled."""
        demand = replace(self.demand, rate=rate)
        held = 0.0 if self.role == "prefill" else rate * demand.osl_tokens * self.tpot_seconds
        requests = draw_requests(demand, count=int(min(8_000 + 20 * held, 24_000)), seed=seed)
        outcome = ReferenceQueue(requests, [self.speed] * workers, role=self.role).run()
        first, between, waits = (
            settled(values, warm_up=0.3) for values in (outcome.first, outcome.between, outcome.waits)
        )
        if self.role == "prefill":
            return float((first <= self.ttft_seconds).mean())
        if self.role == "decode":
            # A newcomer waits for the step under way in any case; longer only when there is no room.
            return float(((between <= self.tpot_seconds) & (waits <= 2 * between.mean())).mean())
        return float(((first <= self.ttft_seconds) & (between <= self.tpot_seconds)).mean())

    def throughput(self) -> float:
        """Return the rate at which one worker is busy all the time, or its mean step is as long as TPOT allows."""
        demand, stations, k = self.demand, [(self.speed, 1)], self.speed.coefficients
        context = demand.isl_tokens + demand.osl_tokens * (1 + demand.osl_cv2) / 2
        per_token = k.decode_b + k.decode_c * context
        prefill = prefill_throughput(demand, stations)
        in_time = (1 - k.decode_a / self.tpot_seconds) / (demand.osl_tokens * per_token)
        decode = min(decode_throughput(demand, stations), in_time)
        if self.role == "mixed":
            busy = k.prefill_b * demand.isl_tokens + k.prefill_c * demand.isl_tokens**2 * (1 + demand.isl_cv2)
            return (1 - k.decode_a / self.tpot_seconds) / (busy + demand.osl_tokens * per_token)
        return prefill if self.role == "prefill" else decode


def worker(
    prefill: tuple[float, float, float], decode: tuple[float, float, float], kv: int, budget: int = 8192
) -> WorkerSpeed:
    """Return a worker from coefficients in ms, us and ns."""
    return WorkerSpeed(
        coefficients=SpeedCoefficients(
            prefill_a=prefill[0] * 1e-3,
            prefill_b=prefill[1] * 1e-6,
            prefill_c=prefill[2] * 1e-9,
            decode_a=decode[0] * 1e-3,
            decode_b=decode[1] * 1e-6,
            decode_c=decode[2] * 1e-9,
        ),
        kv_capacity_tokens=kv,
        max_batched_tokens=budget,
    )


SMALL = worker((18, 102, 7), (20, 40, 630), 66_144)
"""About what DistServe's profile says of OPT-13B on one A100."""
LARGE = worker((20, 60, 0.3), (14, 40, 13), 600_000)
"""A 70B model on four quick GPUs: much KV memory, steps that hardly grow with the context."""
CHUNKED = replace(LARGE, max_batched_tokens=2048)


def cases() -> Iterator[Case]:
    """Yield every kind of case: three roles, and lengths that are alike or spread out."""
    table: list[tuple[str, str, WorkerSpeed, float, float, float, float]] = [
        ("small, long prompts", "prefill", SMALL, 1155, 1, 1.0, 1.0),
        ("small, short prompts", "prefill", SMALL, 128, 1, 0.1, 1.0),
        ("large", "prefill", LARGE, 3000, 1, 1.2, 1.0),
        ("large, chunks of 2048", "prefill", CHUNKED, 3000, 1, 1.2, 1.0),
        ("small", "decode", SMALL, 300, 150, 1.0, 0.05),
        ("large", "decode", LARGE, 1000, 200, 1.0, 0.025),
        ("small", "mixed", SMALL, 300, 150, 0.5, 0.06),
        ("large", "mixed", LARGE, 1000, 200, 0.6, 0.04),
    ]
    for name, role, speed, isl, osl, ttft, tpot in table:
        for cv2 in (0.0, 1.0):
            yield Case(
                name=f"{role:7s} {name}, cv2 {cv2:g}",
                role=role,
                speed=speed,
                demand=Demand(rate=0.0, isl_tokens=isl, osl_tokens=osl, isl_cv2=cv2, osl_cv2=cv2),
                ttft_seconds=ttft,
                tpot_seconds=tpot,
            )


def attainment_errors(case: Case) -> list[float]:
    """Print and return estimated - simulated attainment over loads and sizes."""
    errors = []
    for workers in (1, 4, 16):
        row = []
        for load in (0.6, 0.75, 0.9):
            rate = load * workers * case.throughput()
            simulated, estimated = case.simulated(rate, workers, seed=1), case.estimated(rate, workers)
            row.append(f"{load:.2f}: {simulated * 100:5.1f} {estimated * 100:5.1f}")
            if simulated >= 0.8:
                errors.append(estimated - simulated)
        print(f"  {workers:3d} workers   {'   '.join(row)}")
    return errors


def smallest(enough: Callable[[int], bool], *, low: int, high: int) -> int:
    """Return the smallest number in [low, high] that is enough, given that `high` is."""
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return low


def sizings(case: Case, attainment: float) -> Iterator[tuple[float, int, int]]:
    """Yield (rate, estimated workers, simulated workers) for rates that keep 1 to about 50 workers busy."""
    for busy in (0.6, 2.5, 10.0, 40.0):
        rate = busy * case.throughput()
        most = int(3 * busy) + 6

        def by_formula(workers: int, rate: float = rate) -> bool:
            return case.estimated(rate, workers) >= attainment

        def by_reference(workers: int, rate: float = rate) -> bool:
            return float(np.mean([case.simulated(rate, workers, seed=seed) for seed in (1, 2)])) >= attainment

        if not by_formula(most) or not by_reference(most):
            continue
        estimated = smallest(by_formula, low=1, high=most)
        near = max(2, estimated // 5)
        low, high = max(1, estimated - near), min(most, estimated + near)
        yield rate, estimated, smallest(by_reference, low=low, high=high if by_reference(high) else most)


def microseconds() -> float:
    """Return the median time of one prefill and one decode estimate for 1,000 workers."""
    found = []
    for case in cases():
        if case.role != "mixed":
            rate = 800 * case.throughput()
            for _ in range(20):
                begin = perf_counter()
                case.estimated(rate, 1000)
                found.append((perf_counter() - begin) * 1e6)
    return float(np.median(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attainment", type=float, default=0.95, help="share of requests that the sizing must keep")
    options = parser.parse_args()
    errors: list[float] = []
    sized: list[tuple[int, int]] = []
    print("attainment in percent, load: reference estimate")
    for case in cases():
        print(case.name)
        errors += attainment_errors(case)
        for rate, estimated, simulated in sizings(case, options.attainment):
            sized.append((estimated, simulated))
            print(f"  {rate:8.1f} requests/s: {simulated:3d} workers, estimated {estimated:3d}")
    points = float(np.mean(np.abs(errors))) * 100
    within = [abs(estimated - simulated) <= max(1.0, 0.1 * simulated) for estimated, simulated in sized]
    share = sum(within) / len(within)
    too_few = sum(estimated < simulated for estimated, simulated in sized) / len(sized)
    each = microseconds()
    ok = points <= TARGET_POINTS and share >= TARGET_SIZED and each <= TARGET_MICROSECONDS
    print(
        f"queueing {'ok' if ok else 'FAILED'}: attainment off by {points:.1f} points on average "
        f"(largest {np.max(np.abs(errors)) * 100:.0f}; target {TARGET_POINTS:g}), {share * 100:.0f} % of {len(sized)} "
        f"sizings within 1 worker or 10 % (target {TARGET_SIZED * 100:.0f} %; too few in {too_few * 100:.0f} %), "
        f"{each:.0f} us an estimate for 1,000 workers"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
