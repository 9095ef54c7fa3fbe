"""What the balance knows about load, latency and speed. An absent part is unknown, which is never zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt

from fulcrum.api.adapter_types import AdapterStatus
from fulcrum.api.gateway import LearntRate, PairsReport
from fulcrum.api.status import BatchesStatus, KvTierStatus
from fulcrum.api.types import Recommendation
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.peak import Peak
from fulcrum.decide.rehearsed import Rehearsed
from fulcrum.decide.tuning import TUNING
from fulcrum.forecast.result import Forecast
from fulcrum.load.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What a comparison of the pools with a new plan came to."""

    recommendation: Recommendation | None
    """None: no other pools would carry clearly more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """Whether anyone asks for the model, as all gateways together see it."""

    held: int = 0
    """Requests that wait for a worker."""
    idle_seconds: float | None = None
    """Since the last request was in progress; None: there was none since the gateways started."""
    quiet_seconds: float | None = None
    """How long there was surely no request; None: a gateway was not heard."""
    silent_seconds: float = 0.0
    """Since when not all gateways were heard."""
    first_token_seconds: float | None = None
    """Longest time to first token of the requests that the last wake held."""


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
    """What each gateway that answered found of pairs, and learnt of transfers; in every mode."""
    kv_tiers: Mapping[str, KvTierStatus] = field(default_factory=dict)
    """Host memory and KV pool, by pool of workers, for people; in every mode."""
    adapters: tuple[AdapterStatus, ...] = ()
    """LoRA adapters on the workers, for people; in every mode."""
    batches: BatchesStatus | None = None
    """Batches of OpenAI's API, for people; in every mode."""
    drift: Drift | None = None
    """Whether other pools would carry more; None: not known, and what the status says of it stands."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """By uid of the worker: how long it takes for its work, in times of its pool's speed; in every mode."""
    callers: Callers | None = None
    """Read only with `balance.idleAfter`."""
    load_expected_seconds: float | None = None
    """Until load is expected, from earlier days; 0: now. None: not known, or not within a season."""
    rehearses: bool = False
    """Roles change by what rehearsals say, and only by that; else only beyond doubt."""
    rehearsed: Rehearsed | None = None
    """The last answer; None: there is none yet."""
    plays_distrusted: bool = False
    """What rehearsals foretold did not come, several times in a row: they change no role, no worker is given back."""
    unknown: str | None = None
    """Why traffic is unknown, for people: names the source and what to look at."""


def learnt_transfers(reports: Iterable[PairsReport]) -> dict[tuple[str, str], TransferCost]:
    """Return what gateways have learnt of KV transfers, by prefill and decode pool: the mean over transfers.

    Transfers within a node count only where there are no others.
    """
    found: dict[tuple[str, str], list[LearntRate]] = {}
    for report in reports:
        for rate in report.rates:
            if rate.transfers > 0 and 0 <= rate.base_seconds < inf and 0 <= rate.seconds_per_token < inf:
                found.setdefault((rate.prefill_pool, rate.decode_pool), []).append(rate)
    return {pair: _mean([rate for rate in rates if not rate.near] or rates) for pair, rates in found.items()}


def _mean(rates: Sequence[LearntRate]) -> TransferCost:
    transfers = sum(rate.transfers for rate in rates)
    return TransferCost(
        base_seconds=sum(rate.transfers * rate.base_seconds for rate in rates) / transfers,
        seconds_per_token=sum(rate.transfers * rate.seconds_per_token for rate in rates) / transfers,
    )


def served_share(traffic: Traffic) -> float:
    """Return the share of admitted requests inside the SLO; 1 where it was not measured.

    That some were turned away is no fault of the roles.
    """
    admitted = 1 - (traffic.rejected or 0.0)
    if traffic.attainment is None or admitted <= 0:
        return 1.0
    return min(traffic.attainment / admitted, 1.0)


def deviation(traffic: Traffic, share: float) -> float:
    """Return by how much a measured share may differ from `share` by chance."""
    seen = traffic.rate * traffic.window_seconds * (1 - (traffic.rejected or 0.0))
    return TUNING.noise_sigmas * sqrt(share * (1 - share) / max(seen, 1.0))
