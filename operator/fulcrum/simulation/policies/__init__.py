"""Policies that can be compared in a simulation, one per file."""

from fulcrum.simulation.policies.aggregated import Aggregated
from fulcrum.simulation.policies.arrow import Arrow
from fulcrum.simulation.policies.dynamo import Dynamo, DynamoMode
from fulcrum.simulation.policies.mooncake import Mooncake, Rejection
from fulcrum.simulation.policies.ours import Ours
from fulcrum.simulation.policies.schedule import Schedule, Split
from fulcrum.simulation.policies.static import StaticSplit
from fulcrum.simulation.policies.threshold import Threshold

__all__ = [
    "Aggregated",
    "Arrow",
    "Dynamo",
    "DynamoMode",
    "Mooncake",
    "Ours",
    "Rejection",
    "Schedule",
    "Split",
    "StaticSplit",
    "Threshold",
]
