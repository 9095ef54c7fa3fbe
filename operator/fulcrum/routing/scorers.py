"""What a path costs, in seconds: small functions in a list; the path with the lowest sum is picked. Pure.

Seconds are those of TTFT; `Search.pace_weight` turns seconds of TPOT into them. A new reason to prefer a path (say, a
link between two workers that carries more than its share) is one function more here and its name in `PATH`. What it
needs to know of workers is kept by `ClusterView`, event by event, or predicted by `Search`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fulcrum.routing.path import Route
from fulcrum.routing.search import Search
from fulcrum.routing.tuning import TUNING

PathScorer = Callable[[Search, Route], float]


def first_token(_search: Search, path: Route) -> float:
    """The predicted TTFT."""
    return path.ttft_seconds


def pace(search: Search, path: Route) -> float:
    """The predicted TPOT: of the new request, or of all in its batch when it comes, whichever is longer."""
    return search.pace_weight * path.slowest_seconds


def missed_promises(search: Search, path: Route) -> float:
    """What is beyond a promise counts many times."""
    late = max(path.ttft_seconds - search.ttft_seconds, 0.0)
    slow = max(path.slowest_seconds - search.tpot_seconds, 0.0)
    return TUNING.miss_weight * (late + search.pace_weight * slow) if late or slow else 0.0


def overfull_memory(search: Search, path: Route) -> float:
    """Answers that outgrow the KV cache are computed twice: as bad as a TTFT that is late by the same part."""
    capacity = path.decode.engine.kv_capacity
    used = path.hand_over.kv_tokens
    return TUNING.miss_weight * search.ttft_seconds * (used / capacity - 1) if 0 < capacity < used else 0.0


def beyond_its_route(search: Search, path: Route) -> float:
    """More of the KV went this way lately than the operator's routes give it; all of it counts for a TTFT promise."""
    excess = search.view.kv_routes.excess(path.prefill.pool, path.decode.pool)
    return search.ttft_seconds * excess if excess and path.decode is not path.prefill else 0.0


PATH: Final[tuple[PathScorer, ...]] = (
    first_token,
    pace,
    missed_promises,
    overfull_memory,
    beyond_its_route,
)
"""Scorers of paths."""


def path_cost(search: Search, path: Route) -> float:
    """Return what the scorers of paths sum up to, in seconds."""
    seconds = 0.0
    for scorer in PATH:
        seconds += scorer(search, path)
    return seconds


def best_path(search: Search, paths: Sequence[Route]) -> Route | None:
    """Pick the path of the lowest cost, of equals the first."""
    if len(paths) < 2:
        return paths[0] if paths else None
    return min(paths, key=lambda path: path_cost(search, path))
