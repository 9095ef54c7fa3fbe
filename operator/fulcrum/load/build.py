"""From sums over what came and what ended to `Traffic`: the one way, for telemetry and the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fulcrum.api.reasons import Reason
from fulcrum.load.demand import ClassPart
from fulcrum.load.lengths import Arrived, Measured, Moments, begun, common_spread, lengths
from fulcrum.load.traffic import Traffic
from fulcrum.load.tuning import TUNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was counted over a window, and over the last minutes for what takes longer to know."""

    seconds: float
    arrivals: float
    came: Arrived
    newest: Sequence[Arrived] = ()
    """The last `Tuning.newest_parts` of the window."""
    prompts: Measured = field(default_factory=Measured)
    """Prompts of requests that ended in the window; empty where prompts are known exactly when they come."""
    prompts_longer: Measured = field(default_factory=Measured)
    """The same of the last minutes."""
    outputs: Measured = field(default_factory=Measured)
    outputs_longer: Measured = field(default_factory=Measured)
    stretches: Sequence[Arrived] = ()
    """What came in each `Tuning.window_seconds` of the last minutes."""
    output_stretches: Sequence[Moments] = ()
    """Lengths of the answers that ended in each of them."""
    judged: float = 0.0
    """Requests that ended and of which it is known whether they were inside the SLO."""
    inside: float = 0.0
    rejected: float = 0.0
    rejectable: float = 0.0
    """What `rejected` is a share of."""
    classes: Mapping[str, Arrived] = field(default_factory=dict)
    """What came of each QoS class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Measured latencies in seconds; None: unknown."""

    ttft_p50: float | None = None
    ttft_p90: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    tpot_p90: float | None = None
    tpot_p99: float | None = None


def build_traffic(
    window: Window,
    latencies: Latencies,
    *,
    isl_cv2: float | None = None,
    osl_cv2: float | None = None,
    ended: float | None,
    prefix_hit: float | None = None,
    rejections: Mapping[Reason, float] | None = None,
    dispersion: float | None = None,
    queued: float | None = None,
) -> Traffic:
    """Return what the sums amount to; ratios of nothing are None.

    `isl_cv2` and `osl_cv2` are the spreads of the window, for where the last minutes do not tell them; the rest is
    passed on.
    """
    since = begun(window.came, window.newest)
    window_seconds = window.seconds if since is None else window.seconds * TUNING.newest_parts[since]
    seen = lengths(
        window.came,
        prompts=(window.prompts, window.prompts_longer),
        outputs=(window.outputs, window.outputs_longer),
        stretches=window.stretches,
    )
    spread = common_spread(window.output_stretches)
    # A request may end in a later window than it came in.
    rejected = min(1.0, window.rejected / window.rejectable) if window.rejectable > 0 else None
    return Traffic(
        window_seconds=window_seconds,
        rate=window.arrivals / window_seconds,
        isl_tokens=seen.isl_tokens,
        osl_tokens=seen.osl_tokens,
        isl_seen=seen.isl_seen,
        osl_seen=seen.osl_seen,
        osl_at_least=seen.osl_at_least,
        ended=ended,
        isl_cv2=isl_cv2 if seen.isl_cv2 is None else seen.isl_cv2,
        osl_cv2=osl_cv2 if spread is None else spread,
        prefix_hit=prefix_hit,
        attainment=window.inside / window.judged if window.judged > 0 else None,
        ttft_p50_seconds=latencies.ttft_p50,
        ttft_p90_seconds=latencies.ttft_p90,
        ttft_p99_seconds=latencies.ttft_p99,
        tpot_p50_seconds=latencies.tpot_p50,
        tpot_p90_seconds=latencies.tpot_p90,
        tpot_p99_seconds=latencies.tpot_p99,
        rejected=rejected,
        rejections=rejections or {},
        dispersion=dispersion,
        queued=queued,
        classes=class_parts(window.classes),
    )


def class_parts(classes: Mapping[str, Arrived]) -> tuple[ClassPart, ...]:
    """Return each class's share of the requests, and its prompts against those of all; empty where none came."""
    requests = sum(came.requests for came in classes.values())
    tokens = sum(came.prompt_tokens for came in classes.values())
    return tuple(
        ClassPart(name, came.requests / requests, came.prompt_tokens / came.requests * requests / tokens)
        for name, came in sorted(classes.items())
        if came.requests > 0 and came.prompt_tokens > 0
    )
