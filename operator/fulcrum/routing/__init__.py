"""Which workers serve a request: filter -> score -> pick, by predicted latency over a `ClusterView`. Pure."""

from fulcrum.routing.affinity import BYTE_ENDS, AffinityMemory, prefix_keys, token_ends
from fulcrum.routing.breaker import Breaker, BreakerState
from fulcrum.routing.flight import Flight
from fulcrum.routing.outcome import NobodyFits, NobodyThere, NoPool
from fulcrum.routing.outliers import OutlierEjector, OutlierRule
from fulcrum.routing.pairs import Pair, PairHealth
from fulcrum.routing.path import HandOver, Incoming, Route
from fulcrum.routing.route import decode_elsewhere, route
from fulcrum.routing.sent import SentBatch
from fulcrum.routing.sharing import SHARE_SECONDS, learn_batch, take_batch
from fulcrum.routing.view import ClusterView, decode_share, step_share
from fulcrum.routing.worker import WorkerView

__all__ = [
    "BYTE_ENDS",
    "SHARE_SECONDS",
    "AffinityMemory",
    "Breaker",
    "BreakerState",
    "ClusterView",
    "Flight",
    "HandOver",
    "Incoming",
    "NoPool",
    "NobodyFits",
    "NobodyThere",
    "OutlierEjector",
    "OutlierRule",
    "Pair",
    "PairHealth",
    "Route",
    "SentBatch",
    "WorkerView",
    "decode_elsewhere",
    "decode_share",
    "learn_batch",
    "prefix_keys",
    "route",
    "step_share",
    "take_batch",
    "token_ends",
]
