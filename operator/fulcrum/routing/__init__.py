"""Which workers serve a request: filter -> score -> pick, by predicted latency over a `ClusterView`. Pure.

`filters` say which workers can take the request, `candidates` which few of them are predicted in full (`search`), and
`scorers` what each path costs, in seconds; the least is picked (`route`). A new filter or scorer is a function and its
name in a list there. Constants are entries of `tuning`. `view` is kept up to date event by event.
"""

from fulcrum.routing.affinity import AffinityMemory
from fulcrum.routing.breaker import Breaker, BreakerState
from fulcrum.routing.flight import Flight
from fulcrum.routing.pairs import Pair, PairHealth
from fulcrum.routing.path import HandOver, Incoming, NoPath, Route
from fulcrum.routing.prefixes import BYTE_ENDS, prefix_keys, token_ends
from fulcrum.routing.request_load import RequestLoad
from fulcrum.routing.restoring import prefill_left_seconds
from fulcrum.routing.route import decode_elsewhere, route
from fulcrum.routing.sent import SentBatch
from fulcrum.routing.sharing import learn_batch, take_batch
from fulcrum.routing.view import ClusterView
from fulcrum.routing.worker import WorkerView

__all__ = [
    "BYTE_ENDS",
    "AffinityMemory",
    "Breaker",
    "BreakerState",
    "ClusterView",
    "Flight",
    "HandOver",
    "Incoming",
    "NoPath",
    "Pair",
    "PairHealth",
    "RequestLoad",
    "Route",
    "SentBatch",
    "WorkerView",
    "decode_elsewhere",
    "learn_batch",
    "prefill_left_seconds",
    "prefix_keys",
    "route",
    "take_batch",
    "token_ends",
]
