"""Our planner against every other policy, on fixed GPUs: synthetic workloads, and recorded ones where they are at hand.

Per workload it prints a table and checks what the project promises:

* at least 95 % of the goodput of the best schedule found with foresight (flips for free), which no planner has;
* never more than 1 % below the best static split (on stationary load that is the whole point, elsewhere it is printed);
* at most two flips per change of phase, where the workload has phases;
* in NVIDIA's scenario, with Pods that come and go, more than its planner gained over the static 2P:2D;
* fewer rejections and less wasted prefill than Mooncake's predictive rule, where that rejects.

Ours runs three times. `ours` begins as a new cluster does that nobody tells anything: with the split that usual chat
traffic would ask for. The made-up loads have the lengths of the same traffic, so that helps them; `ours-even` begins
with half of the workers in each role, and `ours-informed` with the split that is the best one in hindsight, as the best
static split and Mooncake's rule do. What is promised is judged for `ours`, and printed beside it for the others. The
exit code is 1 when any that is judged is missed.

`of bound` is the share of what a fluid bound allows: no planner exceeds 1. Speeds are rooflines: Llama-3.1-70B in FP8
on two H100 a worker; for NVIDIA's scenario the 8B on one H200.

With --results a run can be taken up where it stopped, and workloads can be run by several processes at once: what is in
the file of the same code, seed and policies is printed and not run again.

    python benchmarks/policies.py [--quick] [--only NAME,NAME] [--policy NAME,NAME] [--seed N] [--explain]
                                  [--results FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import msgspec
from contests.contestants import CONTESTANTS, bound
from contests.explain import lost

import fulcrum
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.roofline import worker_speed
from fulcrum.load.demand import promised
from fulcrum.rehearsal.simulated import Rehearsals
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.comparison import Comparison, ComparisonInputs, Entry, UnknownPolicyError
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import WORKLOADS
from fulcrum.simulation.policies import StaticSplit
from fulcrum.simulation.result import Summary
from fulcrum.simulation.traffic import load_trace
from fulcrum.simulation.workload import Workload

PACKAGE = Path(next(iter(fulcrum.__path__)))
SHARED_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
QUICK_POLICIES = (
    "ours", "ours-even", "ours-informed", "ours-open", "static", "aggregated", "dynamo", "arrow",
    "mooncake-predictive", "optimum",
)  # fmt: skip
QUICK_CASES = ("stationary", "shifts", "limit")
OURS = ("ours", "ours-even", "ours-informed")
OF_OPTIMUM, OF_STATIC, FLIPS_PER_CHANGE = 0.95, 0.99, 2
LEAST_REJECTED = 0.01
"""Share of the requests that Mooncake's rule has to turn away, for there to be something to compare."""
TURN_SECONDS = 1.0
START_SECONDS = 60.0
CLAIMED = 0.52, 0.29
"""By which NVIDIA's planner gains on the static 2P:2D in goodput, and per GPU."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    model: str
    accelerator: str
    tensor: int
    weights: Precision


BIG = Hardware(model="meta-llama/Llama-3.1-70B-Instruct", accelerator="H100-SXM-80GB", tensor=2, weights=Precision.FP8)
SMALL = Hardware(
    model="meta-llama/Llama-3.1-8B-Instruct", accelerator="H200-SXM-141GB", tensor=1, weights=Precision.BF16
)


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    load: Callable[[], Workload]
    workers: int = 8
    hardware: Hardware = BIG
    slo: tuple[str, str] = ("500ms", "30ms")
    changes: int | None = None
    """How often the phase changes; None where that cannot be counted."""
    file: Path | None = None


def cases(folder: Path, seed: int = 1) -> list[Case]:
    """Every workload; rates are such that the GPUs are busy, `limit` at what they can do, and `overload` far beyond."""

    def made(name: str, speed: float = 1.0) -> Callable[[], Workload]:
        return lambda: WORKLOADS[name](seed).scaled(speed)

    def recorded(name: str, speed: float) -> tuple[Callable[[], Workload], Path]:
        path = folder / name
        return lambda: Workload.of(load_trace(path)).scaled(speed), path

    azure, azure_file = recorded("azure_conv_2023.csv", 5.0)
    mooncake, mooncake_file = recorded("mooncake_conversation.jsonl", 0.6)
    twice, _ = recorded("mooncake_conversation.jsonl", 1.2)
    return [
        Case(name="stationary", load=made("stationary", 1.6), changes=0),
        Case(name="ramp", load=made("ramp", 1.3)),
        Case(name="sine", load=made("sine", 1.3)),
        Case(name="bursts", load=made("bursts", 1.5), changes=0),
        Case(name="steps", load=made("steps", 1.6), changes=2),
        Case(name="shifts", load=made("shifts", 1.2), changes=3),
        Case(name="limit", load=made("stationary", 3.2), changes=0),
        Case(name="overload", load=made("stationary", 5.6), changes=0),
        Case(name="dynamo-sine", load=made("dynamo-sine"), workers=6, hardware=SMALL, slo=("200ms", "10ms")),
        Case(name="azure", load=azure, file=azure_file),
        Case(name="mooncake", load=mooncake, slo=("5s", "50ms"), file=mooncake_file),
        Case(name="mooncake x2", load=twice, slo=("5s", "50ms"), file=mooncake_file),
    ]


def main() -> int:
    """Run the benchmark; 0 when every target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three workloads of 15 minutes, fewer policies")
    parser.add_argument("--only", help="workloads, with commas")
    parser.add_argument("--policy", help="policies, with commas; ours is always among them")
    parser.add_argument("--seed", type=int, default=7, help="of the synthetic workloads; nothing was tuned on 7")
    parser.add_argument("--explain", action="store_true", help="say how requests were lost that foresight serves")
    parser.add_argument("--results", type=Path, help="file to keep finished workloads in, and to go on from")
    parser.add_argument("--traces", type=Path, default=SHARED_TRACES, help="folder of the recorded traces")
    arguments = parser.parse_args()
    names: tuple[str, ...] = QUICK_POLICIES if arguments.quick else tuple(CONTESTANTS.policies)
    if arguments.policy:
        names = ("ours", *arguments.policy.split(","))
    only = arguments.only.split(",") if arguments.only else QUICK_CASES if arguments.quick else None
    verdicts: list[Verdict] = []
    began = time.monotonic()
    kept = Kept(arguments.results, of=f"{code_digest()} {arguments.seed} {arguments.quick} {','.join(names)}")
    for case in cases(arguments.traces, arguments.seed):
        if only is not None and case.name not in only:
            continue
        if case.file is not None and not case.file.exists():
            print(f"\n{case.name}: skipped, {case.file} is not there")
            continue
        if (done := kept.done.get(case.name)) is not None:
            print(done.text, end="")
            verdicts += done.verdicts
            continue
        load = case.load()
        load = load.between(300, 1200) if arguments.quick else load
        with redirect_stdout(Tee(sys.stdout)) as printed:
            try:
                found = run(case, load, names, explain=arguments.explain)
            except UnknownPolicyError as error:
                parser.error(str(error))
            if case.hardware is SMALL:
                published(case, load, found)
        kept.add(Done(case=case.name, of=kept.of, text=printed.getvalue(), verdicts=found))
        verdicts += found
    print(f"\nTargets ({time.monotonic() - began:.0f} s)")
    for one in verdicts:
        print(f"  {one.case:12} {one.text:104} {'ok' if one.met else 'MISSED'}{'' if one.judged else ' (beside)'}")
    judged, beside = ([one.met for one in verdicts if one.judged is which] for which in (True, False))
    print(f"{sum(judged)} of {len(judged)} met; beside, {sum(beside)} of {len(beside)}")
    return 0 if all(judged) else 1


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether what was promised holds."""

    case: str
    text: str
    met: bool
    judged: bool = True
    """A promise; else what it comes to for a run of which it is not promised."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload came to."""

    case: str
    of: str
    """The code, seed and policies that it came to this with."""
    text: str
    verdicts: list[Verdict]


class Kept:
    """Finished workloads, one a line; without a file nothing is kept."""

    def __init__(self, file: Path | None, *, of: str) -> None:
        self._file, self.of = file, of
        lines = file.read_bytes().splitlines() if file is not None and file.exists() else []
        found = [msgspec.json.decode(line, type=Done) for line in lines]
        self.done = {one.case: one for one in found if one.of == of}

    def add(self, one: Done) -> None:
        """Keep a workload that is finished."""
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(one) + b"\n")


class Tee(io.StringIO):
    """Keeps what is written, and passes it on."""

    def __init__(self, onward: TextIO) -> None:
        super().__init__()
        self._onward = onward

    def write(self, text: str) -> int:
        self._onward.write(text)
        self._onward.flush()
        return super().write(text)


def imported_packages() -> list[str]:
    """Return the packages of `fulcrum` that the simulator and the contest import, at once or later."""
    import grimp

    graph = grimp.build_graph("fulcrum", "contests", cache_dir=None)
    imported = (graph.find_upstream_modules(one, as_package=True) for one in ("fulcrum.simulation", "contests"))
    names = (module.split(".") for module in set().union(*imported))
    return sorted({"simulation", *(package for root, package, *_ in names if root == "fulcrum")})


def code_digest(package: Path = PACKAGE) -> str:
    """Return a digest of the sources that decide what comes out."""
    digest = hashlib.sha256()
    folders = (Path(__file__).parent / "contests", *(package / name for name in imported_packages()))
    for path in (Path(__file__), *(path for folder in folders for path in sorted(folder.rglob("*.py")))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run(case: Case, load: Workload, names: tuple[str, ...], *, explain: bool = False) -> list[Verdict]:
    """Print the table of one workload, and return what holds of the promises."""
    inputs = inputs_of(case, load)
    comparison = Comparison(inputs=inputs, table=CONTESTANTS)
    most = bound(inputs)
    print(
        f"\n{case.name}: {len(load):,} requests in {load.duration_seconds:,.0f} s, {load.prompt_tokens.mean():,.0f} + "
        f"{load.output_tokens.mean():,.0f} tokens, {case.workers} workers of {case.hardware.tensor}, "
        f"SLO {case.slo[0]}/{case.slo[1]}"
    )
    print(
        f"  {'policy':22} {'in SLO':>7} {'of bound':>8} {'goodput':>8} {'/GPU-s':>7} {'GPU-h':>6} {'TTFT p90':>9} "
        f"{'TPOT p90':>9} {'flips':>5} {'Pods':>5} {'rejected':>8} {'wasted':>7} {'CPU s':>6}"
    )
    found: dict[str, tuple[Entry, Summary]] = {}
    for name in CONTESTANTS.checked(names, inputs):
        started = time.process_time()
        entry = comparison.run(name)
        summary = entry.result.summary(inputs.slo)
        found[name] = entry, summary
        good = round(summary.attainment * len(load))
        print(
            f"  {summary.policy:22} {summary.attainment:7.1%} {good / most if most else 0.0:8.3f} "
            f"{summary.goodput:8.2f} {summary.goodput_per_gpu:7.3f} {summary.gpu_hours:6.2f} "
            f"{summary.ttft_seconds.p90 * 1e3:6,.0f} ms {summary.tpot_seconds.p90 * 1e3:6,.1f} ms "
            f"{summary.flips:5} {summary.pods_started:5} {summary.rejected:8,} {summary.wasted_prefill:7.1%} "
            f"{time.process_time() - started:6.1f}",
            flush=True,
        )
    if explain and "optimum" in found:
        causes = lost(found["ours"][0].result, found["optimum"][0].result, inputs.slo)
        print("  served with foresight, but not by ours: " + "; ".join(f"{k} {n:,}" for k, n in causes.items()))
    return targets(case, {name: each for name, (_, each) in found.items()})


def published(case: Case, load: Workload, verdicts: list[Verdict]) -> None:
    """NVIDIA's own comparison: its scenario with Pods that come and go, against the static 2P:2D, which admits all.

    Printed, too: the same static split with our admission, which nobody has published anything of.
    """
    fixed = inputs_of(replace(case, workers=4), load)
    plain = Comparison(inputs=fixed, table=CONTESTANTS).run("static-2:2").result.summary(fixed.slo)
    closed = StaticSplit(pool="gpus", prefill=2, decode=2, admission=AdmissionPolicy.PREDICTIVE)
    with_ours = simulate(load, fixed.cluster, closed, slo=fixed.slo).summary(fixed.slo)
    scaled = inputs_of(case, load, low=2, start_seconds=START_SECONDS)
    ours = Comparison(inputs=scaled, table=CONTESTANTS).run("ours").result.summary(scaled.slo)
    print(f"  with 2 to {case.workers} workers that take {START_SECONDS:.0f} s to start, against 2P:2D:")
    rows = (("ours", ours), ("2P:2D, all admitted", plain), ("2P:2D, our admission", with_ours))
    for name, summary in rows:
        print(
            f"    {name:20} {summary.attainment:7.1%} {summary.goodput:6.2f}/s {summary.goodput_per_gpu:6.3f}/GPU-s "
            f"{summary.gpu_hours:5.2f} GPU-h {summary.flips:3} flips {summary.pods_started:3} Pods"
        )
    more, per_gpu = ours.goodput / plain.goodput - 1, ours.goodput_per_gpu / plain.goodput_per_gpu - 1
    text = f"{more:+.0%} goodput, {per_gpu:+.0%} per GPU over the static 2P:2D (NVIDIA's planner claims +52 %, +29 %)"
    verdicts.append(Verdict(case=case.name, text=text, met=more >= CLAIMED[0] and per_gpu >= CLAIMED[1]))


def targets(case: Case, found: dict[str, Summary]) -> list[Verdict]:
    """Return what was promised of ours, and whether it holds."""
    return [each for name in OURS if name in found for each in _of_one(case, found[name], found, judged=name == "ours")]


def _of_one(case: Case, ours: Summary, found: dict[str, Summary], *, judged: bool) -> list[Verdict]:
    verdicts: list[Verdict] = []

    def add(text: str, met: bool) -> None:
        verdicts.append(Verdict(case=case.name, text=f"{ours.policy}: {text}", met=met, judged=judged))

    if (optimum := found.get("optimum")) is not None:
        share = ours.attainment / optimum.attainment if optimum.attainment else 1.0
        add(f"{share:.1%} of the goodput that foresight found (at least {OF_OPTIMUM:.0%})", share >= OF_OPTIMUM)
    if (static := found.get("static")) is not None and case.changes == 0:
        share = ours.attainment / static.attainment if static.attainment else 1.0
        add(f"{share:.1%} of the {static.policy} (at least {OF_STATIC:.0%})", share >= OF_STATIC)
    if case.changes is not None:
        allowed = FLIPS_PER_CHANGE * (case.changes + 1)
        text = f"{ours.flips} flips (at most {FLIPS_PER_CHANGE} per change of phase, the start being one: {allowed})"
        add(text, ours.flips <= allowed)
    theirs = found.get("mooncake-predictive")
    if theirs is not None and theirs.rejected > LEAST_REJECTED * theirs.requests:
        late, theirs_late = (one.served - round(one.attainment * one.requests) for one in (ours, theirs))
        text = f"{ours.rejected:,} rejected, {late:,} late (Mooncake's rule: {theirs.rejected:,}, {theirs_late:,})"
        add(text, ours.rejected < theirs.rejected)
        text = f"{ours.wasted_prefill:.2%} of prefill wasted (Mooncake's predictive rule: {theirs.wasted_prefill:.2%})"
        add(text, ours.wasted_prefill <= theirs.wasted_prefill)
    return verdicts


def inputs_of(case: Case, load: Workload, *, low: int | None = None, start_seconds: float = 0.0) -> ComparisonInputs:
    """Return a cluster whose GPUs are all there all the time, or `low` workers and more as ours decides."""
    hardware = case.hardware
    speed = worker_speed(
        known_model(hardware.model),
        accelerator(hardware.accelerator),
        tensor=hardware.tensor,
        weights=hardware.weights,
    )
    pool = {
        "name": "gpus",
        "accelerator": hardware.accelerator,
        "parallelism": {"tensor": hardware.tensor},
        "workers": {"min": case.workers if low is None else low, "max": case.workers},
    }
    document = {
        "model": {"name": hardware.model},
        "slo": {"ttft": case.slo[0], "tpot": case.slo[1]},
        "pools": [pool],
        "balance": {"mode": "Auto"},
        "admission": {"policy": "Predictive"},
    }
    spec = msgspec.convert(document, InferenceClusterSpec)
    model = PoolModel(name="gpus", speed=speed, gpus_per_worker=hardware.tensor, start_seconds=start_seconds)
    return ComparisonInputs(
        workload=load,
        cluster=ClusterModel(pools=(model,)),
        spec=spec,
        slo=promised(spec),
        least_turn_seconds=TURN_SECONDS,
        rehearser=Rehearsals,
    )


if __name__ == "__main__":
    sys.exit(main())
