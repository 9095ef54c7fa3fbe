"""Accept or turn away, by class: early rejection on predicted latency. Pure."""

from fulcrum.admission.classes import DEFAULT_CLASS, ClassTable
from fulcrum.admission.decide import Admission
from fulcrum.admission.outcome import Admit, Preempt, Reject, Tally, ThresholdLimits
from fulcrum.admission.predict import Margin, OutputLengths, TokenRatio
from fulcrum.admission.quantile import OnlineQuantile

__all__ = [
    "DEFAULT_CLASS",
    "Admission",
    "Admit",
    "ClassTable",
    "Margin",
    "OnlineQuantile",
    "OutputLengths",
    "Preempt",
    "Reject",
    "Tally",
    "ThresholdLimits",
    "TokenRatio",
]
