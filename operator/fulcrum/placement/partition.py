"""Domains of nodes that reach each other quickly: spectral bisection by memory, refined by Kernighan and Lin.

HexGen-2 (ICLR 2025, section 3.2) partitions the graph of GPUs. GPUs of a node are joined alike, so that a cut through a
node is never better than one around it: here the vertices are nodes, weighted by their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.placement.inventory import Inventory, Node

WEAK: Final = 0.25
"""Bisect where the mean rate between the halves is below this share of the mean rate inside them: KV would cross it at
a quarter of the speed, so that prefill and decode workers belong on the same side."""
MOST_VERTICES: Final = 512
"""Above this many nodes an eigenvector takes seconds; regions are then the domains."""
_UNEVEN: Final = 0.2
"""A swap of Kernighan and Lin may move this share of the memory away from the split that it refines."""

Floats = NDArray[np.float64]
Domain = tuple[Node, ...]


def domains(inventory: Inventory, holds_both: Callable[[Domain], bool]) -> tuple[Domain, ...]:
    """Return the nodes by domain.

    A half that does not hold a prefill and a decode worker (`holds_both`) is not cut off.
    """
    nodes = [node for alike in inventory.kinds().values() for node in alike]
    if len(nodes) > MOST_VERTICES:
        by_region = {region: tuple(n for n in nodes if n.region == region) for region in {n.region for n in nodes}}
        parts = [by_region[region] for region in sorted(by_region)]
        return tuple(parts) if all(holds_both(part) for part in parts) else (tuple(nodes),)
    return tuple(_bisected(nodes, inventory, holds_both))


def rates_between(nodes: Sequence[Node], inventory: Inventory) -> Floats:
    """Return bytes/s between each two nodes: the slower network card, or their share of the link of their regions."""
    cards = np.array([node.network_bytes_per_second for node in nodes])
    rates: Floats = np.minimum(cards[:, None], cards[None, :])
    regions = np.array([node.region for node in nodes])
    for one in sorted(set(regions)):
        for other in sorted(set(regions) - {one}):
            link = inventory.joined(str(one), str(other))
            pairs = np.ix_(regions == one, regions == other)
            crossing = max(int((regions == one).sum()), int((regions == other).sum()))
            rates[pairs] = 0.0 if link is None else np.minimum(rates[pairs], link.bytes_per_second / crossing)
    np.fill_diagonal(rates, 0.0)
    return rates


def _bisected(nodes: list[Node], inventory: Inventory, holds_both: Callable[[Domain], bool]) -> list[Domain]:
    """Return the domains of `nodes`, by cutting them in two as long as the cut is weak."""
    if len(nodes) < 2:
        return [tuple(nodes)]
    rates = rates_between(nodes, inventory)
    memory = np.array([float(node.gpus * node.accelerator.memory_bytes) for node in nodes])
    side = kernighan_lin(rates, memory, spectral_halves(rates, memory))
    halves = [[node for node, left in zip(nodes, side, strict=True) if left is which] for which in (True, False)]
    if not all(half and holds_both(tuple(half)) for half in halves) or not _is_weak(rates, side):
        return [tuple(nodes)]
    return [domain for half in halves for domain in _bisected(half, inventory, holds_both)]


def spectral_halves(rates: Floats, memory: Floats) -> list[bool]:
    """Return on which side of the bisection each vertex is: the cut along the Fiedler vector with the least ratio.

    The ratio is rate across / (memory of one side * memory of the other): weak, and of even memory.
    """
    degree = rates.sum(axis=1)
    root = 1.0 / np.sqrt(np.maximum(degree, degree.max(initial=0.0) * 1e-12 + 1e-30))
    laplacian = np.diag(degree * root * root) - rates * root[:, None] * root[None, :]
    _, vectors = np.linalg.eigh(laplacian)
    order = np.argsort(np.round(vectors[:, 1] * root, 12), kind="stable")
    best, found = np.inf, 1
    total = memory.sum()
    for count in range(1, len(order)):
        left, right = order[:count], order[count:]
        held = memory[left].sum()
        ratio = rates[np.ix_(left, right)].sum() / (held * (total - held))
        if ratio < best * (1 - 1e-9):
            best, found = ratio, count
    chosen = set(order[:found].tolist())
    return [vertex in chosen for vertex in range(len(order))]


def kernighan_lin(rates: Floats, memory: Floats, side: Sequence[bool]) -> list[bool]:
    """Return the bisection after swaps (and moves) that make the rate across smaller, memory kept nearly even."""
    left = np.array(side)
    aim, slack = memory[left].sum(), _UNEVEN * memory.sum()
    for _ in range(len(left)):
        across = np.where(left[:, None] != left[None, :], rates, 0.0).sum(axis=1)
        gain = across - (rates.sum(axis=1) - across)
        swaps = gain[:, None] + gain[None, :] - 2 * rates
        shift = np.abs(memory[left].sum() - aim + memory[None, :] - memory[:, None])
        allowed = left[:, None] & ~left[None, :] & (shift <= slack)
        swaps = np.where(allowed, swaps, -np.inf)
        one, other = np.unravel_index(int(np.argmax(swaps)), swaps.shape)
        if swaps[one, other] <= 1e-9 * rates.max(initial=0.0):
            break
        left[one], left[other] = False, True
    return [bool(each) for each in left]


def _is_weak(rates: Floats, side: Sequence[bool]) -> bool:
    """Report whether KV crosses the cut much slower than it moves inside the halves."""
    left = np.array(side)
    cross = rates[np.ix_(left, ~left)]
    inside = [rates[np.ix_(half, half)] for half in (left, ~left)]
    pairs = sum(each.size - len(each) for each in inside)
    if pairs == 0:
        return bool(cross.sum() == 0)
    return bool(cross.mean() < WEAK * sum(each.sum() for each in inside) / pairs)
