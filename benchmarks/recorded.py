"""A recording of real vLLM engines, played by the simulator: what comes of it has to be what clients saw.

    python benchmarks/recorded.py [--cpu 300m] [--keep FOLDER]

Brings up the demo's four engines at 3P:1D with admission off, so that nothing is turned away and no role changes, and
sends the demo's two kinds of requests in turns: long prompts, which that layout serves, and long answers, of which it
serves less than come. Then the commands of a user follow: `fulcrum record`, `fulcrum capacity --export` and `fulcrum
simulate` with the cluster's own spec. Nothing is fitted to what the clients measured.

What engines measure at their start holds for that moment: they share cores with each other and with all else that runs.
So the exported profile follows what workers report of their prompts and steps during the trace, by the operator's rule
(`capacity.online`), but without forgetting: all of the recorded minutes count alike.

Exits with 0 only if every request is in the recording, 10 to 90 % of the long answers were late, the share inside the
SLO is within 5 points, and p50 and p90 of TTFT and TPOT are within 15 %. With 2 where nothing can be said: the engines
are too slow, or another program took so much CPU that their own pace changed by more than 1.3 times during the trace.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import yaml
from calibration import endpoint_of, reports, run
from demo import MANIFEST, unfit
from demo_engines import SAME, cores_each, measured, usable_cores, with_cpu
from demo_load import ARRIVALS_CV, PROMPTS_SPLIT, SEED, SPREAD, Load, load_for, operator_seconds_of, served
from demo_page import described
from demo_replay import attainment, warm_up
from demo_screen import console
from demo_setup import READY_SECONDS, promise, wait_for
from local_cluster import BIN, Cluster, CommandError, local_cluster
from local_cluster import run as output_of

from fulcrum.api.worker import LoadReport, SpeedCoefficients
from fulcrum.capacity.online import TRUST, OnlineSpeed
from fulcrum.capacity.profile import parse_profile, profile_speed
from fulcrum.capacity.rows import DecodeRow, PrefillRow, rows_between
from fulcrum.replay import EndpointError, LatencyLimits, Record, summarise
from fulcrum.simulation.traffic import Phase, Request, generate, load_trace

NAME: Final = "auto"
LEAST_REQUESTS: Final = 300
LATE: Final = 0.1, 0.9
"""Bounds of the share of long answers that are late: all in time, or all late, would be too easy to agree about."""
LATE_FROM: Final = 0.4
"""Share of a stretch of long answers after which they begin to be late, by the queue's growth."""
DRAINS: Final = 1.5
"""Length of a stretch of long prompts, in stretches of long answers: the queue of these drains at its beginning."""
LEAD_SECONDS: Final = 20.0
"""From the last request that is no part of the trace to the first that is: `--last` ends between them."""
ROW_SECONDS: Final = 10.0
"""Between two reports of a worker that a row is made from, as in the operator."""
QUARTERS: Final = 4
POINTS: Final = 0.05
TOLERANCE: Final = 0.15
UNFIT: Final = 2
"""Exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is compared; seconds."""

    inside: float
    """Share of all requests inside the SLO."""
    ttft: tuple[float, float]
    """p50 and p90."""
    tpot: tuple[float, float]

    def misses(self, real: Figures) -> Iterator[str]:
        """What is further off than the target."""
        if abs(self.inside - real.inside) > POINTS:
            yield f"inside the SLO {(self.inside - real.inside) * 100:+.1f} points"
        for name, mine, its in zip(_NAMES, (*self.ttft, *self.tpot), (*real.ttft, *real.tpot), strict=True):
            if abs(mine / its - 1) > TOLERANCE:
                yield f"{name} {mine / its - 1:+.1%}"

    def __str__(self) -> str:
        times = zip(_NAMES, (*self.ttft, *self.tpot), strict=True)
        return f"{self.inside:6.1%} inside" + "".join(f"  {name} {each * 1e3:,.0f} ms" for name, each in times)


_NAMES: Final = ("TTFT p50", "TTFT p90", "TPOT p50", "TPOT p90")


def phases(load: Load) -> tuple[Phase, Phase]:
    """The demo's long prompts and long answers, as long as it takes that some answers are late and the queue drains."""
    answers = load.answers
    lengths = int(answers.prompt_tokens_mean), int(answers.output_tokens_mean)
    growth = answers.requests_per_second / served(load.speed, PROMPTS_SPLIT, *lengths) - 1
    late_after_seconds = load.slo.ttft_seconds / growth
    seconds = ceil(late_after_seconds / LATE_FROM)
    return replace(load.prompts, seconds=DRAINS * seconds), replace(answers, seconds=float(seconds))


def traffic(load: Load) -> tuple[tuple[Request, ...], list[bool]]:
    """At least `LEAST_REQUESTS`, of both phases in turns, and which of them are of the long answers."""
    turn = phases(load)
    turns = 0
    requests: tuple[Request, ...] = ()
    while len(requests) < LEAST_REQUESTS:
        turns += 1
        requests = generate(turn * turns, seed=SEED, cv=ARRIVALS_CV)
    whole_seconds = sum(phase.seconds for phase in turn)
    return requests, [each.arrival_seconds % whole_seconds >= turn[0].seconds for each in requests]


def manifest_of(folder: Path, cpu: str) -> Path:
    """The demo's cluster, in a layout that stands, and with a gateway that turns nothing away."""
    path = with_cpu(MANIFEST, folder, cpu)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    prefill, decode = PROMPTS_SPLIT
    document["spec"]["balance"] |= {"mode": "Manual", "ratio": {"prefill": prefill, "decode": decode}}
    document["spec"]["admission"] = {"policy": "Off"}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def measure(cluster: Cluster, kept: Path) -> int:
    """Drive, record, play and compare; returns the exit code."""
    wait_for(cluster, "all four workers, and the gateway to have tried their pairs")
    found = measured(cluster, print)
    if (problem := unfit(found)) is not None:
        print(f"nothing can be said on this machine: {problem}")
        return UNFIT
    load = load_for(found.speed, operator_seconds=operator_seconds_of(cluster.cluster()["spec"]))
    console.print(described(load))
    promise(cluster, load.slo)
    warm_up(cluster, load)
    requests, long_answers = traffic(load)
    endpoint = endpoint_of(cluster)
    time.sleep(LEAD_SECONDS)
    start = time.monotonic()
    with followed(cluster) as rows:
        records = sorted(run(cluster, endpoint, requests, seed=SEED), key=lambda record: record.due_seconds)
    trace = recorded(cluster, kept, time.monotonic() - start + LEAD_SECONDS / 2)
    keep(records, kept)
    answers = [record for record, is_answer in zip(records, long_answers, strict=True) if is_answer]
    late = 1 - (attainment(answers, load.slo) or 0.0)
    print(f"{len(requests)} requests in {requests[-1].arrival_seconds:.0f} s, {len(answers)} with long answers, of "
          f"which {late:.0%} were late; {cluster.flips()} flips")  # fmt: skip
    problems = [*same_requests(records, trace)]
    if not LATE[0] <= late <= LATE[1]:
        problems.append(f"{late:.0%} of the long answers were late, and not {LATE[0]:.0%} to {LATE[1]:.0%}")
    real = seen_by_clients(records, load.slo)
    changed = write_profile(cluster, kept, rows)
    played = simulated(cluster, kept)
    print(f"clients    {real}\nsimulated  {played}")
    problems += played.misses(real)
    if changed > SAME:
        print(f"nothing can be said on this machine: the engines' own pace changed {changed:.2f} times in the trace")
        return UNFIT
    verdict = f"FAILED: {'; '.join(problems)}" if problems else "ok"
    print(f"recorded {verdict} (targets: {POINTS * 100:.0f} points, {TOLERANCE:.0%})")
    return int(bool(problems))


@contextmanager
def followed(cluster: Cluster) -> Iterator[list[PrefillRow | DecodeRow]]:
    """Yield what the workers report of their work until the block ends: complete only then."""
    rows: list[PrefillRow | DecodeRow] = []
    before: dict[str, tuple[float, LoadReport]] = {}
    over = threading.Event()
    squares = float(np.expm1(SPREAD**2))  # of the log-normal lengths of either phase

    def follow() -> None:
        while True:
            for name, report in reports(cluster).items():
                now = time.monotonic()
                if name in before:
                    found = rows_between(before[name][1], report, seconds=now - before[name][0], isl_cv2=squares)
                    rows.extend(row for row in found if row is not None)
                before[name] = now, report
            if over.wait(ROW_SECONDS):
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield rows
    finally:
        over.set()
        thread.join()


def recorded(cluster: Cluster, kept: Path, last_seconds: float) -> tuple[Request, ...]:
    """The trace that `fulcrum record` writes of the last seconds."""
    path = kept / "trace.jsonl"
    text = output_of(BIN / "fulcrum", "record", cluster.name, "--last", f"{last_seconds:.1f}", env=cluster.env)
    path.write_text(text, encoding="utf-8")
    return tuple(load_trace(path))


def same_requests(records: Sequence[Record], trace: Sequence[Request]) -> Iterator[str]:
    """Yield what the recording has otherwise than the clients; print how far apart the arrivals are."""
    if len(records) != len(trace):
        yield f"{len(trace)} requests in the recording, {len(records)} were sent"
        return
    offsets = [each.due_seconds - records[0].due_seconds for each in records]
    apart = max(abs(due - each.arrival_seconds) for due, each in zip(offsets, trace, strict=True))
    print(f"arrivals in the recording are at most {apart * 1e3:.0f} ms from when the clients were due")
    sent, known = (sorted(each.output_tokens for each in those) for those in (records, trace))
    if sent != known:
        yield "the answers in the recording have other lengths"


def keep(records: Sequence[Record], kept: Path) -> None:
    """Write what clients measured beside the trace."""
    lines = [
        {"due": each.due_seconds - records[0].due_seconds, "ttft": each.ttft_seconds, "tpot": each.tpot_seconds,
         "tokens": each.output_tokens, "path": each.path}
        for each in records
    ]  # fmt: skip
    (kept / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def seen_by_clients(records: Sequence[Record], slo: LatencyLimits) -> Figures:
    report = summarise(records, offered=len(records), slo=slo)
    ttft, tpot = report.ttft_seconds, report.tpot_seconds
    assert ttft is not None
    assert tpot is not None
    return Figures(inside=report.slo_attainment, ttft=(ttft.p50, ttft.p90), tpot=(tpot.p50, tpot.p90))


def simulated(cluster: Cluster, kept: Path) -> Figures:
    """What `fulcrum simulate` says of the trace, on the cluster's spec and the speed that its workers showed."""
    document = cluster.cluster()
    spec = {key: document[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": cluster.name}}
    (kept / "cluster.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    text = output_of(
        BIN / "fulcrum", "simulate", "--trace", kept / "trace.jsonl", "--cluster", kept / "cluster.yaml",
        "--profile", kept / "profile.json", "--policy", "ours", "--json", env=cluster.env,
    )  # fmt: skip
    figures: dict[str, Any] = json.loads(text)["policies"][0]
    ttft, tpot = figures["ttft_seconds"], figures["tpot_seconds"]
    return Figures(inside=figures["attainment"], ttft=(ttft["p50"], ttft["p90"]), tpot=(tpot["p50"], tpot["p90"]))


def write_profile(cluster: Cluster, kept: Path, rows: Sequence[PrefillRow | DecodeRow]) -> float:
    """Write the exported profile, following the rows; return how much the engines' own pace changed, as a ratio."""
    exported = parse_profile(output_of(BIN / "fulcrum", "capacity", "--export", cluster.name, env=cluster.env))
    start = profile_speed(exported)
    online = OnlineSpeed.start(start.coefficients, trust=TRUST[start.source], forgetting=1.0).updated(rows)
    (kept / "profile.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(exported, coefficients=online.coefficients))
    )
    quarters = [
        float(np.median([pace(rows[index], online.coefficients) for index in part]))
        for part in np.array_split(np.arange(len(rows)), QUARTERS)
    ]
    print("work took", *(f"{each:.2f}" for each in quarters), "times as long as played, by quarter of the trace")
    return max(quarters) / min(quarters)


def pace(row: PrefillRow | DecodeRow, speed: SpeedCoefficients) -> float:
    """How long a row's work took, in times of what is expected."""
    if isinstance(row, PrefillRow):
        return row.seconds / float(np.dot(row.features, (speed.prefill_a, speed.prefill_b, speed.prefill_c)))
    return row.seconds_per_step / float(np.dot(row.features, (speed.decode_a, speed.decode_b, speed.decode_c)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the trace, the spec, the profile and the clients' times")
    parser.add_argument(
        "--cpu", help="CPU limit of each worker; default: as in the demo, what the machine has for four"
    )
    arguments = parser.parse_args()
    kept: Path | None = arguments.keep
    cpu = arguments.cpu or cores_each(usable_cores())
    options = ("--timeout", f"{READY_SECONDS:.0f}")
    with tempfile.TemporaryDirectory(prefix="fulcrum-recorded-") as folder:
        home = Path(folder)
        kept = kept or home / "kept"
        kept.mkdir(parents=True, exist_ok=True)
        try:
            with local_cluster(home, manifest=manifest_of(home, cpu), name=NAME, options=options) as cluster:
                return measure(cluster, kept)
        except (CommandError, EndpointError, TimeoutError, LookupError) as error:
            print(f"recorded FAILED: {error}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
