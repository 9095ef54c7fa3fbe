"""CPU cost of admission and routing for one request, by the number of workers and how busy they are.

One process, no I/O. `decide` is estimates, path and decision; `keys` are those of the prompt's prefixes; `book` is
start, prefill done, finish and learning. Of ten parts of a run the median of the best one counts: what else the machine
does is not of interest here. Measures the code as it is; with `--compiled` a compiled copy of it, which takes minutes
to make (hatch_build.py) and is kept until a source changes. Fails when, compiled, a decision on a request that is let
in costs more than 15 microseconds, or one in an overload, where most are turned away, more than 25.

    python benchmarks/admission.py [--compiled] [--count N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path

from fulcrum.admission import Admission, Preempt, Reject, decide
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy, ClassMatch, QosClass
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import ClusterView, Flight, prefix_keys
from fulcrum.routing.flight import ENDED, PREFILLING

TARGET_MICROSECONDS = 15.0
OVERLOAD_TARGET_MICROSECONDS = 25.0
SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.008, prefill_b=3e-5, prefill_c=1e-10, decode_a=0.012, decode_b=2e-5, decode_c=2e-8
    ),
    kv_capacity_tokens=800_000,
    transfer_base_seconds=0.002,
    transfer_seconds_per_token=1e-6,
)
CLASSES = (
    QosClass(name="premium", priority=100, reserved=0.1, match=ClassMatch(header="x-customer-tier", value="premium")),
    QosClass(name="standard", priority=50, reserved=0.3, match=ClassMatch(header="x-customer-tier", value="standard")),
    QosClass(name="free", priority=10),
)
PROMPT_BYTES = 4000
OUTPUT_TOKENS = 300
BATCH = 60
"""Requests that a decode worker has under way at load 1."""
LIFE_SECONDS = OUTPUT_TOKENS * SPEED.decode_step_seconds(BATCH, BATCH * 1150)


@dataclass(frozen=True)
class Case:
    """One situation."""

    workers: int
    load: float
    """Arrivals, as a multiple of those that keep `BATCH` requests on each decode worker."""
    prefix: bool
    """With prefix affinity: a quarter share a system prompt, a quarter are further turns of a conversation."""


@dataclass
class Took:
    """What was measured."""

    decide: float
    keys: float
    book: float
    rejected: float


def prompt(number: int) -> bytes:
    """Prompt of a request."""
    shared = b"You are a helpful assistant. " * 40 if number % 4 == 0 else b""
    turns = b"And then? " * 100 if number % 4 == 1 else b""
    of = number - 400 if turns else number
    return (shared + b"%d " % of * (PROMPT_BYTES // 4))[:PROMPT_BYTES] + turns


def build(case: Case) -> tuple[Admission, ClusterView, int]:
    admission = Admission(AdmissionPolicy.PREDICTIVE, CLASSES, ttft_seconds=1.0, tpot_seconds=0.05)
    view = admission.new_view()
    view.workers.set_speed("h100", SPEED)
    prefills = max(case.workers * 3 // 8, 1)
    for number in range(case.workers):
        role = Role.PREFILL if number < prefills else Role.DECODE
        view.workers.put(f"w{number}", role, pool="h100", revision="r1", node=f"n{number // 8}")
    return admission, view, case.workers - prefills


def measure(case: Case, count: int) -> Took:
    """Run a steady load by a clock of its own, and time each part of what comes once it is steady."""
    admission, view, decodes = build(case)
    gap = LIFE_SECONDS / (BATCH * decodes * case.load)
    # Two lives, or as many requests as fill the decode workers twice.
    before = int(2 * BATCH * decodes * min(case.load, 1.0))
    clock = time.perf_counter_ns
    events: list[tuple[float, int, Flight]] = []
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    rejected = 0
    for number in range(before + count):
        now = number * gap
        while events and events[0][0] <= now:
            at, turn, flight = heappop(events)
            if flight.phase == PREFILLING:
                view.prefill_done(flight, at, prompt_tokens=1000)
                heappush(events, (at + LIFE_SECONDS, turn, flight))
            else:
                view.finish(flight, at)
        body = prompt(number)
        qos = admission.classes.match({"x-customer-tier": ("premium", "standard", "none")[number % 3]})
        began = clock()
        keys = prefix_keys(body, 1) if case.prefix else ()
        keyed = clock()
        incoming = admission.incoming(
            prompt_tokens=len(body) / 4, max_tokens=OUTPUT_TOKENS, qos=qos, prefix=keys, units_per_token=4.0
        )
        outcome = admission.decide(incoming, view, now)
        decided = clock()
        if number >= before:
            rejected += isinstance(outcome, Reject)
            times[0].append((decided - keyed) / 1e3)
            times[1].append((keyed - began) / 1e3)
        if isinstance(outcome, Reject):
            continue
        if isinstance(outcome, Preempt):
            for victim in outcome.victims:
                view.finish(victim, now)
            events = [event for event in events if event[2].phase != ENDED]
            heapify(events)
        route = outcome.route
        flight = view.start(incoming, route, now)
        heappush(events, (now + route.ttft_seconds, number, flight))
        # What follows is measured on a request of its own, which comes and goes at once.
        began = clock()
        other = view.start(incoming, route, now)
        view.prefill_done(other, now, prompt_tokens=1000)
        view.finish(other, now)
        admission.learnt.learn(
            other, ttft_seconds=route.ttft_seconds, tpot_seconds=route.tpot_seconds, output_tokens=300
        )
        times[2].append((clock() - began) / 1e3)
    decide, keys_took, book = (best_part(each) for each in times)
    return Took(decide, keys_took, book, rejected / len(times[0]))


def best_part(times: list[float]) -> float:
    """Lowest of the medians of ten parts."""
    size = max(len(times) // 10, 1)
    return min(statistics.median(times[begin : begin + size]) for begin in range(0, len(times) - size + 1, size))


def measure_compiled(count: int) -> int:
    """Run this benchmark on a compiled copy, and return its exit code."""
    root = Path(__file__).parents[1]
    folder = root / "build" / "compiled"
    print(f"compiles into {folder}", flush=True)
    subprocess.run([sys.executable, str(root / "hatch_build.py"), str(folder)], check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, __file__, "--count", str(count)]
    return subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": str(folder)}).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", action="store_true", help="measure a compiled copy, which is made first")
    parser.add_argument("--count", type=int, default=5000, help="requests that are measured in each situation")
    parser.add_argument("--core", action="store_true", help="print one figure: all of a request, 2 workers at load 0.3")
    options = parser.parse_args()
    if options.compiled:
        sys.exit(measure_compiled(options.count))
    if options.core:
        took = measure(Case(2, 0.3, prefix=True), 2000)
        print(took.decide + took.keys + took.book)
        return
    compiled = not str(decide.__file__).endswith(".py")
    print(f"microseconds for one request ({'compiled' if compiled else 'not compiled'})")
    print("load 1 is 60 requests on each decode worker", flush=True)
    print(f"{'workers':>7}{'load':>6}{'prefixes':>10}{'decide':>9}{'keys':>7}{'book':>7}{'rejected':>10}", flush=True)
    failed = False
    for workers in (8, 16, 64):
        for load, prefix in ((0.3, False), (0.9, False), (0.9, True), (13.0, False), (13.0, True)):
            took = measure(Case(workers, load, prefix), options.count)
            target = TARGET_MICROSECONDS if load < 1 else OVERLOAD_TARGET_MICROSECONDS
            failed = failed or took.decide > target
            print(
                f"{workers:>7}{load:>6.1f}{'yes' if prefix else 'no':>10}{took.decide:>9.1f}{took.keys:>7.1f}"
                f"{took.book:>7.1f}{took.rejected:>10.0%}{'  over the target' if took.decide > target else ''}",
                flush=True,
            )
    if failed and compiled:
        sys.exit(f"FAILED: the targets are {TARGET_MICROSECONDS:.0f} and {OVERLOAD_TARGET_MICROSECONDS:.0f}")


if __name__ == "__main__":
    main()
