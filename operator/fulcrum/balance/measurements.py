"""What the balance knows about load, latency and speed. An absent part is unknown, which is never zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fulcrum.api.gateway import PairsReport
from fulcrum.api.status import KvTierStatus
from fulcrum.api.types import Recommendation
from fulcrum.balance.peak import Peak
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.forecast.result import Forecast
from fulcrum.load.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What a comparison of the pools with a new plan came to."""

    recommendation: Recommendation | None
    """None: no other pools would carry clearly more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Input of an automatic decision."""

    traffic: Traffic | None = None
    """None: the source of metrics is down, slow, empty or partial; the decision holds what there is."""
    forecast: Forecast | None = None
    speeds: Mapping[str, WorkerSpeed] = field(default_factory=dict)
    """By pool; a pool without one is unknown."""
    start_seconds: float | None = None
    """Measured time from the creation of a Pod to its readiness."""
    peak: Peak | None = None
    """The most over `balance.scaleDown.stabilization`; None while the history does not reach back that far."""
    pairs: tuple[PairsReport, ...] = ()
    """What the canaries of each gateway that answered found; in every mode."""
    kv_tiers: Mapping[str, KvTierStatus] = field(default_factory=dict)
    """Host memory and KV pool, by pool of workers, for people; in every mode."""
    drift: Drift | None = None
    """Whether other pools would carry more; None: not known, and what the status says of it stands."""
    unknown: str | None = None
    """Why traffic is unknown, for people: names the source and what to look at."""
