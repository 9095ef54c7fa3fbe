"""Accept or turn away, by class: early rejection on predicted latency. Pure."""

from fulcrum.admission.classes import DEFAULT_CLASS, ClassTable
from fulcrum.admission.decide import Admission, capped
from fulcrum.admission.margin import Margin
from fulcrum.admission.neighbours import NeighbourSlowdown
from fulcrum.admission.outcome import Admit, Preempt, Reject, Tally, ThresholdLimits
from fulcrum.admission.outputs import OutputLengths, TokenRatio
from fulcrum.admission.waiting import ANYONE, Client, RequestQueue, Waiting

__all__ = [
    "ANYONE",
    "DEFAULT_CLASS",
    "Admission",
    "Admit",
    "ClassTable",
    "Client",
    "Margin",
    "NeighbourSlowdown",
    "OutputLengths",
    "Preempt",
    "Reject",
    "RequestQueue",
    "Tally",
    "ThresholdLimits",
    "TokenRatio",
    "Waiting",
    "capped",
]
