"""Spec, the part about roles and worker counts: ratio, forecast, flips, scaling."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from fulcrum.api import durations
from fulcrum.api.base import MAX_WORKERS, ApiStruct, Duration, PositiveDuration, Rules, WorkersOrPercent, rule


class BalanceMode(StrEnum):
    AUTO = "Auto"
    MANUAL = "Manual"
    OBSERVE = "Observe"
    EXTERNAL = "External"


class RehearsePolicy(StrEnum):
    ON = "On"
    OFF = "Off"


class Ratio(ApiStruct, frozen=True, kw_only=True):
    """Workers per role."""

    # Neither may be 0: without prefill workers nothing is ever decoded, without decode workers nothing answered.
    prefill: Annotated[int, Meta(ge=1, le=MAX_WORKERS, description="Prefill workers, at least 1.")]
    decode: Annotated[int, Meta(ge=1, le=MAX_WORKERS, description="Decode workers, at least 1.")]


class ForecastMethod(StrEnum):
    AUTO = "auto"
    LAST_VALUE = "lastValue"
    SEASONAL_NAIVE = "seasonalNaive"
    HOLT_WINTERS = "holtWinters"
    ARIMA = "arima"


class ForecastBound(StrEnum):
    QUANTILE = "Quantile"
    PROMISE = "Promise"


class Forecast(ApiStruct, frozen=True, kw_only=True):
    """Load forecast."""

    method: Annotated[ForecastMethod, Meta(description="Forecast method; auto back-tests all of them.")] = (
        ForecastMethod.AUTO
    )
    interval: Annotated[PositiveDuration, Meta(description="Length of one sample of the load history.")] = "60s"
    horizon: Annotated[
        str,
        Meta(
            max_length=durations.MAX_LENGTH,
            pattern=rf"^(auto|{durations.PATTERN.removeprefix('^').removesuffix('$')})$",
            description="How far ahead, as a duration; auto: the measured time from a new Pod to its readiness.",
        ),
    ] = "auto"
    seasonality: Annotated[PositiveDuration, Meta(description="Length of one season of the load.")] = "24h"
    quantile: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Meta(
            description="Quantile of the forecast that is planned for, between 0 and 1. Default: 0.9, or what bound "
            "says."
        ),
    ] = None
    bound: Annotated[
        ForecastBound,
        Meta(
            description="Where no quantile is given. Quantile: 0.9. Promise: the lowest at which a back-test misses no "
            "more than half of the requests that slo.attainment leaves, at least 0.5: fewer workers, and fewer "
            "requests inside the SLO beyond those promised. Objects of an older release have quantile: 0.9 written "
            "down, which rules: remove it."
        ),
    ] = ForecastBound.QUANTILE

    rules: ClassVar[Rules] = (
        rule(
            "duration(self.interval) < duration(self.seasonality)",
            "interval must be shorter than seasonality: a season is made of many samples",
        ),
    )

    @property
    def fixed_quantile(self) -> float | None:
        """Quantile that is planned for; None: a back-test of the promise chooses it."""
        if self.quantile is None and self.bound is ForecastBound.QUANTILE:
            return 0.9
        return self.quantile


class FlipStyle(StrEnum):
    IMMEDIATE = "Immediate"
    DRAIN = "Drain"


class Flip(ApiStruct, frozen=True, kw_only=True):
    """How workers change role."""

    style: Annotated[
        FlipStyle,
        Meta(
            description="Immediate: work of the new role starts at once while old work finishes. "
            "Drain: old work is finished first, and nothing new is sent meanwhile."
        ),
    ] = FlipStyle.IMMEDIATE
    min_dwell: Annotated[
        Duration, Meta(description="Shortest time between two automatic flips of one worker; 0s: none.")
    ] = "30s"
    drain_timeout: Annotated[
        Duration | None,
        Meta(
            description="Longest wait for a draining worker, also when it is removed; at most 1h. Default: an answer "
            "of 1024 tokens within the promise (slo.ttft + 1024 slo.tpot), from 120s to 1h."
        ),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            "self.style != 'Drain' || !has(self.drainTimeout) || self.drainTimeout.matches('[1-9]')",
            "drainTimeout must be longer than zero when style is Drain: requests would be cut off by each flip",
        ),
        rule(
            "!has(self.drainTimeout) || duration(self.drainTimeout) <= duration('1h')",
            "drainTimeout must not be longer than 1h",
        ),
    )


class Rollout(ApiStruct, frozen=True, kw_only=True):
    """How the workers of a pool are replaced when what they are made from changes."""

    max_unavailable: Annotated[
        WorkersOrPercent,
        Meta(
            description="Workers of the pool that may be away at a time: a number, or a percentage of the workers that "
            "it has (rounded down). At least 1 where maxSurge makes no room."
        ),
    ] = 1
    max_surge: Annotated[
        WorkersOrPercent,
        Meta(
            description="Workers that may run beyond those that the pool is to have, so that a replacement is ready "
            "before an old one goes: a number, or a percentage (rounded up); never beyond workers.max."
        ),
    ] = 0


class ScaleDown(ApiStruct, frozen=True, kw_only=True):
    """How capacity is given back."""

    stabilization: Annotated[
        Duration, Meta(description="How long demand must have been low before workers are given back; 0s: at once.")
    ] = "300s"


LEAST_IDLE: Final = "10s"
"""Shortest `balance.idleAfter`: calls of one conversation are seconds apart, and the operator looks every 2 s."""


class IdleDepth(StrEnum):
    PODS = "Pods"
    ENGINES = "Engines"


class Recommend(ApiStruct, frozen=True, kw_only=True):
    """When status.recommendation says that other pools would carry more."""

    threshold: Annotated[
        float,
        Meta(
            ge=0.05,
            le=10,
            description="By which share more requests/s a new plan for the same GPUs must carry within spec.slo; 0.2 "
            "is 20 percent. The recommendation goes once it is less than half of that.",
        ),
    ] = 0.2
    stabilization: Annotated[
        PositiveDuration,
        Meta(description="Within this time after the load moved the recommendation appears; at least 20s."),
    ] = "10m"

    rules: ClassVar[Rules] = (
        rule("duration(self.stabilization) >= duration('20s')", "stabilization must be at least 20s"),
    )


class Balance(ApiStruct, frozen=True, kw_only=True):
    """How roles and worker counts are decided."""

    mode: Annotated[
        BalanceMode,
        Meta(
            description="Auto: the ratio and the number of workers follow the load, so that most requests stay inside "
            "spec.slo; what cannot be measured changes nothing. Observe: the same is planned and published in the "
            "status, and nothing is changed. Manual: the ratio below, on `workers.max` workers of each pool. External: "
            "the workers of each pool and role that its InferenceScale asks for, which an HPA or KEDA sets; within the "
            "pools' bounds."
        ),
    ] = BalanceMode.AUTO
    ratio: Annotated[
        Ratio | None,
        Meta(
            description="Workers per role in Manual, fitted proportionally into the pools' bounds; changing it flips "
            "live workers and restarts none. In Auto and Observe the proportion that a new cluster begins with, until "
            "its load is known; changing it later changes nothing. Unused in External. Default: in Manual an even "
            "split, prefill first; in Auto the best split for usual chat traffic (1,155 prompt and 211 output tokens) "
            "where model and accelerator say how fast workers are, else an even one."
        ),
    ] = None
    forecast: Annotated[Forecast, Meta(description="How load is forecast, for Auto and Observe.")] = Forecast()
    flip: Annotated[Flip, Meta(description="How workers change role.")] = Flip()
    rehearse: Annotated[
        RehearsePolicy | None,
        Meta(
            description='"On" (in quotes: YAML takes a bare On for true): roles change when the last minutes of '
            "requests, played by the operator under another layout, are served better by it beyond chance; that needs "
            'gateway.record. "Off": only when a role surely cannot carry what comes. For Auto and Observe. Default: '
            '"On" where gateways record; as "Off" for ten minutes where there was no answer for five.'
        ),
    ] = None
    scale_down: Annotated[ScaleDown, Meta(description="How capacity is given back.")] = ScaleDown()
    recommend: Annotated[
        Recommend,
        Meta(description="When the status says that other pools would carry more; nothing is changed by it."),
    ] = Recommend()
    idle_after: Annotated[
        PositiveDuration | None,
        Meta(
            description="How long no request may come before all workers are removed, at least 10s; needs mode Auto "
            "and workers.min 0 in every pool. The next request is held at the gateway (gateway.hold) while workers "
            "start; load that came at this time on earlier days wakes them before. Absent: some workers always run."
        ),
    ] = None

    idle_depth: Annotated[
        IdleDepth,
        Meta(
            description="What sleeps after idleAfter. Pods: all workers are removed, and a wake starts them. Engines: "
            "the Pods keep their GPUs, and vLLM's sleep mode gives back the memory of the GPUs; a wake takes seconds. "
            "It needs GPUs, and pools with roles [mixed]. Changing it replaces the workers."
        ),
    ] = IdleDepth.PODS
    sleep_level: Annotated[
        Annotated[int, Meta(ge=1, le=2)] | None,
        Meta(
            description="With idleDepth Engines, vLLM's level of sleep. 1 (the default): the weights go to the host's "
            "memory, which must have room for them. 2: the weights are dropped, and loaded again at the wake.",
        ),
    ] = None

    @property
    def engine_sleep_level(self) -> int:
        """Level of vLLM's sleep mode; 0: engines do not sleep."""
        return (self.sleep_level or 1) if self.idle_depth is IdleDepth.ENGINES else 0

    rules: ClassVar[Rules] = (
        rule(
            "self.idleDepth != 'Engines' || has(self.idleAfter)",
            "idleDepth Engines says what sleeps after idleAfter; set idleAfter, or remove idleDepth",
        ),
        rule(
            "!has(self.sleepLevel) || self.idleDepth == 'Engines'",
            "sleepLevel is that of vLLM's sleep mode; set idleDepth: Engines, or remove sleepLevel",
        ),
        rule(
            f"!has(self.idleAfter) || duration(self.idleAfter) >= duration('{LEAST_IDLE}')",
            f"idleAfter must be at least {LEAST_IDLE}",
        ),
        rule(
            "!has(self.idleAfter) || self.mode == 'Auto'",
            "idleAfter needs mode Auto: in External an HPA or KEDA sets the number of workers, in Manual the spec "
            "does, and Observe changes nothing; use mode Auto, or remove idleAfter",
        ),
    )
