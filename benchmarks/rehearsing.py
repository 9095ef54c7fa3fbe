"""How long the operator's process takes for a rehearsal, from the rings of the gateways to the answer.

Two clusters of workers like one H100 with an 8B model, a tenth of which prefill: ten workers at 5 requests/s, and a
thousand at 500 behind ten gateways, of which a scale model is played. Prompts are so long that prefill is too little.
Rings have the last ten minutes. Exits with 0 only when both targets hold.

    python benchmarks/rehearsing.py
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from fulcrum.admission import Admission
from fulcrum.api.names import Role
from fulcrum.api.record import Outcome, RingPage, pack_rows
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import DecodePoint, SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.rehearsed import Wanted
from fulcrum.load.demand import promised
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.case import Case, played
from fulcrum.rehearsal.memory import Memory
from fulcrum.rehearsal.rings import ReadRing
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import phased
from fulcrum.simulation.policies import Fixed
from fulcrum.simulation.traffic import Phase

TARGETS = {10: 3.0, 1000: 5.0}
"""Seconds of one core, by workers."""
MINUTES = 10
RATE = 5.0
"""Requests/s of ten workers."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.010,
        prefill_b=25e-6,
        prefill_c=1e-10,
        decode_a=0.008,
        decode_b=60e-6,
        decode_c=50e-9,
        # As workers have it that have measured themselves; here it is the line.
        decode_curve=tuple(
            DecodePoint(batch=batch, seconds=0.008 + 60e-6 * batch, seconds_per_token=50e-9)
            for batch in (1.0, 8.0, 32.0, 128.0, 256.0)
        ),
    ),
    kv_capacity_tokens=500_000,
)
PROMPT_TOKENS, OUTPUT_TOKENS = 9_000, 150


def spec_of(workers: int) -> InferenceClusterSpec:
    """Return the cluster; it turns nothing away."""
    document: dict[str, Any] = {
        "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
        "slo": {"ttft": "2s", "tpot": "30ms"},
        "pools": [{"name": "p", "accelerator": "H100-SXM-80GB", "workers": {"min": workers, "max": workers}}],
        "admission": {"policy": "Off"},
        "balance": {"rehearse": "On"},
    }
    return msgspec.convert(document, InferenceClusterSpec)


def rows_of_ten() -> list[tuple[float | int | tuple[int, ...], ...]]:
    """Return what a ring has of ten workers under 1P:9D at the end of the ten minutes."""
    end = MINUTES * 60.0
    phase = Phase(
        seconds=end, requests_per_second=RATE, prompt_tokens_mean=PROMPT_TOKENS, output_tokens_mean=OUTPUT_TOKENS
    )
    load = phased((phase,), seed=1)
    cluster = ClusterModel(pools=(PoolModel(name="p", speed=SPEED),))
    workers = [("p", Role.PREFILL), *[("p", Role.DECODE)] * 9]
    result = simulate(load, cluster, Fixed(workers), slo=promised(spec_of(10)))
    rows: list[tuple[float | int | tuple[int, ...], ...]] = []
    for place, arrival in enumerate(load.arrival_seconds.tolist()):
        over = bool(result.end_seconds[place] <= end)
        begun = bool(arrival + result.ttft_seconds[place] <= end)
        rows.append(
            (
                arrival, float(min(result.end_seconds[place], end)) - arrival,
                float(result.ttft_seconds[place]) if begun else -1.0, -1.0,
                int(load.prompt_tokens[place]), 4 * int(load.prompt_tokens[place]),
                int(load.output_tokens[place]) if over else int(begun),
                place + 1, place, 0, Outcome.SERVED if over else Outcome.PENDING, (),
            )
        )  # fmt: skip
    return rows


def case_of(workers: int, rows: list[tuple[float | int | tuple[int, ...], ...]]) -> Case:
    """Return the case of so many workers: each request of ten workers comes so much oftener, within a second."""
    spec, times, end = spec_of(workers), workers // 10, MINUTES * 60.0
    random = np.random.default_rng(2)
    gateways = max(1, workers // 100)
    own: list[list[Any]] = [[] for _ in range(gateways)]
    for row in rows:
        for shift in random.random(times).tolist():
            ring = own[random.integers(gateways)] if gateways > 1 else own[0]
            arrival, identity = max(float(row[0]) - shift * (times > 1), 0.0), int(random.integers(2**63))  # type: ignore[arg-type]
            ring.append((arrival, *row[1:7], identity, len(ring), *row[9:]))
    slo = promised(spec)
    admission = Admission(
        AdmissionPolicy.OFF, (), ttft_seconds=slo.ttft_seconds, tpot_seconds=slo.tpot_seconds,
        attainment=slo.attainment, gateways=gateways,
    )  # fmt: skip
    standing = Layout.of(prefill={"p": times}, decode={"p": 9 * times})
    rings = [
        ReadRing(
            gateway=str(number),
            page=RingPage(
                age_of_start_seconds=end, covers_from_seconds=end, classes=("default",), batch=(False,),
                key_ends=(512,), admission=admission.learnt.state(end), packed_rows=(pack_rows(ring),),
            ),
        )
        for number, ring in enumerate(own)
    ]  # fmt: skip
    return Case(
        uid="u", spec=spec, time=NOW, rings=rings, memory=Memory(), speeds={"p": SPEED}, start_seconds=60.0, pairs=(),
        model=None,
        wanted=Wanted(key="k", standing=standing, flexible=frozenset({"p"}), mixes=True, stands_since=None),
    )  # fmt: skip


def main() -> int:
    """Run the benchmark; 0 when every target holds."""
    rows = rows_of_ten()
    table = Table("workers", "requests in rings", "plays", "requests played", "from", "to", "seconds", "at most")
    held = True
    for workers, most_seconds in TARGETS.items():
        case = case_of(workers, rows)
        began = time.process_time()
        found = played(case)
        seconds = time.process_time() - began
        answer = found.rehearsed
        held &= answer is not None and seconds <= most_seconds
        shares = ("-", found.problem) if answer is None else [f"{each.inside:.0%}" for each in answer.compared]
        table.add_row(
            str(workers), str(len(rows) * workers // 10), str(found.plays), str(found.played_requests), shares[0],
            shares[-1], f"{seconds:.2f}", f"{most_seconds:g}",
        )  # fmt: skip
    Console().print(table)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
