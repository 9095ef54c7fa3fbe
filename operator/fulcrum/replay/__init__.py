"""Open-loop replay of a trace against an OpenAI-compatible endpoint, and the report of what came back."""

from fulcrum.replay.client import Client, EndpointError
from fulcrum.replay.endpoint import Endpoint, discover
from fulcrum.replay.open_loop import Progress, replay
from fulcrum.replay.outcome import Outcome, Record
from fulcrum.replay.prompts import PromptWriter
from fulcrum.replay.report import LatencyLimits, Report, summarise

__all__ = [
    "Client",
    "Endpoint",
    "EndpointError",
    "LatencyLimits",
    "Outcome",
    "Progress",
    "PromptWriter",
    "Record",
    "Report",
    "discover",
    "replay",
    "summarise",
]
