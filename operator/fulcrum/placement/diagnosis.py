"""Why there is no placement, and the smallest change that would give one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fulcrum.api.names import Role
from fulcrum.capacity.accelerators import CPU
from fulcrum.capacity.engine import EngineShapeError
from fulcrum.capacity.kv import kv_capacity_tokens
from fulcrum.placement.cells import Problem
from fulcrum.placement.errors import (
    DisconnectedError,
    DoesNotFitError,
    PlacementError,
    TargetTooHighError,
    TooSlowError,
)
from fulcrum.placement.inventory import Inventory, NodeKind
from fulcrum.placement.parallelism import Engine, shapes
from fulcrum.placement.performance import Performance

_MOST_GPUS: Final = 16
"""GPUs of the largest node that is considered."""


def explain_none(inventory: Inventory, engine: Engine, performance: Performance) -> PlacementError:
    """Return the error for an inventory on which no worker keeps the promise."""
    fitting = [(kind, shape) for kind in inventory.kinds() for shape in shapes(kind, engine)]
    if not fitting:
        return DoesNotFitError(
            f"{engine.model.name} does not fit on any node: its weights take "
            f"{engine.model.weight_bytes(engine.weights) / 1e9:.0f} GB. {_smallest(inventory, engine)}"
        )

    ttft_seconds, tpot_seconds = performance.floor([speed for _, (_, speed) in fitting])
    return TooSlowError(
        f"no worker keeps the promise, even without load. Alone on the fastest workers, the longest prompt of the "
        f"{performance.target:.0%} that are promised has a TTFT of {ttft_seconds * 1e3:.0f} ms and a TPOT of "
        f"{tpot_seconds * 1e3:.1f} ms: promise more than that, or use faster GPUs"
    )


def _smallest(inventory: Inventory, engine: Engine) -> str:
    """Say with how many GPUs in a node, or of which kind, one worker would fit."""
    needs = []
    for kind in inventory.kinds():
        if kind.accelerator is CPU:
            continue
        gpus = _least_gpus(kind, engine)
        if gpus is not None:
            needs.append(f"{gpus} x {kind.accelerator.name} in one node")
    if not needs:
        return f"No node of up to {_MOST_GPUS} of these GPUs holds it: use GPUs with more memory, or smaller weights."
    return f"The smallest inventory that would do is {' or '.join(dict.fromkeys(needs))} for each worker."


def _least_gpus(kind: NodeKind, engine: Engine) -> int | None:
    gpus = 1
    while gpus <= _MOST_GPUS:
        try:
            shape = engine.shape(replace(kind.accelerator, per_machine=gpus), gpus, 1)
            if kv_capacity_tokens(shape) >= max(engine.max_model_tokens, 1):
                return gpus
        except EngineShapeError:
            pass
        gpus *= 2
    return None


def explain_short(
    problem: Problem, most: float, wanted: float | None, engine: Engine, performance: Performance
) -> PlacementError:
    """Return the error for a rate that is out of reach, or for workers that no link joins."""
    if most > 0.0 and wanted is not None:
        return TargetTooHighError(
            f"the inventory carries at most {most:.2f} requests/s within the promise, and {wanted:.2f} are wanted; "
            f"add about {wanted / most - 1:.0%} more GPUs, or promise more time"
        )
    regions = {role: _regions(problem, role) for role in (Role.PREFILL, Role.DECODE)}
    if regions[Role.PREFILL] and regions[Role.DECODE] and not regions[Role.PREFILL] & regions[Role.DECODE]:
        return DisconnectedError(
            f"prefill workers fit only in region {', '.join(sorted(regions[Role.PREFILL]))} and decode workers only in "
            f"{', '.join(sorted(regions[Role.DECODE]))}, and no link joins them: add one under `links`"
        )
    if not regions[Role.PREFILL] or not regions[Role.DECODE]:
        return explain_none(problem.inventory, engine, performance)
    return DisconnectedError(
        "no region holds a prefill and a decode worker, and no link joins the regions: add GPUs to one, or a link"
    )


def _regions(problem: Problem, role: Role) -> set[str]:
    """Return the regions in which a worker can take a role."""
    return {problem.cells[assignment.cell].kind.region for assignment in problem.assignments if assignment.role is role}
