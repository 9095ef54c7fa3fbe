"""What there is to place on: nodes with GPUs of one kind each, their prices, and the links between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.quantities import number_of_bytes
from fulcrum.capacity.accelerators import Accelerator, UnknownAcceleratorError, accelerator
from fulcrum.placement.errors import InventoryError

_BYTES_PER_GIGABIT: Final = 1e9 / 8
MOST_NODES: Final = 4096
"""Bound on the nodes of one inventory: a typing error in `count` must not fill the memory."""
DEFAULT_REGION: Final = "default"
_LINK_EFFICIENCY: Final = 0.7
"""Share of a link's rate that large KV transfers reach, as in `capacity.kv`."""
_NODE_FIELDS: Final = frozenset(
    {"name", "count", "accelerator", "gpus", "memory", "pricePerHour", "region", "local", "network"}
)
_LINK_FIELDS: Final = frozenset({"between", "gigabitsPerSecond", "latencyMicroseconds"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine. Its GPUs are alike; a machine with two kinds is written as two nodes."""

    name: str
    accelerator: Accelerator
    """Memory and links as they are in this node, where these differ from the data sheet."""
    gpus: int
    price_per_gpu_hour: float = 0.0
    """Any currency, the same for all nodes; 0: money does not count."""
    region: str = DEFAULT_REGION
    """Nodes of a region reach each other over their own network cards; regions need a link."""

    @property
    def kind(self) -> NodeKind:
        """Return what makes nodes interchangeable."""
        return NodeKind(self.accelerator, self.gpus, self.price_per_gpu_hour, self.region)

    @property
    def network_bytes_per_second(self) -> float:
        """Return the rate of the node's network cards together, one direction."""
        return self.accelerator.network_bytes_per_second * self.gpus


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of the same kind can stand for each other."""

    accelerator: Accelerator
    gpus: int
    price_per_gpu_hour: float
    region: str

    @property
    def order(self) -> tuple[str, str, int, float, float, float]:
        """Return a sort key that does not depend on the order or the names of the nodes."""
        gpu = self.accelerator
        return (
            gpu.name, self.region, self.gpus, self.price_per_gpu_hour, gpu.memory_bytes, gpu.network_bytes_per_second,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLink:
    """What joins two regions, each direction on its own."""

    between: tuple[str, str]
    bytes_per_second: float
    latency_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All nodes, and the links between their regions."""

    nodes: tuple[Node, ...]
    links: tuple[RegionLink, ...] = ()

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return sum(node.gpus for node in self.nodes)

    @property
    def price_per_hour(self) -> float:
        """Return what all GPUs cost together."""
        return sum(node.gpus * node.price_per_gpu_hour for node in self.nodes)

    def kinds(self) -> dict[NodeKind, tuple[Node, ...]]:
        """Return the nodes by kind, in an order that does not depend on the order in which they were given."""
        found: dict[NodeKind, list[Node]] = {}
        for node in sorted(self.nodes, key=lambda node: (node.kind.order, node.name)):
            found.setdefault(node.kind, []).append(node)
        return {kind: tuple(nodes) for kind, nodes in found.items()}

    def joined(self, one: str, other: str) -> RegionLink | None:
        """Return the link between two regions, if there is one."""
        return next((link for link in self.links if set(link.between) == {one, other}), None)


def requests_per_second(bytes_per_second: float, kv_bytes_per_request: float) -> float:
    """Return for how many requests/s a link moves the KV; infinite where there is nothing to move."""
    return bytes_per_second * _LINK_EFFICIENCY / kv_bytes_per_request if kv_bytes_per_request > 0 else inf


def inventory_from(document: Any) -> Inventory:
    """Return the inventory that a parsed YAML document describes (`docs/concepts/placement.md` shows one).

    Raises:
        InventoryError: with the path of the field that is wrong, and what to write instead.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("nodes"), Sequence) or not document["nodes"]:
        raise InventoryError("nodes", "an inventory needs a list of nodes", "write `nodes:` with at least one entry")
    _no_other_fields(document, frozenset({"nodes", "links"}), "")
    nodes: list[Node] = []
    for index, each in enumerate(document["nodes"]):
        nodes.extend(_nodes(each, f"nodes[{index}]"))
        if len(nodes) > MOST_NODES:
            raise InventoryError(f"nodes[{index}].count", f"there are more than {MOST_NODES} nodes", "use fewer")
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise InventoryError("nodes", f"two nodes are named {name}", "give each entry a name of its own")
    regions = {node.region for node in nodes}
    links = [_link(each, f"links[{index}]", regions) for index, each in enumerate(document.get("links") or ())]
    return Inventory(nodes=tuple(nodes), links=tuple(links))


def _nodes(entry: Any, field: str) -> list[Node]:
    """Return the nodes of one entry: `count` alike ones."""
    if not isinstance(entry, Mapping):
        raise InventoryError(field, "a node is a mapping", "write `accelerator:` and `gpus:`")
    _no_other_fields(entry, _NODE_FIELDS, field)
    try:
        known = accelerator(str(entry.get("accelerator", "")))
    except UnknownAcceleratorError as error:
        raise InventoryError(f"{field}.accelerator", str(error), "use one of these names") from None
    gpus = _whole(entry.get("gpus"), f"{field}.gpus", most=16)
    count = _whole(entry.get("count", 1), f"{field}.count", most=MOST_NODES)
    price = _number(entry.get("pricePerHour", 0.0), f"{field}.pricePerHour")
    name = str(entry.get("name") or f"{known.name.lower()}-{field.strip('nodes[]')}")
    node = Node(
        name=name,
        accelerator=_as_described(known, entry, gpus, field),
        gpus=gpus,
        price_per_gpu_hour=price,
        region=str(entry.get("region", DEFAULT_REGION)),
    )
    return [node] if count == 1 else [replace(node, name=f"{name}-{number}") for number in range(count)]


def _as_described(known: Accelerator, entry: Mapping[str, Any], gpus: int, field: str) -> Accelerator:
    """Return the data sheet with what the entry says of memory and links in its place."""
    changed = replace(known, per_machine=gpus)
    if "memory" in entry:
        try:
            changed = replace(changed, memory_bytes=number_of_bytes(str(entry["memory"])))
        except InvalidValueError as error:
            raise InventoryError(f"{field}.memory", str(error), "give the memory of one GPU, such as 80Gi") from None
    if "local" in entry:
        local = str(entry["local"])
        if local not in ("nvlink", "pcie"):
            raise InventoryError(f"{field}.local", f"{local!r} is no link inside a node", "write nvlink or pcie")
        if local == "nvlink" and known.nvlink_bytes_per_second is None:
            raise InventoryError(f"{field}.local", f"{known.name} has no NVLink", "write pcie, or leave it out")
        if local == "pcie":
            changed = replace(changed, nvlink_bytes_per_second=None, joined_directly=2)
    if "network" in entry:
        gigabits = _number(entry["network"], f"{field}.network")
        if gigabits <= 0:
            raise InventoryError(f"{field}.network", "must be above 0", "give Gbit/s of all network cards of the node")
        changed = replace(changed, network_bytes_per_second=gigabits * _BYTES_PER_GIGABIT / gpus)
    return changed


def _link(entry: Any, field: str, regions: set[str]) -> RegionLink:
    if not isinstance(entry, Mapping):
        raise InventoryError(field, "a link is a mapping", "write `between: [one, other]` and `gigabitsPerSecond:`")
    _no_other_fields(entry, _LINK_FIELDS, field)
    between = entry.get("between")
    if not isinstance(between, Sequence) or len(between) != 2 or between[0] == between[1]:
        raise InventoryError(f"{field}.between", "a link joins two regions", "write `between: [one, other]`")
    for region in between:
        if region not in regions:
            raise InventoryError(
                f"{field}.between", f"no node is in region {region!r}", f"use one of {', '.join(sorted(regions))}"
            )
    gigabits = _number(entry.get("gigabitsPerSecond"), f"{field}.gigabitsPerSecond")
    if gigabits <= 0:
        raise InventoryError(f"{field}.gigabitsPerSecond", "must be above 0", "leave the link out where there is none")
    latency = _number(entry.get("latencyMicroseconds", 0.0), f"{field}.latencyMicroseconds")
    return RegionLink(
        between=(str(between[0]), str(between[1])),
        bytes_per_second=gigabits * _BYTES_PER_GIGABIT,
        latency_seconds=latency * 1e-6,
    )


def _no_other_fields(entry: Mapping[str, Any], known: frozenset[str], field: str) -> None:
    for name in entry:
        if name not in known:
            where = f"{field}.{name}" if field else str(name)
            raise InventoryError(where, "is not a field", f"there are {', '.join(sorted(known))}")


def _whole(given: Any, field: str, *, most: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise InventoryError(field, f"{given!r} is not a whole number from 1 to {most}", "write one")
    return given


def _number(given: Any, field: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1e9:
        raise InventoryError(field, f"{given!r} is not a number of at least 0", "write one")
    return float(given)
