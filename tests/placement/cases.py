"""Inventories, an engine and estimates that the tests of this room share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fulcrum.capacity.known_models import known_model
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.inventory import Inventory, inventory_from
from fulcrum.placement.parallelism import Engine
from fulcrum.placement.search import Request

PRICES = {"H100-SXM-80GB": 3.69, "A100-SXM-80GB": 1.75, "L40-48GB": 1.14, "A6000-48GB": 0.79}
PROMPT_TOKENS = 800.0
ESTIMATES = FluidEstimates(
    Demand(rate=0.0, isl_tokens=PROMPT_TOKENS, osl_tokens=200.0, isl_cv2=0.5, osl_cv2=0.5),
    LatencyTargets(ttft_seconds=2.0, tpot_seconds=0.1, attainment=0.9),
)
ENGINE = Engine(model=known_model("facebook/opt-30b"))


def inventory(*entries: tuple[str, int, int], **more: Any) -> Inventory:
    """Return an inventory of (accelerator, GPUs per node, nodes)."""
    nodes = [
        {
            "name": f"{name[:4]}-{number}",
            "accelerator": name,
            "gpus": gpus,
            "count": count,
            "pricePerHour": PRICES[name],
        }
        for number, (name, gpus, count) in enumerate(entries)
    ]
    return inventory_from({"nodes": nodes, **more})


def request(what: Inventory, **more: Any) -> Request:
    """Return a request for most goodput."""
    settings: dict[str, Any] = {"engine": ENGINE, "performance": ESTIMATES, "prompt_tokens": PROMPT_TOKENS, **more}
    return Request(inventory=what, **settings)


def kubernetes_node(name: str, labels: dict[str, str], *, gpus: str | None = "8", **more: Any) -> dict[str, Any]:
    """Return a Node object."""
    status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": more.pop("ready", "True")}]}
    if gpus is not None:
        status["allocatable"] = {"nvidia.com/gpu": gpus}
    return {"metadata": {"name": name, "labels": labels}, "spec": more, "status": status}


def names(nodes: Sequence[Any]) -> list[str]:
    """Return the names of nodes."""
    return [node.name for node in nodes]
