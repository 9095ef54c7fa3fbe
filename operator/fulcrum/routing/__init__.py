"""Which workers serve a request: filter -> score -> pick, pure.

`route` picks a path by predicted latency over a `ClusterView`; `plan` and `choose` pick by the number of legs.
"""

from fulcrum.routing._choice import Candidate, Chosen, NobodyFits, NobodyThere, NoPool, choose
from fulcrum.routing._paths import OneLeg, TwoLegs, plan, usable_path
from fulcrum.routing.affinity import BYTE_ENDS, AffinityMemory, prefix_keys, token_ends
from fulcrum.routing.breaker import Breaker, BreakerState
from fulcrum.routing.flight import Flight
from fulcrum.routing.outliers import OutlierEjector, OutlierRule
from fulcrum.routing.path import HandOver, Incoming, Route
from fulcrum.routing.route import route
from fulcrum.routing.view import ClusterView, decode_share
from fulcrum.routing.worker import WorkerView

__all__ = [
    "BYTE_ENDS",
    "AffinityMemory",
    "Breaker",
    "BreakerState",
    "Candidate",
    "Chosen",
    "ClusterView",
    "Flight",
    "HandOver",
    "Incoming",
    "NoPool",
    "NobodyFits",
    "NobodyThere",
    "OneLeg",
    "OutlierEjector",
    "OutlierRule",
    "Route",
    "TwoLegs",
    "WorkerView",
    "choose",
    "decode_share",
    "plan",
    "prefix_keys",
    "route",
    "token_ends",
    "usable_path",
]
