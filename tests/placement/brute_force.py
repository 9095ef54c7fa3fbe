"""Every placement of a small inventory, judged by goodput: what the search is held against, here and in benchmarks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.cells import Cell, packs
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.inventory import Inventory, inventory_from
from fulcrum.placement.parallelism import Engine, shapes
from fulcrum.placement.performance import goodput
from fulcrum.placement.search import Request

Pools = tuple[tuple[WorkerSpeed, int, int], ...]
"""(speed, workers that prefill, workers that decode)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model, GPUs and a promise."""

    name: str
    request: Request


def best_goodput(request: Request) -> tuple[float, int]:
    """Return the most requests/s of any placement, prefill and decode apart or all mixed, and how many there are.

    Links are taken as wide enough: that never understates the best.
    """
    best, count = 0.0, 0
    cells = _cells(request.inventory)
    splits = list(product(*(list(_splits(list(_fillings(request, cell)))) for cell in cells)))
    for split in splits:
        prefill, decode = ([(pool[0], pool[side]) for part in split for pool in part if pool[side]] for side in (1, 2))
        if not prefill or not decode:
            continue
        count += 1
        best = max(best, goodput(request.performance, prefill=prefill, decode=decode))
    for filling in product(*(list(_fillings(request, cell, mixed=True)) for cell in cells)):
        mixed = [pool for part in filling for pool in part]
        if mixed:
            count += 1
            best = max(best, goodput(request.performance, mixed=mixed))
    return best, count


def _cells(inventory: Inventory) -> list[Cell]:
    return [Cell(kind, tuple(nodes)) for kind, nodes in inventory.kinds().items()]


def _fillings(request: Request, cell: Cell, *, mixed: bool = False) -> Iterator[list[tuple[WorkerSpeed, int]]]:
    """Yield every set of workers of a cell beside which no other worker fits; pipelines only of mixed ones."""
    found = [(form.gpus, speed) for form, speed in shapes(cell.kind, request.engine) if mixed or form.pipeline == 1]
    for counts in product(*(range(len(cell.nodes) * (cell.kind.gpus // size) + 1) for size, _ in found)):
        if _packs(found, counts, cell) and not any(
            _packs(found, [*counts[:more], counts[more] + 1, *counts[more + 1 :]], cell) for more in range(len(found))
        ):
            yield [(speed, count) for (_, speed), count in zip(found, counts, strict=True) if count]


def _packs(forms: Sequence[tuple[int, WorkerSpeed]], counts: Sequence[int], cell: Cell) -> bool:
    sizes: dict[int, int] = {}
    for (size, _), count in zip(forms, counts, strict=True):
        if count:
            sizes[size] = sizes.get(size, 0) + count
    return packs(sizes, cell)


def _splits(fillings: Sequence[Sequence[tuple[WorkerSpeed, int]]]) -> Iterator[Pools]:
    for filling in fillings:
        for prefilling in product(*(range(count + 1) for _, count in filling)):
            yield tuple((speed, each, count - each) for (speed, count), each in zip(filling, prefilling, strict=True))


def _setting(
    model: str, gpus: Sequence[tuple[str, int, int]], lengths: tuple[int, int], spread: float, slo: tuple[float, float]
) -> Setting:
    nodes = [
        {"name": f"n{number}", "accelerator": kind, "gpus": size, "count": count}
        for number, (kind, size, count) in enumerate(gpus)
    ]
    demand = Demand(
        rate=0.0, isl_tokens=float(lengths[0]), osl_tokens=float(lengths[1]), isl_cv2=spread**2, osl_cv2=spread**2
    )
    promise = LatencyTargets(ttft_seconds=slo[0], tpot_seconds=slo[1], attainment=0.95)
    what = " + ".join(f"{count * size} {kind.split('-')[0]}" for kind, size, count in gpus)
    promised = f"{slo[0]:g} s / {slo[1] * 1e3:g} ms"
    return Setting(
        name=f"{model.rpartition('/')[2]} on {what}, {lengths[0]}:{lengths[1]}:{spread:g}, {promised}",
        request=Request(
            inventory=inventory_from({"nodes": nodes}),
            engine=Engine(model=known_model(model)),
            performance=FluidEstimates(demand, promise, turns_away=True),
            prompt_tokens=demand.isl_tokens,
        ),
    )


_MODELS: Final = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-14B", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B")
_GPUS: Final = (
    (("H100-SXM-80GB", 4, 1),),
    (("A100-SXM-80GB", 8, 1),),
    (("H100-SXM-80GB", 2, 1), ("A100-SXM-80GB", 4, 1)),
    (("H200-SXM-141GB", 4, 1), ("L40S-48GB", 4, 1)),
    (("L40S-48GB", 4, 2),),
    (("H100-SXM-80GB", 3, 1), ("L40S-48GB", 2, 1)),
)
_LENGTHS: Final = ((500, 100), (1000, 1000), (4000, 200), (8000, 400), (300, 800))


def settings() -> list[Setting]:
    """Return twenty settings: two on which the search was once far off, with and without a spread, and drawn ones."""
    named = [
        ("meta-llama/Llama-3.1-70B-Instruct", (("H200-SXM-141GB", 8, 2),), (4000, 500), (1.0, 0.020)),
        ("Qwen/Qwen3-32B", (("H100-SXM-80GB", 8, 1),), (5000, 250), (2.0, 0.050)),
    ]
    found = [
        _setting(model, gpus, lengths, spread, slo) for model, gpus, lengths, slo in named for spread in (1.0, 0.0)
    ]
    draw = random.Random(37)
    while len(found) < 20:
        lengths = draw.choice(_LENGTHS)
        slo = (draw.choice((0.5, 1.0, 2.0, 5.0)), draw.choice((0.02, 0.035, 0.05, 0.1)))
        found.append(
            _setting(draw.choice(_MODELS), draw.choice(_GPUS), lengths, draw.choice((0.0, 0.0, 0.5, 1.0)), slo)
        )
    return found
