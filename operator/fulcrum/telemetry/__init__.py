"""Observations in, metrics out."""

from fulcrum.telemetry.agents import Agents

__all__ = ["Agents"]
