"""Policies that can be compared in a simulation, one per file."""

from fulcrum.simulation.policies.aggregated import Aggregated
from fulcrum.simulation.policies.ours import Ours
from fulcrum.simulation.policies.static import StaticSplit

__all__ = ["Aggregated", "Ours", "StaticSplit"]
