"""The path of a request: filter -> score -> pick, for its prefill, its decode and for both on one worker. Pure.

`prefill`, `decode` and `whole` find one each, as `search` predicts it; the path that costs least (`scorers`) is picked.
"""

from __future__ import annotations

from collections.abc import Callable

from fulcrum.routing.decode import pick_decode
from fulcrum.routing.path import Incoming, NoPath, Prefill, Route
from fulcrum.routing.pools import RevisionGroup
from fulcrum.routing.prefill import FILTERS, pick_prefill
from fulcrum.routing.scorers import best_path
from fulcrum.routing.search import Search
from fulcrum.routing.view import ClusterView
from fulcrum.routing.whole import deflected, pick_whole, staying
from fulcrum.routing.worker import WorkerView


def route(incoming: Incoming, view: ClusterView, now_seconds: float) -> Route | NoPath:
    """Best path for a request.

    A prefill and a decode worker of one revision; or one worker for both: a mixed one, one of the pair where two legs
    would be late (`whole`), or any worker when a role is empty or two legs cannot carry the request.
    """
    return _best(Search(incoming, view, now_seconds), _paths) or _no_path(incoming, view)


def decode_elsewhere(incoming: Incoming, prefill: WorkerView, view: ClusterView, now_seconds: float) -> Route | None:
    """Best decode worker for a request whose KV is held at `prefill`; None: no worker can pull it."""
    done = Prefill(prefill, incoming.prompt_tokens, 0.0, 0.0, 0.0, 0.0, 0.0)

    def pairs(search: Search, revision: RevisionGroup) -> list[Route]:
        if not any(prefill in pool.members for pool in revision.prefill):
            return []
        pair = pick_decode(search, done, revision.decode)
        return [] if pair is None else [pair]

    return _best(Search(incoming, view, now_seconds), pairs)


def _best(search: Search, paths: Callable[[Search, RevisionGroup], list[Route]]) -> Route | None:
    """Pick among the paths of all revisions; over suspects only where there is no other."""
    for revisions in (search.view.workers.revisions, search.view.workers.fallback_revisions):
        found: list[Route] = []
        for revision in revisions:
            found.extend(paths(search, revision))
        if found:
            return best_path(search, found)
    return None


def _paths(search: Search, revision: RevisionGroup) -> list[Route]:
    paths: list[Route] = []
    if revision.decode and revision.prefill and not search.incoming.whole:
        prefill = pick_prefill(search, revision.prefill, FILTERS, revision.decode)
        pair = pick_decode(search, prefill, revision.decode) if prefill is not None else None
        if prefill is not None and pair is not None:
            paths = [pair, *_beside(search, revision, prefill, pair)]
    mixed = pick_whole(search, revision.mixed) if revision.mixed else None
    if mixed is not None:
        paths.append(mixed)
    if not paths:
        # A whole request is mostly decoding, so it disturbs a decode worker less than a prefill worker.
        whole = pick_whole(search, revision.decode) or pick_whole(search, revision.prefill)
        if whole is not None:
            paths.append(whole)
    return paths


def _beside(search: Search, revision: RevisionGroup, prefill: Prefill, pair: Route) -> list[Route]:
    """Return the whole request on one of the two workers, where that may be better."""
    late = pair.ttft_seconds > search.ttft_seconds
    if search.incoming.two_legs or not (late or search.holders):
        return []
    found = [deflected(search, revision, pair), staying(search, prefill) if late else None]
    return [path for path in found if path is not None]


def _no_path(incoming: Incoming, view: ClusterView) -> NoPath:
    if not view.workers.by_name:
        return NoPath.NO_WORKER
    serving = [worker for revision in view.workers.every_revision for pool in revision.pools for worker in pool.workers]
    tried = all(worker.worker in incoming.exclude for worker in serving)
    takes = tried or view.workers.any_pool_takes(incoming.prompt_tokens, incoming.qos)
    return NoPath.NONE_FITS if takes else NoPath.NO_POOL
