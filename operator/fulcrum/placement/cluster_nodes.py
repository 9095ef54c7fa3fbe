"""The inventory of a Kubernetes cluster, from its Node objects (as `kubectl get nodes -o json` prints them)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fulcrum.api.amd import AMD_RESOURCE
from fulcrum.capacity.accelerators import UnknownAcceleratorError, accelerator
from fulcrum.placement.errors import InventoryError
from fulcrum.placement.inventory import DEFAULT_REGION, Inventory, Node

PRODUCT_LABELS: Final = ("fulcrum.dev/accelerator", "nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""Labels that name the GPU of a node, by precedence: ours, NVIDIA's GPU feature discovery, AMD's node labeller."""
COUNT_LABEL: Final = "nvidia.com/gpu.count"
GPU_RESOURCES: Final = ("nvidia.com/gpu", AMD_RESOURCE)
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
PRICE_LABEL: Final = "fulcrum.dev/price-per-gpu-hour"
_MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""Mebibytes of one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInventory:
    """The inventory, and why nodes were left out of it."""

    inventory: Inventory
    left_out: tuple[str, ...]
    """One line per node with GPUs that cannot be used."""


def inventory_from_nodes(
    nodes: Iterable[Mapping[str, Any]], *, prices: Mapping[str, float] | None = None, by_zone: bool = False
) -> ClusterInventory:
    """Return the GPUs of schedulable nodes. Nodes without GPUs are skipped.

    `prices` is per GPU and hour by accelerator, for nodes without the label. With `by_zone` each zone is a region of
    its own: prefill and decode workers are then not joined over zones.

    Raises:
        InventoryError: no node has a GPU that can be used; says why for each.
    """
    found: list[Node] = []
    left_out: list[str] = []
    for each in nodes:
        metadata = each.get("metadata") or {}
        name, labels = str(metadata.get("name", "")), metadata.get("labels") or {}
        gpus = _gpus(each, labels)
        if gpus == 0:
            continue
        if problem := _unusable(each):
            left_out.append(f"{name}: {problem}")
            continue
        product = next((str(labels[label]) for label in PRODUCT_LABELS if label in labels), None)
        if product is None:
            left_out.append(f"{name}: has {gpus} GPUs and no label {' or '.join(PRODUCT_LABELS)}")
            continue
        try:
            gpu = replace(accelerator(product), per_machine=gpus)
        except UnknownAcceleratorError as error:
            left_out.append(f"{name}: {error}")
            continue
        if str(labels.get(_MEMORY_LABEL, "")).isdigit():
            gpu = replace(gpu, memory_bytes=int(labels[_MEMORY_LABEL]) * 2**20)
        price = _price(labels, (prices or {}).get(gpu.name, 0.0), name)
        region = str(labels.get(ZONE_LABEL, DEFAULT_REGION)) if by_zone else DEFAULT_REGION
        found.append(Node(name=name, accelerator=gpu, gpus=gpus, price_per_gpu_hour=price, region=region))
    if not found:
        reasons = (
            "; ".join(left_out) or f"no node offers {' or '.join(GPU_RESOURCES)} (is the device plugin installed?)"
        )
        raise InventoryError("", f"no node has GPUs that can be used: {reasons}", "give an inventory file instead")
    return ClusterInventory(inventory=Inventory(nodes=tuple(found)), left_out=tuple(left_out))


def _gpus(node: Mapping[str, Any], labels: Mapping[str, Any]) -> int:
    """Return what the node offers to Pods; the label only where the device plugin has not reported yet."""
    status = node.get("status") or {}
    allocatable = status.get("allocatable") or {}
    offered = next((allocatable[resource] for resource in GPU_RESOURCES if resource in allocatable), None)
    text = str(labels.get(COUNT_LABEL, "0") if offered is None else offered)
    return int(text) if text.isdigit() else 0


def _unusable(node: Mapping[str, Any]) -> str | None:
    """Return why no Pod would be scheduled to a node."""
    if (node.get("spec") or {}).get("unschedulable"):
        return "is cordoned"
    conditions: Sequence[Mapping[str, Any]] = (node.get("status") or {}).get("conditions") or ()
    ready = next((each for each in conditions if each.get("type") == "Ready"), None)
    return "is not Ready" if ready is not None and ready.get("status") != "True" else None


def _price(labels: Mapping[str, Any], usual: float, name: str) -> float:
    if PRICE_LABEL not in labels:
        return usual
    try:
        price = float(labels[PRICE_LABEL])
    except ValueError:
        price = -1.0
    if not 0 <= price < 1e9:
        raise InventoryError(
            f"node {name}", f"label {PRICE_LABEL}: {labels[PRICE_LABEL]!r} is not a price", "write a number"
        )
    return price
