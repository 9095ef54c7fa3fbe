"""Policies that `fulcrum simulate` compares, one per file."""

from fulcrum.simulation.policies.aggregated import Aggregated
from fulcrum.simulation.policies.fixed import Fixed
from fulcrum.simulation.policies.ours import Ours
from fulcrum.simulation.policies.static import Split, StaticSplit

__all__ = ["Aggregated", "Fixed", "Ours", "Split", "StaticSplit"]
