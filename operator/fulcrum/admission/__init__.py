"""Accept or turn away, by class: early rejection on predicted latency. Pure."""

from fulcrum.admission.classes import DEFAULT_CLASS, ClassTable
from fulcrum.admission.decide import Admission
from fulcrum.admission.margin import Margin
from fulcrum.admission.neighbours import NeighbourSlowdown
from fulcrum.admission.outcome import Admit, Preempt, Reject, Tally, ThresholdLimits
from fulcrum.admission.outputs import OutputLengths, TokenRatio

__all__ = [
    "DEFAULT_CLASS",
    "Admission",
    "Admit",
    "ClassTable",
    "Margin",
    "NeighbourSlowdown",
    "OutputLengths",
    "Preempt",
    "Reject",
    "Tally",
    "ThresholdLimits",
    "TokenRatio",
]
