"""Which workers serve a request: filter -> score -> pick, by predicted latency over a `ClusterView`. Pure.

`prefill`, `decode` and `whole` have this shape each: the `filters` that say which workers can take the request, what it
costs there in seconds (`prefill.SCORERS`; of paths `scorers.PATH`), as `search` predicts it, and the pick of the least.
`route` puts them together. A new filter or scorer is a function and its name in a list. Constants are entries of
`tuning`. `view` is kept up to date event by event.
"""

from fulcrum.routing.affinity import AffinityMemory
from fulcrum.routing.flight import Flight
from fulcrum.routing.making_way import BatchInTheWay
from fulcrum.routing.pairs import Pair, PairHealth
from fulcrum.routing.path import Incoming, NoPath, Route
from fulcrum.routing.prefixes import prefix_keys, token_ends
from fulcrum.routing.request_load import RequestLoad
from fulcrum.routing.route import decode_elsewhere, route
from fulcrum.routing.search import prefill_left_seconds
from fulcrum.routing.sent import SentBatch
from fulcrum.routing.sharing import learn_batch, take_batch
from fulcrum.routing.view import ClusterView
from fulcrum.routing.whole import harmed
from fulcrum.routing.worker import WorkerView

__all__ = [
    "AffinityMemory",
    "BatchInTheWay",
    "ClusterView",
    "Flight",
    "Incoming",
    "NoPath",
    "Pair",
    "PairHealth",
    "RequestLoad",
    "Route",
    "SentBatch",
    "WorkerView",
    "decode_elsewhere",
    "harmed",
    "learn_batch",
    "prefill_left_seconds",
    "prefix_keys",
    "route",
    "take_batch",
    "token_ends",
]
