"""Accept or turn away, by class: early rejection on predicted latency. Pure."""

from fulcrum.admission.classes import DEFAULT_CLASS
from fulcrum.admission.decide import Admission, capped
from fulcrum.admission.neighbours import NeighbourSlowdown
from fulcrum.admission.outcome import Admit, Preempt, Reject, Tally, ThresholdLimits
from fulcrum.admission.outputs import TokenRatio
from fulcrum.admission.waiting import ANYONE, Client, RequestQueue, Waiting

__all__ = [
    "ANYONE",
    "DEFAULT_CLASS",
    "Admission",
    "Admit",
    "Client",
    "NeighbourSlowdown",
    "Preempt",
    "Reject",
    "RequestQueue",
    "Tally",
    "ThresholdLimits",
    "TokenRatio",
    "Waiting",
    "capped",
]
