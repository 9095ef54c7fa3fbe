"""The most requests/s that flow from prefill workers over links to decode workers: a maximum flow (HexGen-2, 3.3).

Source -> prefill workers of a site -> (inside the site, or its network cards and the links of regions) -> decode
workers of a site -> sink. A site is a node, or a cell of alike nodes. Mixed workers carry requests from source to sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from fulcrum.placement.inventory import Inventory, requests_per_second

_UNITS: Final = 2**28
"""scipy's capacities are whole numbers: the flow is counted in so many units (a relative error of 4e-9)."""
_NEVER_FULL: Final = 2**30
_SOURCE: Final = 0
_SINK: Final = 1

Arc = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where workers are: what they carry (requests/s) and how fast KV moves in and out (bytes/s)."""

    name: str
    region: str
    prefill_rate: float
    decode_rate: float
    mixed_rate: float
    local_bytes_per_second: float
    network_bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """KV that flows from the prefill workers of one site to the decode workers of another."""

    source: str
    target: str
    rate: float
    """Requests/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A minimum cut: why no more flows. What it lets through bounds every other placement, too."""

    prefill: frozenset[str]
    """Sites whose prefill workers are a bottleneck."""
    decode: frozenset[str]
    links: float
    """Requests/s that the cut links carry."""
    link_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What flows, and what stops more from flowing."""

    rate: float
    """Requests/s, mixed workers included."""
    routes: tuple[Route, ...] = ()
    cut: Cut | None = None
    """None where no KV flows."""


def most_flow(
    sites: Sequence[Site], inventory: Inventory, kv_bytes_per_request: float, *, with_routes: bool = True
) -> Flow:
    """Return the maximum flow over `sites`."""
    mixed = sum(site.mixed_rate for site in sites)
    if not any(site.prefill_rate > 0 for site in sites) or not any(site.decode_rate > 0 for site in sites):
        return Flow(rate=mixed)
    rate, flows, cut = _solved(sites, _arcs(sites, inventory, kv_bytes_per_request))
    found = _routes(flows) if with_routes else {}
    routes = tuple(
        Route(source=sites[source].name, target=sites[target].name, rate=each)
        for (source, target), each in sorted(found.items())
    )
    return Flow(rate=rate + mixed, routes=routes, cut=cut)


def _arcs(sites: Sequence[Site], inventory: Inventory, kv_bytes: float) -> dict[Arc, tuple[float, str]]:
    """Return capacity and name of each arc.

    Vertices: source, sink, prefill and decode of each site, hubs of regions.
    """
    regions = sorted({site.region for site in sites} | {name for link in inventory.links for name in link.between})
    hub = {region: 2 + 2 * len(sites) + number for number, region in enumerate(regions)}
    arcs: dict[Arc, tuple[float, str]] = {}
    for number, site in enumerate(sites):
        prefill, decode = 2 + 2 * number, 3 + 2 * number
        arcs[_SOURCE, prefill] = (site.prefill_rate, site.name)
        arcs[decode, _SINK] = (site.decode_rate, site.name)
        local = requests_per_second(site.local_bytes_per_second, kv_bytes)
        network = requests_per_second(site.network_bytes_per_second, kv_bytes)
        if site.prefill_rate > 0:
            arcs[prefill, decode] = (local, f"links inside {site.name}")
            arcs[prefill, hub[site.region]] = (network, f"network of {site.name}")
        if site.decode_rate > 0:
            arcs[hub[site.region], decode] = (network, f"network of {site.name}")
    for link in inventory.links:
        one, other = link.between
        capacity = requests_per_second(link.bytes_per_second, kv_bytes)
        for start, end in ((one, other), (other, one)):
            arcs[hub[start], hub[end]] = (capacity, f"link {one} - {other}")
    return {arc: named for arc, named in arcs.items() if named[0] > 0}


def _solved(sites: Sequence[Site], arcs: dict[Arc, tuple[float, str]]) -> tuple[float, dict[Arc, float], Cut]:
    """Return the flow's value, the flow of each arc, and the minimum cut nearest to the source."""
    # No more flows than leaves the source or reaches the sink: that scales the units.
    bound = min(
        sum(capacity for (start, end), (capacity, _) in arcs.items() if side in (start, end))
        for side in (_SOURCE, _SINK)
    )
    unit = bound / _UNITS
    whole = [int(min(capacity / unit, _NEVER_FULL)) for capacity, _ in arcs.values()]
    size = max(max(arc) for arc in arcs) + 1
    starts, ends = zip(*arcs, strict=True)
    matrix = csr_matrix((np.array(whole, dtype=np.int32), (starts, ends)), shape=(size, size))
    found = maximum_flow(matrix, _SOURCE, _SINK)
    moved = found.flow.tocoo()
    triples = zip(moved.row.tolist(), moved.col.tolist(), moved.data.tolist(), strict=True)
    flows = {(start, end): units * unit for start, end, units in triples if units > 0}
    residual = matrix - found.flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    reached = set(breadth_first_order(residual, _SOURCE, return_predecessors=False).tolist())
    crossing = [arc for arc in arcs if arc[0] in reached and arc[1] not in reached]
    links = [arc for arc in crossing if arc[0] != _SOURCE and arc[1] != _SINK]
    cut = Cut(
        prefill=frozenset(site.name for number, site in enumerate(sites) if 2 + 2 * number not in reached),
        # Where there is no decode worker yet one could be added, which would let through what it carries.
        decode=frozenset(
            site.name for number, site in enumerate(sites) if 3 + 2 * number in reached or not site.decode_rate
        ),
        links=sum(arcs[arc][0] for arc in links),
        link_names=tuple(sorted({arcs[arc][1] for arc in links})),
    )
    return found.flow_value * unit, flows, cut


def _routes(flows: dict[Arc, float]) -> dict[Arc, float]:
    """Return requests/s by (number of the prefill site, of the decode site): the flow, taken apart path by path."""
    left = dict(flows)
    onward: dict[int, list[int]] = {}
    for start, end in left:
        onward.setdefault(start, []).append(end)
    found: dict[Arc, float] = {}
    least = max(left.values(), default=0.0) * 1e-7
    while path := _path(left, onward, least):
        steps = list(pairwise(path))
        rate = min(left[step] for step in steps)
        for step in steps:
            left[step] -= rate
        pair = ((path[1] - 2) // 2, (path[-2] - 3) // 2)
        found[pair] = found.get(pair, 0.0) + rate
    return found


def _path(left: dict[Arc, float], onward: dict[int, list[int]], least: float) -> list[int]:
    """Return vertices from source to sink along arcs that still carry something; empty when there are none."""
    path, seen = [_SOURCE], {_SOURCE}
    while path and path[-1] != _SINK:
        here = path[-1]
        ahead = next((end for end in onward.get(here, ()) if end not in seen and left[here, end] > least), None)
        if ahead is None:
            path.pop()
        else:
            path.append(ahead)
            seen.add(ahead)
    return path
