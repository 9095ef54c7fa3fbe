"""One answered request against the promise (metric label `outcome` of `fulcrum_gateway_slo_total`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from fulcrum.api.reasons import REJECTIONS, Reason

_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500
UNREACHABLE: Final = frozenset((Reason.TTFT_UNREACHABLE, Reason.TPOT_UNREACHABLE))
"""Refusals that depend on what the request asked for: a tighter promise is not the cluster's miss."""


class SloOutcome(StrEnum):
    """How a request fared."""

    MET = "met"
    TTFT = "ttft"
    """The first token came too late."""
    TPOT = "tpot"
    """The tokens after it came too slowly."""
    BOTH = "both"
    REJECTED = "rejected"
    """Turned away without any work."""
    FAILED = "failed"
    """Broken off by a server's fault or by a time-out."""


def judge_latency(
    *,
    ttft_seconds: float | None,
    tpot_seconds: float | None,
    slo_ttft_seconds: float | None,
    slo_tpot_seconds: float | None,
) -> SloOutcome | None:
    """Judge an answer by what is known and promised of it; None when that is nothing."""
    ttft_judged = ttft_seconds is not None and slo_ttft_seconds is not None
    tpot_judged = tpot_seconds is not None and slo_tpot_seconds is not None
    if not ttft_judged and not tpot_judged:
        return None
    late = ttft_seconds is not None and slo_ttft_seconds is not None and ttft_seconds > slo_ttft_seconds
    slow = tpot_seconds is not None and slo_tpot_seconds is not None and tpot_seconds > slo_tpot_seconds
    if late:
        return SloOutcome.BOTH if slow else SloOutcome.TTFT
    return SloOutcome.TPOT if slow else SloOutcome.MET


def judge_refusal(code: int, reason: str) -> SloOutcome | None:
    """Judge an answer other than 200; None for what is the client's own fault.

    That is 4xx, 499 (it left), and a request that makes each engine fail while others are served.
    """
    if code < _SERVER_ERRORS:
        return SloOutcome.REJECTED if code == _TOO_MANY else None
    if reason in REJECTIONS:
        return SloOutcome.REJECTED
    return None if reason == Reason.ENGINE_ERROR else SloOutcome.FAILED
