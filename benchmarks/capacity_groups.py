"""How far the roofline is off for workers whose GPUs share experts: on one machine and on two.

    python benchmarks/capacity_groups.py [--reference ../shared/reference]

The 25 rows of silicon_h100.csv with attention data parallel above 1. The latency between machines is fitted to all
models but one, and judged on that one (TPOT of decode steps); what the other models do not say stays at its guess. The
same fit to all of them is what `roofline.GRAPHS` holds. Exits with 1 when the held-out median is above its target.

What the rows are:

- MiniMax-M2.5, 15: each is listed once more with attention data parallel 1, and its TPOT is the same within 1 % (the
  command says so): servers of 4 GPUs with tensor and expert parallel 4, and so they are counted.
- DeepSeek-V3, 8: data parallel prefills; tokens are made by tensor and expert parallel 16 on two machines.
- Qwen3-235B-A22B, 2: no number of requests is listed, only the largest batch, which is taken for it. One has data
  parallel decode (8).

The all-to-alls are held against the measurements in the README of DeepEP, and fitted to none of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scipy.optimize import minimize_scalar

from capacity import REFERENCE, Load, aggregated_tpot, concurrency, read, silicon_shape
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.engine import EngineShape
from fulcrum.capacity.experts import Exchange
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.roofline import GRAPHS, Efficiency, Roofline, shape_speed

TARGET: Final = 0.20
"""Largest median of the held-out relative error of TPOT over all rows."""
START: Final = 25e-6
"""Guess of the latency between machines (s), where its fit starts."""
TIE: Final = 0.003
"""Weight of the squared logarithm of what is fitted against its guess."""
MINIMAX_GPUS: Final = "4"
DEEPEP: Final = (
    # back end, GPUs, tokens of each, microseconds of dispatch and of combine
    ("deepep_low_latency", 16, 128, 118, 195),
    ("deepep_low_latency", 32, 128, 155, 273),
    ("deepep_low_latency", 64, 128, 173, 314),
)
"""README of github.com/deepseek-ai/DeepEP, pure RDMA: 7168 wide, 8 of 256 experts, FP8 there and BF16 back."""


@dataclass(frozen=True)
class Group:
    model: str
    shape: EngineShape
    load: Load
    """Concurrency is that of one rank."""
    decodes_only: bool
    tpot: float
    twin: float | None
    """TPOT of the row that is listed as the same server without data parallel."""


def ranks(row: dict[str, str]) -> int:
    names = ("attention_dp_size", "prefill_attention_dp_size", "decode_attention_dp_size")
    return max(int(row[name] or 1) for name in names)


def groups(path: Path) -> list[Group]:
    rows = read(path)
    plain = {same(row): float(row["silicon_tpot_ms"]) / 1e3 for row in rows if ranks(row) == 1}
    found = []
    for row in rows:
        if ranks(row) == 1:
            continue
        isl, osl, tpot = int(row["isl"]), int(row["osl"]), float(row["silicon_tpot_ms"]) / 1e3
        mixed = row["mode"] == "agg"
        if mixed:
            shape = replace(silicon_shape(row, MINIMAX_GPUS), experts=True)
            running = concurrency(row) or 0.0
        else:
            data = int(row["decode_attention_dp_size"])
            spread = data > 1 or int(row["decode_moe_ep_size"]) > 1
            shape = replace(silicon_shape(row, row["decode_tp_size"]), data=data, experts=spread)
            running = float(row["decode_batch_size"])
        twin = plain.get(same(row)) if mixed else None
        found.append(Group(row["model_path"], shape, Load(isl, osl, running), not mixed, tpot, twin))
    return found


def same(row: dict[str, str]) -> tuple[object, ...]:
    """What rows of one server and load have in common."""
    return row["model_path"], row["backend"], row["mode"], row["isl"], row["osl"], concurrency(row)


def predicted(group: Group, efficiency: Efficiency) -> float:
    load = group.load
    if group.decodes_only:
        batch = load.concurrency
        return Roofline(shape=group.shape, efficiency=efficiency).decode_step_seconds(batch, batch * load.context)
    return aggregated_tpot(shape_speed(group.shape, efficiency=efficiency), load)


def errors(of: list[Group], network_seconds: float) -> list[float]:
    """Logarithms of predicted over measured TPOT."""
    efficiency = dataclasses.replace(GRAPHS, network_seconds=network_seconds)
    return [math.log(predicted(each, efficiency) / each.tpot) for each in of]


def fitted(of: list[Group]) -> float:
    """The latency between machines with the least mean error, in seconds."""
    crossing = [each for each in of if each.shape.gpus > each.shape.accelerator.per_machine]
    if not crossing:
        return START

    def cost(log: float) -> float:
        off = [abs(each) for each in errors(crossing, START * math.exp(log))]
        return statistics.fmean(off) + TIE * log * log

    return float(START * math.exp(minimize_scalar(cost, bounds=(-1.5, 1.5), method="bounded").x))


def median(logs: list[float]) -> float:
    return statistics.median(abs(math.exp(each) - 1) for each in logs)


def print_exchanges() -> None:
    model = known_model("deepseek-ai/DeepSeek-V3")
    assert model.moe is not None
    print(f"{'all-to-alls, measured by DeepEP':34} {'GPUs':>4} {'measured':>9} {'model':>9}")
    for backend, gpus, tokens, there, back in DEEPEP:
        seconds = Exchange(accelerator=accelerator("H800"), gpus=gpus, backend=backend).seconds(
            model.moe,
            tokens=tokens,
            hidden=model.hidden,
            sent=Precision.FP8,
            bandwidth=GRAPHS.exchange_bandwidth,
            latency_seconds=GRAPHS.exchange_seconds + GRAPHS.exchange_network_seconds,
        )
        print(f"{backend:34} {gpus:4} {there + back:6} us {seconds * 1e6:6.0f} us")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    path = parser.parse_args().reference / "silicon_h100.csv"
    print_exchanges()
    if not path.is_file():
        print(f"skipped: {path} is not there")
        return 0
    every = groups(path)
    twins = [each.tpot / each.twin - 1 for each in every if each.twin is not None]
    print(
        f"\n{len(twins)} rows of MiniMax are listed with data parallel 1, too; median difference of TPOT "
        f"{statistics.median(abs(each) for each in twins):.1%}"
    )
    whole, held_out = fitted(every), list[float]()
    print(
        f"latency between machines fitted to all: {whole * 1e6:.0f} us, shipped {GRAPHS.network_seconds * 1e6:.0f} us"
    )
    print(f"{'median error of TPOT':28} {'rows':>4} {'shipped':>8} {'held out':>9} {'fitted to others':>17}")
    for model in sorted({each.model for each in every}):
        own = [each for each in every if each.model == model]
        seconds = fitted([each for each in every if each.model != model])
        logs = errors(own, seconds)
        held_out += logs
        shipped = median(errors(own, GRAPHS.network_seconds))
        print(f"{model:28} {len(own):4} {shipped:8.1%} {median(logs):9.1%} {seconds * 1e6:14.0f} us")
    shipped = median(errors(every, GRAPHS.network_seconds))
    print(f"{'all':28} {len(every):4} {shipped:8.1%} {median(held_out):9.1%}   target {TARGET:.0%}")
    return 0 if median(held_out) <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
