"""How far the capacity model is from measured engines, before and after it has seen a few of the measurements.

    python benchmarks/capacity.py [--reference ../shared/reference] [--details]

Three sources, each skipped with a line when it is not there:

- splitwise_perf_model.csv: single steps of vLLM of 2023 (prompt and token time; A100, H100). What the model describes,
  so it is compared directly. The engine is `EAGER`: no CUDA graphs then.
- silicon_h100.csv: whole servers of 2025/26 under a fixed number of concurrent requests (vLLM, TensorRT-LLM, SGLang).
  TTFT and TPOT there come out of queueing and batching as well, so a static estimate is put on top of the step times
  (`aggregated`, `disaggregated` below).

- distserve_profile_a100*.json: DistServe's fits of OPT on A100 (their engine, and vLLM of 2023), at usual sizes. Held
  out: the constants of the roofline were fitted to the other two files, never to these.

"before": the roofline alone, as linear coefficients. "after": `OnlineSpeed` has learnt CALIBRATION_ROWS rows per
(model, hardware or backend, parallelism, format); those rows are left out of its error. Of the closed loops it learns
decode only: their TTFT says how requests bunch up, not how long a prefill takes, so two numbers of the static estimate
(`Arrivals`) are fitted to the same rows instead.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.capacity.online import TRUST, OnlineSpeed
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.profile import distserve_speed
from fulcrum.capacity.roofline import EAGER, shape_speed
from fulcrum.capacity.rows import DecodeRow, PrefillRow
from fulcrum.capacity.speed import Speed, SpeedSource, WorkerSpeed

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"
CALIBRATION_ROWS = 6

TARGETS = {
    # source: (TTFT median, TPOT median) of the relative error, (before, after)
    "splitwise": ((0.15, 0.10), (0.15, 0.05)),
    "silicon aggregated": ((0.70, 0.10), (0.25, 0.08)),
}


@dataclass(frozen=True)
class Latency:
    """What a request sees, in seconds."""

    ttft: float
    tpot: float


@dataclass(frozen=True)
class Arrivals:
    """How requests of a closed loop meet: TTFT = own * (prefill alone + half a step) + wave * (prefill of all)."""

    own: float = 1.0
    wave: float = 0.1 / 2
    """A run of ten requests per slot starts with all slots at once: a tenth of its requests waits for half of them."""


@dataclass(frozen=True)
class Case:
    """One measured row: what it measured, how the model estimates it, and what it teaches."""

    group: tuple[str, ...]
    measured: Latency
    speed: WorkerSpeed
    estimate: Callable[[WorkerSpeed, Arrivals], Latency]
    lesson: Callable[[WorkerSpeed], list[PrefillRow | DecodeRow]]
    meeting: Callable[[WorkerSpeed], tuple[float, float]] | None = None
    """What `own` and `wave` are multiplied with."""


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def splitwise_cases(path: Path) -> tuple[list[Case], int]:
    """Medians of repeated rows; those whose batch does not fit into the KV cache measure queueing and are left out."""
    repeated: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in read(path):
        key = ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")
        repeated[tuple(row[name] for name in key)].append(row)
    cases, left_out = [], 0
    for (model, hardware, tensor, prompt, batch, output), rows in repeated.items():
        shape = EngineShape(
            model=known_model(model),
            # The power-capped rows are the same H100 with a cap: nothing the model could know before it sees them.
            accelerator=accelerator(hardware.removesuffix("-pcap")),
            tensor=int(tensor),
            kv=Precision.BF16,
            max_batch=64,
        )
        speed = shape_speed(shape, efficiency=EAGER)
        if int(batch) * (int(prompt) + int(output)) > speed.kv_capacity_tokens:
            left_out += 1
            continue
        measured = Latency(
            statistics.median(float(row["prompt_time"]) for row in rows) / 1e3,
            statistics.median(float(row["token_time"]) for row in rows) / 1e3,
        )
        cases.append(
            step_case(
                (model, hardware, tensor), speed, measured, prompt=int(prompt), batch=int(batch), output=int(output)
            )
        )
    return cases, left_out


def step_case(
    group: tuple[str, ...], speed: WorkerSpeed, measured: Latency, *, prompt: int, batch: int, output: int
) -> Case:
    tokens, squared = float(batch * prompt), float(batch * prompt * prompt)
    context = batch * (prompt + output / 2)

    def estimate(worker: WorkerSpeed, _: Arrivals) -> Latency:
        return Latency(worker.prefill_seconds(tokens, squared), worker.decode_step_seconds(batch, context))

    def lesson(_: WorkerSpeed) -> list[PrefillRow | DecodeRow]:
        return [
            PrefillRow(prompts=1, tokens=tokens, squared_tokens=squared, seconds=measured.ttft),  # one step
            DecodeRow(batch=batch, context_tokens=context, seconds_per_step=measured.tpot),
        ]

    return Case(group, measured, speed, estimate, lesson)


def distserve_cases(paths: Sequence[Path]) -> list[Case]:
    """A grid of steps, as DistServe's fits give them."""
    cases = []
    for path in paths:
        document = json.loads(path.read_text())
        for model, tensors in document.items():
            for tensor in tensors:
                fit = distserve_speed(document, model, tensor=int(tensor), kv_capacity_tokens=1)
                shape = EngineShape(
                    model=known_model(model),
                    accelerator=accelerator("A100"),
                    tensor=int(tensor),
                    kv=Precision.BF16,
                    memory_utilization=0.99,
                )
                speed = shape_speed(shape, efficiency=EAGER)
                for prompt, batch in ((512, 8), (512, 64), (1024, 1), (1024, 32), (2048, 16)):
                    measured = Latency(
                        fit.prefill_seconds(prompt, prompt**2), fit.decode_step_seconds(batch, batch * prompt)
                    )
                    group = (path.stem, model, tensor)
                    cases.append(fit_case(group, speed, measured, prompt=prompt, batch=batch))
    return cases


def fit_case(group: tuple[str, ...], speed: WorkerSpeed, measured: Latency, *, prompt: int, batch: int) -> Case:
    def estimate(worker: WorkerSpeed, _: Arrivals) -> Latency:
        return Latency(worker.prefill_seconds(prompt, prompt**2), worker.decode_step_seconds(batch, batch * prompt))

    return Case(group, measured, speed, estimate, lambda _: [])


@dataclass(frozen=True)
class Load:
    """A closed loop: `concurrency` requests at any time, each of `isl` prompt and `osl` output tokens."""

    isl: int
    osl: int
    concurrency: float

    @property
    def context(self) -> float:
        return self.isl + self.osl / 2


def prompt_seconds(worker: Speed, isl: int) -> float:
    """What one more prompt adds to the steps that it shares with others."""
    sharing = max(1, round(worker.max_batched_tokens / isl))
    return worker.prefill_seconds(sharing * isl, sharing * isl * isl) / sharing


def running(worker: Speed, load: Load) -> float:
    return min(load.concurrency, worker.max_batch, max(1.0, worker.kv_capacity_tokens / load.context))


def aggregated(worker: WorkerSpeed, load: Load, arrivals: Arrivals) -> Latency:
    """Mixed workers. Between two tokens of a request, the others' prompts are prefilled now and then: each of them once
    per `osl` tokens. What the KV cache does not hold waits for a slot (Little)."""
    batch = running(worker, load)
    tpot = aggregated_tpot(worker, load)
    own, wave = meeting(worker, load)
    waiting = (load.concurrency - batch) / batch * (worker.prefill_seconds(load.isl, load.isl**2) + load.osl * tpot)
    return Latency(arrivals.own * own + arrivals.wave * wave + waiting, tpot)


def aggregated_tpot(worker: Speed, load: Load) -> float:
    batch = running(worker, load)
    others = (batch - 1) / load.osl * prompt_seconds(worker, load.isl)
    return worker.decode_step_seconds(batch, batch * load.context) + others


def meeting(worker: WorkerSpeed, load: Load) -> tuple[float, float]:
    own = worker.prefill_seconds(load.isl, load.isl**2) + aggregated_tpot(worker, load) / 2
    return own, running(worker, load) * prompt_seconds(worker, load.isl)


def aggregated_lesson(worker: WorkerSpeed, load: Load, measured: Latency) -> list[PrefillRow | DecodeRow]:
    """The decode step that is left of a measured TPOT without the prompts of others."""
    batch = running(worker, load)
    seconds = measured.tpot - (batch - 1) / load.osl * prompt_seconds(worker, load.isl)
    if batch < load.concurrency or seconds <= 0:
        return []
    return [DecodeRow(batch=batch, context_tokens=batch * load.context, seconds_per_step=seconds)]


def silicon_weights(row: dict[str, str]) -> Precision:
    if "gpt-oss" in row["model_path"]:
        return Precision.FP4  # published in MXFP4
    return Precision.FP8 if row["gemm_quant_mode"].startswith("fp8") else Precision.BF16


def concurrency(row: dict[str, str]) -> float | None:
    found = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    if found:
        return float(found[1])
    return float(row["batch_size"]) if row["batch_size"] else None


def silicon_shape(row: dict[str, str], tensor: str) -> EngineShape:
    return EngineShape(
        model=known_model(row["model_path"]),
        accelerator=accelerator(row["system"]),
        tensor=int(float(tensor)),
        weights=silicon_weights(row),
        kv=Precision.BF16,  # the file does not say; what vLLM and SGLang do by themselves
        max_batch=512,
    )


def silicon_cases(path: Path) -> tuple[list[Case], list[Case], int]:
    """Aggregated cases, disaggregated cases, and how many rows could not be used."""
    mixed: list[Case] = []
    split: list[Case] = []
    left_out = 0
    speeds: dict[EngineShape, WorkerSpeed] = {}
    seen: set[tuple[str, ...]] = set()
    for row in read(path):
        slots = concurrency(row)
        what = tuple(value for name, value in row.items() if name not in {"id", "silicon_data_source", "model_path"})
        if slots is None or what in seen:  # some measurements are listed under several ids
            left_out += 1
            continue
        seen.add(what)
        try:
            shape = silicon_shape(row, row["tp_size"] or row["decode_tp_size"])
            speed = speeds.setdefault(shape, speeds.get(shape) or shape_speed(shape))
            measured = Latency(float(row["silicon_ttft_ms"]) / 1e3, float(row["silicon_tpot_ms"]) / 1e3)
            load = Load(int(row["isl"]), int(row["osl"]), slots)
            group = (row["model_path"], row["backend"], str(shape.tensor), shape.weights.value)
            if row["mode"] == "agg":
                mixed.append(mixed_case(group, speed, measured, load))
            else:
                split.append(split_case(row, group, speed, measured, load))
        except EngineShapeError:
            left_out += 1
    return mixed, split, left_out


def mixed_case(group: tuple[str, ...], speed: WorkerSpeed, measured: Latency, load: Load) -> Case:
    return Case(
        group,
        measured,
        speed,
        lambda worker, arrivals: aggregated(worker, load, arrivals),
        lambda worker: aggregated_lesson(worker, load, measured),
        (lambda worker: meeting(worker, load)) if running(speed, load) == load.concurrency else None,
    )


def split_case(row: dict[str, str], group: tuple[str, ...], speed: WorkerSpeed, measured: Latency, load: Load) -> Case:
    """Prefill and decode apart. Rows without a number of workers are taken as one of each."""
    prefills, decodes = float(row["prefill_num_workers"] or 1), float(row["decode_num_workers"] or 1)
    prefill_speed = shape_speed(silicon_shape(row, row["prefill_tp_size"]))
    batch = load.concurrency / decodes

    alone = prefill_speed.prefill_seconds(load.isl, load.isl**2) + speed.transfer_seconds(load.isl)
    wave = load.concurrency / prefills * prompt_seconds(prefill_speed, load.isl)

    def estimate(worker: WorkerSpeed, arrivals: Arrivals) -> Latency:
        ttft = arrivals.own * alone + arrivals.wave * wave
        return Latency(ttft, worker.decode_step_seconds(batch, batch * load.context))

    def lesson(_: WorkerSpeed) -> list[PrefillRow | DecodeRow]:
        return [DecodeRow(batch=batch, context_tokens=batch * load.context, seconds_per_step=measured.tpot)]

    return Case(group, measured, speed, estimate, lesson, lambda _: (alone, wave))


@dataclass(frozen=True)
class Errors:
    """Relative errors of a set of cases."""

    ttft: list[float]
    tpot: list[float]

    @classmethod
    def of(cls, pairs: Iterable[tuple[Latency, Latency]]) -> Errors:
        listed = list(pairs)
        return cls(
            [abs(estimated.ttft / measured.ttft - 1) for measured, estimated in listed],
            [abs(estimated.tpot / measured.tpot - 1) for measured, estimated in listed],
        )


def percent(errors: Sequence[float]) -> str:
    p90 = statistics.quantiles(errors, n=10)[-1] if len(errors) > 1 else errors[0]
    return f"{statistics.median(errors) * 100:6.1f} {p90 * 100:7.1f}"


def calibrated(cases: list[Case]) -> tuple[WorkerSpeed, Arrivals, set[int]]:
    """A group's speed and arrivals after a few of its rows, spread evenly over it, and which ones they were."""
    prior = cases[0].speed
    chosen = {round(at * (len(cases) - 1) / (CALIBRATION_ROWS - 1)) for at in range(CALIBRATION_ROWS)}
    online = OnlineSpeed.start(prior.coefficients, trust=TRUST[SpeedSource.ROOFLINE])
    now = prior
    for at in sorted(chosen):
        online = online.updated(cases[at].lesson(now))
        now = dataclasses.replace(prior, coefficients=online.coefficients)
    met = [(each.meeting(now), each.measured.ttft) for at in chosen if (each := cases[at]).meeting is not None]
    arrivals = Arrivals(*fit_relative(*zip(*met, strict=True))) if len(met) > 1 else Arrivals()
    return now, arrivals, chosen


def report(name: str, cases: list[Case], details: bool) -> tuple[Errors, Errors]:
    groups: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.group].append(case)
    before = Errors.of((case.measured, case.estimate(case.speed, Arrivals())) for case in cases)
    learnt: list[tuple[Latency, Latency]] = []
    for group, members in sorted(groups.items()):
        own_before = Errors.of((case.measured, case.estimate(case.speed, Arrivals())) for case in members)
        if details:
            name_and_size = f"    {' '.join(group):58} {len(members):4}"
            print(f"{name_and_size} before: {percent(own_before.ttft)} {percent(own_before.tpot)}")
        if len(members) <= CALIBRATION_ROWS:
            continue  # nothing would be left to compare with
        speed, arrivals, chosen = calibrated(members)
        own = [(case.measured, case.estimate(speed, arrivals)) for at, case in enumerate(members) if at not in chosen]
        learnt += own
        if details:
            after = Errors.of(own)
            print(f"    {'':58} {len(own):4}  after: {percent(after.ttft)} {percent(after.tpot)}")
    after = Errors.of(learnt)
    for label, errors in (("before", before), ("after", after)):
        if errors.ttft:
            print(f"{name:22} {label:7} {len(errors.ttft):6} {percent(errors.ttft)}   {percent(errors.tpot)}")
    return before, after


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument("--details", action="store_true", help="One line per (model, hardware, parallelism).")
    arguments = parser.parse_args()
    results: dict[str, tuple[Errors, Errors]] = {}
    print(f"{'relative error, %':37} {'TTFT':>14} {'TPOT':>16}")
    print(f"{'source':22} {'':7} {'rows':>6} {'median':>6} {'P90':>7}   {'median':>6} {'P90':>7}")
    splitwise, silicon = (arguments.reference / f"{name}.csv" for name in ("splitwise_perf_model", "silicon_h100"))
    notes = []
    if splitwise.is_file():
        cases, left_out = splitwise_cases(splitwise)
        results["splitwise"] = report("splitwise", cases, arguments.details)
        notes.append(f"splitwise: {left_out} points left out, their batch does not fit into the KV cache")
    else:
        print(f"skipped: {splitwise} is not there")
    if silicon.is_file():
        mixed, split, left_out = silicon_cases(silicon)
        results["silicon aggregated"] = report("silicon aggregated", mixed, arguments.details)
        report("silicon disaggregated", split, arguments.details)
        notes.append(
            f"silicon: {left_out} rows left out: listed twice, without a concurrency, or with weights that do not fit"
        )
    else:
        print(f"skipped: {silicon} is not there")
    fits = sorted(arguments.reference.glob("distserve_profile_a100*.json"))
    if fits:
        report("distserve (held out)", distserve_cases(fits), arguments.details)
    else:
        print(f"skipped: no distserve_profile_a100*.json in {arguments.reference}")
    for note in notes:
        print(note)
    return conclude(results)


def conclude(results: dict[str, tuple[Errors, Errors]]) -> int:
    if not results:
        print("capacity: skipped, no reference data")
        return 0
    missed = []
    for source, errors in results.items():
        for label, error, target in zip(("before", "after"), errors, TARGETS[source], strict=True):
            for what, found, limit in (("TTFT", error.ttft, target[0]), ("TPOT", error.tpot, target[1])):
                if statistics.median(found) > limit:
                    missed.append(f"{source} {what} {label} {statistics.median(found):.3f} > {limit}")
    shown = "; ".join(
        f"{source} TTFT {statistics.median(before.ttft):.1%} -> {statistics.median(after.ttft):.1%}, "
        f"TPOT {statistics.median(before.tpot):.1%} -> {statistics.median(after.tpot):.1%}"
        for source, (before, after) in results.items()
    )
    print(f"capacity: median error {shown}: {'missed ' + ', '.join(missed) if missed else 'all targets met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
