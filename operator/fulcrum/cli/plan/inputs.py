"""What `fulcrum plan` is given: inventory, model, workload and promise, read and checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fulcrum.api.durations import seconds
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.cluster_nodes import inventory_from_nodes
from fulcrum.placement.inventory import Inventory, inventory_from

if TYPE_CHECKING:
    from fulcrum.simulation.workload import Workload


_LENGTHS: Final = re.compile(r"(\d+):(\d+)(?::(\d+(?:\.\d+)?))?")
"""Prompt and output tokens, and their spread: the standard deviation of either as a share of its mean."""


def inventory_of(inventory: Path | None, nodes: Path | None) -> Inventory:
    """Return the inventory of a YAML file, or of what `kubectl get nodes -o json` printed."""
    if (inventory is None) == (nodes is None):
        raise click.UsageError("give --inventory FILE, or --nodes FILE with what `kubectl get nodes -o json` prints")
    if inventory is not None:
        return inventory_from(_yaml(inventory))
    assert nodes is not None
    document = _yaml(nodes)
    if not isinstance(document, dict) or not isinstance(document.get("items"), list):
        raise click.UsageError(f"--nodes {nodes}: this is no list of nodes; use `kubectl get nodes -o json`")
    found = inventory_from_nodes(document["items"])
    for line in found.left_out:
        click.echo(f"left out: {line}", err=True)
    return found.inventory


def workload_of(workload: str) -> tuple[Demand, Workload | None]:
    """Return the lengths of `PROMPT:OUTPUT[:SPREAD]`, of a trace file, or of a named workload; the rate is open.

    The requests come with them where there are any.
    """
    from fulcrum.simulation.generate import WORKLOADS
    from fulcrum.simulation.traffic import load_trace
    from fulcrum.simulation.workload import Workload

    if (given := _LENGTHS.fullmatch(workload)) and int(given[1]) and int(given[2]):
        cv2 = float(given[3] or 0.0) ** 2
        isl, osl = float(given[1]), float(given[2])
        return Demand(rate=0.0, isl_tokens=isl, osl_tokens=osl, isl_cv2=cv2, osl_cv2=cv2), None
    if workload in WORKLOADS:
        load = WORKLOADS[workload](0)
    elif Path(workload).is_file():
        load = Workload.of(load_trace(Path(workload)))
    else:
        names = ", ".join(WORKLOADS)
        raise click.UsageError(
            f"--workload {workload}: write tokens as PROMPT:OUTPUT (1150:210; 1150:210:0.8 with a spread), a trace "
            f"file, or one of {names}"
        )
    return _lengths(load), load


def _lengths(load: Workload) -> Demand:
    prompts, outputs = load.prompt_tokens.astype(float), load.output_tokens.astype(float)
    return Demand(
        rate=0.0,
        isl_tokens=float(prompts.mean()),
        osl_tokens=float(outputs.mean()),
        isl_cv2=float(prompts.var() / prompts.mean() ** 2),
        osl_cv2=float(outputs.var() / outputs.mean() ** 2),
    )


def promise_of(text: str) -> tuple[LatencyTargets, str, str]:
    """Return the promise `TTFT,TPOT[,ATTAINMENT]`, and its durations as they were written."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (2, 3):
        raise click.UsageError(f"--slo {text}: write TTFT,TPOT,ATTAINMENT, such as 500ms,50ms,0.95")
    try:
        attainment = float(parts[2]) if len(parts) == 3 else 0.95
        slo = LatencyTargets(ttft_seconds=seconds(parts[0]), tpot_seconds=seconds(parts[1]), attainment=attainment)
    except ValueError as error:
        raise click.UsageError(f"--slo {text}: {error}") from None
    if not 0 < attainment < 1 or slo.ttft_seconds <= 0 or slo.tpot_seconds <= 0:
        raise click.UsageError(f"--slo {text}: durations must be above 0, and the share above 0 and below 1")
    return slo, parts[0], parts[1]


def _yaml(path: Path) -> Any:
    """Return a parsed document; JSON is YAML, too. `-` is standard input."""
    import sys

    import yaml

    try:
        return yaml.safe_load(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise click.UsageError(f"{path} is not YAML: {error}") from None
