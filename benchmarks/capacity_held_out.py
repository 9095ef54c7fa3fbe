"""How well the roofline's constants carry over to models that they were not fitted to.

    python benchmarks/capacity_held_out.py [--reference ../shared/reference]

Measured servers with vLLM, and with TensorRT-LLM where vLLM has none of a family (silicon_h100.csv): the constants of
decode steps in `Efficiency` are fitted to all families of models but one, and judged on that one (TPOT). The same fit
to all of them is what `roofline.GRAPHS` holds. Other servers are in no fit, and shown beside it. Exits with 1 when a
held-out median is above its target.

Left out: rows that are listed twice, and servers whose requests waited for a place longer than they ran. Their TPOT is
that of the batch which the server allowed, and the file does not say which.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from scipy.optimize import minimize

from capacity import REFERENCE, Load, aggregated_tpot, concurrency, read, silicon_shape
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.kv import kv_capacity_tokens
from fulcrum.capacity.roofline import GRAPHS, Efficiency, Roofline, shape_speed
from fulcrum.capacity.speed import Speed

FAMILIES: Final = {
    "meta-llama/Llama-3.1-8B-Instruct": "Llama",
    "meta-llama/Llama-3.1-70B": "Llama",
    "Qwen/Qwen3-32B": "Qwen3",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen3 MoE",
    "openai/gpt-oss-120b": "gpt-oss",
    "MiniMaxAI/MiniMax-M2.5": "MiniMax",
}
TARGETS: Final = {False: 0.08, True: 0.12}
"""Largest median of the held-out relative error of TPOT, by whether the model is a mixture of experts."""
START: Final = {
    "weight_bandwidth": 0.85,
    "layer_seconds": 30e-6,
    "routing_seconds": 3e-6,
    "expert_seconds": 0.05e-6,
    "all_reduce_seconds": 8e-6,
    "request_seconds": 15e-6,
    "step_seconds": 1e-3,
}
"""What is fitted, and where each fit starts: guesses, not what was found."""
OUTLIER: Final = 0.4
"""Logarithm of an error beyond which a row pulls no more: it measured something else."""
TIE: Final = 0.003
"""Weight of the squared logarithms of what is fitted against its start: what the rows do not say stays there."""


@dataclass(frozen=True)
class Server:
    family: str
    backend: str
    shape: EngineShape
    load: Load
    tpot: float


def servers(path: Path) -> list[Server]:
    """Servers that prefill and decode."""
    found, seen = [], set()
    for row in read(path):
        slots = concurrency(row)
        what = tuple(value for name, value in row.items() if name not in {"id", "silicon_data_source", "model_path"})
        if row["mode"] != "agg" or slots is None or what in seen or row["model_path"] not in FAMILIES:
            continue
        seen.add(what)
        tpot, osl = float(row["silicon_tpot_ms"]) / 1e3, int(row["osl"])
        if float(row["silicon_ttft_ms"]) / 1e3 > tpot * osl:
            continue
        try:
            shape = silicon_shape(row, row["tp_size"])
            shape_speed(shape)
        except EngineShapeError:
            continue
        load = Load(int(row["isl"]), osl, slots)
        found.append(Server(FAMILIES[row["model_path"]], row["backend"], shape, load, tpot))
    return found


@dataclass(frozen=True)
class Exact:
    """A worker that answers by the roofline itself: fitting its constants needs no curve of each trial."""

    roofline: Roofline
    kv_capacity_tokens: int

    @property
    def max_batch(self) -> int:
        return self.roofline.shape.max_batch

    @property
    def max_batched_tokens(self) -> int:
        return self.roofline.shape.max_batched_tokens

    def prefill_seconds(self, tokens: float, squared_tokens: float) -> float:
        """Of prompts that are all alike."""
        length = squared_tokens / tokens
        return self.roofline.prefill_seconds([round(length)] * round(tokens / length))

    def decode_step_seconds(self, batch: float, context_tokens: float) -> float:
        return self.roofline.decode_step_seconds(batch, context_tokens)

    def transfer_seconds(self, tokens: float) -> float:
        return 0.0


@cache
def capacity(shape: EngineShape) -> int:
    return kv_capacity_tokens(shape)


def errors(efficiency: Efficiency, of: Sequence[Server], *, exact: bool = False) -> list[float]:
    """Logarithms of predicted over measured TPOT, by the curve that all of Fulcrum computes with, or without it."""

    def worker(shape: EngineShape) -> Speed:
        if not exact:
            return shape_speed(shape, efficiency=efficiency)
        return Exact(Roofline(shape=shape, efficiency=efficiency), capacity(shape))

    speeds = {shape: worker(shape) for shape in {each.shape for each in of}}
    return [math.log(aggregated_tpot(speeds[each.shape], each.load) / each.tpot) for each in of]


def fitted(of: Sequence[Server], evaluations: int) -> Efficiency:
    """The constants with the least mean error; every shape of a family counts alike, however many rows it has."""
    rows = Counter((each.family, each.shape) for each in of)
    weights = [1 / math.sqrt(rows[each.family, each.shape]) for each in of]
    names = tuple(START)

    def efficiency(logs: Sequence[float]) -> Efficiency:
        values = {name: START[name] * math.exp(log) for name, log in zip(names, logs, strict=True)}
        values["weight_bandwidth"] = min(values["weight_bandwidth"], 1.0)
        return dataclasses.replace(GRAPHS, **values)

    def cost(logs: Sequence[float]) -> float:
        off = (min(abs(each), OUTLIER) for each in errors(efficiency(logs), of, exact=True))
        mean = sum(weight * each for weight, each in zip(weights, off, strict=True)) / sum(weights)
        return mean + TIE * sum(log * log for log in logs)

    corners = [[0.0] * len(names)] + [
        [0.4 * (row == column) for row in range(len(names))] for column in range(len(names))
    ]
    found = minimize(
        cost, corners[0], method="Nelder-Mead", options={"maxfev": evaluations, "initial_simplex": corners}
    )
    return efficiency(found.x)


def median(logs: Sequence[float]) -> float:
    return statistics.median(abs(math.exp(each) - 1) for each in logs)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument("--evaluations", type=int, default=220, help="Of each fit.")
    arguments = parser.parse_args()
    path = arguments.reference / "silicon_h100.csv"
    if not path.is_file():
        print(f"skipped: {path} is not there")
        return 0
    every = servers(path)
    own_engine = {each.family for each in every if each.backend == "vllm"}
    fitting = [each for each in every if each.backend == "vllm" or each.family not in own_engine]
    whole = fitted(fitting, arguments.evaluations)
    print("fitted to all: " + ", ".join(f"{name} {getattr(whole, name):.3g}" for name in START))
    print(f"{'median error of TPOT':24} {'rows':>5} {'shipped':>8} {'fitted':>8} {'held out':>9} {'target':>7}")
    missed, held_out_of = [], {False: list[float](), True: list[float]()}
    for family in sorted({each.family for each in fitting}):
        own = [each for each in fitting if each.family == family]
        without = fitted([each for each in fitting if each.family != family], arguments.evaluations)
        held_out = errors(without, own)
        held_out_of[own[0].shape.model.moe is not None] += held_out
        print(
            f"{family:24} {len(own):5} {median(errors(GRAPHS, own)):8.1%} {median(errors(whole, own)):8.1%} "
            f"{median(held_out):9.1%}",
            flush=True,
        )
    for sparse, logs in held_out_of.items():
        kind = "mixtures of experts" if sparse else "dense"
        print(f"{kind:24} {len(logs):5} {'':8} {'':8} {median(logs):9.1%} {TARGETS[sparse]:7.0%}")
        if median(logs) > TARGETS[sparse]:
            missed.append(kind)
    others = [each for each in every if each not in fitting]
    for backend, family in sorted({(each.backend, each.family) for each in others}):
        own = [each for each in others if (each.backend, each.family) == (backend, family)]
        print(f"{f'{family}, {backend} (no fit)':24} {len(own):5} {median(errors(GRAPHS, own)):8.1%}")
    print(f"held out: {'missed ' + ', '.join(missed) if missed else 'all targets met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
