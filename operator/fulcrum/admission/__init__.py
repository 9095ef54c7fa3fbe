"""Accept or turn away, by class: early rejection on predicted latency. Pure."""

from fulcrum.admission.classes import DEFAULT_CLASS, ClassTable
from fulcrum.admission.decide import Admission
from fulcrum.admission.neighbours import NeighbourSlowdown
from fulcrum.admission.outcome import Admit, Preempt, Reject, Tally, ThresholdLimits
from fulcrum.admission.postpone import AGAIN_SECONDS, Postponed
from fulcrum.admission.predict import Margin, MeanOutputs, OutputLengths, TokenRatio
from fulcrum.admission.quantile import OnlineQuantile

__all__ = [
    "AGAIN_SECONDS",
    "DEFAULT_CLASS",
    "Admission",
    "Admit",
    "ClassTable",
    "Margin",
    "MeanOutputs",
    "NeighbourSlowdown",
    "OnlineQuantile",
    "OutputLengths",
    "Postponed",
    "Preempt",
    "Reject",
    "Tally",
    "ThresholdLimits",
    "TokenRatio",
]
