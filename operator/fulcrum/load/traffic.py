"""What arrived and how it was served, as measured. An absent figure is unknown, which is never zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, Final

from fulcrum.api.durations import seconds
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.load.demand import ClassPart
from fulcrum.load.tuning import TUNING


def traffic_window_seconds(spec: InferenceClusterSpec) -> float:
    """Return over how many seconds load is averaged before a decision.

    A flip must pay within its dwell, so what it is decided by need not be older than that: a shorter dwell asks for
    quicker and noisier decisions. Two scrapes of a Prometheus must lie in the window.
    """
    if spec.metrics.prometheus is not None:
        return 2 * TUNING.window_seconds
    shortest = TUNING.least_seen * TUNING.span_seconds
    return min(max(seconds(spec.balance.flip.min_dwell), shortest), TUNING.window_seconds)


_NO_FIGURES: Final = frozenset({"rejections", "classes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What arrived at all gateways over the last seconds, and how it was served."""

    window_seconds: float
    """Window of arrivals: shorter than what was asked for where all came in its last part."""
    rate: float
    """Requests per second that arrived, also the ones that were turned away."""
    isl_tokens: float | None = None
    """Mean prompt tokens of the requests that come; None while no request was seen in the window."""
    osl_tokens: float | None = None
    """Mean output tokens of the same, as far as known (`load.lengths`); else of requests that ended in it."""
    isl_seen: float | None = None
    """How many requests `isl_tokens` is of; None: all of the window."""
    osl_seen: float | None = None
    """How many `osl_tokens` is worth; None: all that ended."""
    osl_at_least: bool = False
    """No answer has ended yet: `osl_tokens` is of answers under way, which are at least so long."""
    ended: float | None = None
    """How many requests ended within the window; None where it was not counted."""
    isl_cv2: float | None = None
    """Squared coefficient of variation of the prompt lengths."""
    osl_cv2: float | None = None
    prefix_hit: float | None = None
    """Share of prompt tokens that prefix caches answered, 0 to 1."""
    dispersion: float | None = None
    """How unevenly requests arrived over the last minutes (`load.bursts`); None is taken for Poisson."""
    attainment: float | None = None
    """Share of requests inside their SLO, 0 to 1 (turned away and failed ones are outside)."""
    ttft_p50_seconds: float | None = None
    ttft_p90_seconds: float | None = None
    ttft_p99_seconds: float | None = None
    tpot_p50_seconds: float | None = None
    tpot_p90_seconds: float | None = None
    tpot_p99_seconds: float | None = None
    rejected: float | None = None
    """Share of requests that were turned away, 0 to 1."""
    rejections: Mapping[Reason, float] = field(default_factory=dict)
    """The same by reason; without those of which there are none."""
    queued: float | None = None
    """Requests in the admission queues of all gateways, on average; None where there are none."""
    classes: tuple[ClassPart, ...] = ()
    """What came of each QoS class; empty: not known."""


def without_nonsense(traffic: Traffic) -> tuple[Traffic | None, tuple[str, ...]]:
    """Return the traffic without figures that are no finite number from 0 up, and the names of those dropped.

    A lost figure is unknown. Without a rate or a window all of it is: None.
    """
    figures = [(each.name, getattr(traffic, each.name)) for each in fields(traffic) if each.name not in _NO_FIGURES]
    bad = tuple(name for name, figure in figures if figure is not None and not _sound(figure))
    if "rate" in bad or "window_seconds" in bad:
        return None, bad
    lost: dict[str, Any] = dict.fromkeys(bad)
    rejections = {reason: share for reason, share in traffic.rejections.items() if _sound(share)}
    if len(rejections) < len(traffic.rejections):
        lost["rejections"] = rejections
    return replace(traffic, **lost), tuple(lost)


def _sound(figure: float) -> bool:
    return isfinite(figure) and figure >= 0
