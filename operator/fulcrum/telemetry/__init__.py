"""Observations in, metrics out."""

from fulcrum.telemetry.agents import Agents
from fulcrum.telemetry.prometheus_access import PrometheusAccess
from fulcrum.telemetry.prometheus_source import PrometheusSource
from fulcrum.telemetry.scrape_source import ScrapeSource
from fulcrum.telemetry.source import ClusterRef, TelemetrySource, Unknown

__all__ = [
    "Agents",
    "ClusterRef",
    "PrometheusAccess",
    "PrometheusSource",
    "ScrapeSource",
    "TelemetrySource",
    "Unknown",
]
