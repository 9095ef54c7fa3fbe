"""Request traffic: recorded traces and a synthetic one. Pure parsing and generation, no clock and no network."""

from fulcrum.simulation.traffic.load import load_trace, prepared
from fulcrum.simulation.traffic.mooncake import PREFIX_BLOCK_TOKENS
from fulcrum.simulation.traffic.synthetic import DECODE_HEAVY, PREFILL_HEAVY, Phase, generate, repeated
from fulcrum.simulation.traffic.trace import LONGEST_SECONDS, Request, TraceError

__all__ = [
    "DECODE_HEAVY",
    "LONGEST_SECONDS",
    "PREFILL_HEAVY",
    "PREFIX_BLOCK_TOKENS",
    "Phase",
    "Request",
    "TraceError",
    "generate",
    "load_trace",
    "prepared",
    "repeated",
]
