"""CPU cost of admission and routing for one request, by the number of workers and how busy they are.

One process, no I/O. `decide` is path and decision; `keys` are those of the prompt's prefixes; `book` is start, prefill
done, finish and learning. Fails when a decision costs more than 15 microseconds in some case.

    python benchmarks/admission.py [--quick]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from fulcrum.admission import Admission, Admit, Reject
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy, ClassMatch, QosClass
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import ClusterView, Flight, Incoming, prefix_keys

TARGET_MICROSECONDS = 15.0
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


@dataclass(frozen=True)
class Case:
    """One situation."""

    name: str
    workers: int
    in_flight: int
    """Requests under way for each decode worker; some more are queued for prefill."""
    prefix: bool


def prompt(number: int) -> bytes:
    """One in four shares a beginning with others."""
    shared = b"You are a helpful assistant. " * 40 if number % 4 == 0 else b""
    return (shared + b"%d " % number * (PROMPT_BYTES // 4))[:PROMPT_BYTES]


def build(case: Case) -> tuple[Admission, ClusterView]:
    admission = Admission(AdmissionPolicy.PREDICTIVE, CLASSES, ttft_seconds=1.0, tpot_seconds=0.05)
    view = admission.new_view()
    view.set_speed("h100", SPEED)
    prefills = max(case.workers * 3 // 8, 1)
    for number in range(case.workers):
        role = Role.PREFILL if number < prefills else Role.DECODE
        view.put(f"w{number}", role, pool="h100", revision="r1", node=f"n{number // 8}")
    for number in range(case.in_flight * (case.workers - prefills)):
        flight = start(admission, view, number, 0.0, case.prefix)
        if flight is not None and number % 50:
            view.prefill_done(flight, 0.0)
    return admission, view


def ask(admission: Admission, number: int, with_prefix: bool) -> Incoming:
    body = prompt(number)
    qos = admission.classes.match({"x-customer-tier": ("premium", "standard", "none")[number % 3]})
    keys = prefix_keys(body) if with_prefix else ()
    return admission.incoming(prompt_bytes=len(body), max_tokens=OUTPUT_TOKENS, qos=qos, prefix=keys)


def start(admission: Admission, view: ClusterView, number: int, now: float, with_prefix: bool) -> Flight | None:
    incoming = ask(admission, number, with_prefix)
    outcome = admission.decide(incoming, view, now)
    return None if isinstance(outcome, Reject) else view.start(incoming, outcome.route, now)


def microseconds(of: Callable[[int], object], count: int) -> float:
    rounds = []
    for _ in range(9):
        began = time.process_time()
        for number in range(count):
            of(number)
        rounds.append((time.process_time() - began) / count * 1e6)
    return min(rounds)


def measure(case: Case, count: int) -> dict[str, float | str]:
    admission, view = build(case)
    asks = [ask(admission, number, case.prefix) for number in range(256)]
    bodies = [prompt(number) for number in range(256)]
    outcomes = [admission.decide(each, view, 0.01) for each in asks]
    route = next((one.route for one in outcomes if isinstance(one, Admit)), None)

    def book(number: int) -> None:
        assert route is not None
        flight = view.start(asks[number % 256], route, 0.01)
        view.prefill_done(flight, 0.01, prompt_tokens=1000)
        view.finish(flight, 0.01)
        admission.learn(flight, ttft_seconds=route.ttft_seconds, tpot_seconds=route.tpot_seconds, output_tokens=200)

    gc.collect()
    return {
        "keys": microseconds(lambda number: prefix_keys(bodies[number % 256]), count) if case.prefix else 0.0,
        "decide": microseconds(lambda number: admission.decide(asks[number % 256], view, 0.01), count),
        "book": microseconds(book, count) if route is not None else float("nan"),
        "rejected": sum(isinstance(one, Reject) for one in outcomes) / len(outcomes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    count = 1000 if parser.parse_args().quick else 10_000
    cases = [
        Case(name, workers, in_flight, prefix)
        for workers in (8, 16, 64)
        for name, in_flight, prefix in (("light", 2, False), ("busy", 60, False), ("busy, prefixes", 60, True))
    ] + [Case("overload", 64, 2000, True)]
    print("microseconds of one request; CPU time, best of 9 rounds")
    print(f"{'workers':>7}  {'load':<16}{'decide':>8}{'keys':>8}{'book':>8}{'rejected':>10}")
    worst = 0.0
    for case in cases:
        took = measure(case, count)
        worst = max(worst, float(took["decide"]))
        print(
            f"{case.workers:>7}  {case.name:<16}{took['decide']:>8.1f}{took['keys']:>8.1f}{took['book']:>8.1f}"
            f"{took['rejected']:>10.0%}"
        )
    print(f"worst decision {worst:.1f} microseconds, target {TARGET_MICROSECONDS:.0f}")
    if worst > TARGET_MICROSECONDS:
        sys.exit("FAILED: above the target")


if __name__ == "__main__":
    main()
