"""What gateways of a made-up cluster answer with: requests of one simulation, told again and again as time passes.

The pages are made by the gateway's own classes (metrics, ring), so that the operator reads what it would read of a real
gateway. What a gateway says of workers and connections is left out: the operator does not read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fulcrum.admission import Admission, state_of
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.record import Outcome, RingPage, pack_rows
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.gateway.dispatch.recorder import KEY_ENDS
from fulcrum.gateway.dispatch.request_ring import LONGEST_SECONDS, WANTED_SECONDS, Ring
from fulcrum.gateway.metrics.counts import DEFAULT_CLASS, Metrics, gauge
from fulcrum.gateway.metrics.slo import SloOutcome, judge_latency
from fulcrum.load.demand import promised
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.from_spec import cluster_model
from fulcrum.simulation.outcome import Outcome as Simulated
from fulcrum.simulation.policies.fixed import Fixed
from fulcrum.simulation.workload import Workload

REQUESTS_PER_SECOND: Final = 5.0
GATEWAYS: Final = 2
"""Of a cluster, by the default of `spec.gateway.replicas`; each has half of the requests."""
SPEED: Final = WorkerSpeed(
    coefficients=SpeedCoefficients.of(prefill=(0.01, 4e-5, 1e-9), decode=(0.01, 4e-4, 5e-8)), kv_capacity_tokens=400_000
)
_BYTES_PER_TOKEN: Final = 4
_SPREAD: Final = 0.4
"""Of the logarithm of lengths."""
_START_SECONDS: Final = 60.0
_OK: Final = 200
_TOO_MANY: Final = 429
_RETRY_AFTER_SECONDS: Final = 1.0
_UNKNOWN: Final = -1.0
_ROUTE: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Mix:
    """Mean lengths of requests."""

    prompt_tokens: float
    output_tokens: float


STEADY: Final = (Mix(2000, 200),)
"""All inside the promise with five prefill workers of ten."""
TROUBLED: Final = (Mix(20_000, 20), Mix(500, 1000))
"""With five prefill workers of ten 88 and 91 % are inside; the first one wants seven or eight, the other one three."""


def workload(mixes: tuple[Mix, ...], *, seconds: float, period_seconds: float) -> Workload:
    """Poisson arrivals, one mix after the other."""
    random = np.random.default_rng(1)
    gaps = random.exponential(1 / REQUESTS_PER_SECOND, int(1.2 * seconds * REQUESTS_PER_SECOND) + 100)
    arrivals = np.cumsum(gaps)
    arrivals = arrivals[arrivals < seconds]
    mix = (arrivals // period_seconds).astype(np.int64) % len(mixes)

    def lengths(means: list[float]) -> NDArray[np.int32]:
        drawn = random.lognormal(np.log(np.array(means)[mix]) - _SPREAD**2 / 2, _SPREAD)
        return np.maximum(1, np.round(drawn)).astype(np.int32)

    return Workload(
        arrival_seconds=arrivals,
        prompt_tokens=lengths([each.prompt_tokens for each in mixes]),
        output_tokens=lengths([each.output_tokens for each in mixes]),
        qos_class=np.zeros(len(arrivals), dtype=np.int16),
    )


class Recording:
    """The requests of one kind of cluster under one layout. After a cycle they come again.

    A time on its clock is `WANTED_SECONDS` to `WANTED_SECONDS + cycle_seconds`: a full ring lies before each of them.
    """

    def __init__(
        self, spec: InferenceClusterSpec, mixes: tuple[Mix, ...], *, prefill: int, decode: int, period_seconds: float
    ) -> None:
        self.cycle_seconds = period_seconds * len(mixes)
        load = workload(mixes, seconds=WANTED_SECONDS + self.cycle_seconds, period_seconds=period_seconds)
        workers = [("p", Role.PREFILL)] * prefill + [("p", Role.DECODE)] * decode
        self.slo = promised(spec)
        result = simulate(
            load,
            cluster_model(spec, profiles={"p": SPEED}, start_seconds=_START_SECONDS),
            Fixed(workers, admission=spec.admission.policy),
            slo=self.slo,
        )
        self.arrival, self.end, self.ttft = load.arrival_seconds, result.end_seconds, result.ttft_seconds
        self.tpot = result.tpot_seconds
        self.prompt, self.output = load.prompt_tokens, load.output_tokens
        self.served = result.outcome == Simulated.SERVED
        self.by_end = np.argsort(self.end, kind="stable")
        self.inside = float(result.within(self.slo).mean())
        state = Admission(
            spec.admission.policy,
            spec.admission.classes,
            ttft_seconds=self.slo.ttft_seconds,
            tpot_seconds=self.slo.tpot_seconds,
            attainment=self.slo.attainment,
            gateways=GATEWAYS,
        )
        self._page = RingPage(
            age_of_start_seconds=0.0, covers_from_seconds=0.0, classes=state.classes.names, batch=state.classes.batch,
            key_ends=KEY_ENDS, admission=state_of(state, 0.0),
        )  # fmt: skip
        self.ring_page = lru_cache(maxsize=64)(self._ring_page)

    def at(self, seconds: float) -> float:
        """Time on its clock, so long after the start."""
        return WANTED_SECONDS + seconds % self.cycle_seconds

    def _ring_page(self, at: int, gateway: int) -> bytes:
        """Return a gateway's answer to `GET /record?last=600` at a whole second of its clock."""
        ring = Ring()
        for place in self.by_end[self.end[self.by_end] <= at]:
            if place % GATEWAYS == gateway:
                arrival, ttft = float(self.arrival[place]), float(self.ttft[place])
                served = bool(self.served[place])
                ring.add(
                    arrival, float(self.end[place]) - arrival, ttft if served else _UNKNOWN,
                    _UNKNOWN if served else _RETRY_AFTER_SECONDS, int(self.prompt[place]), self._units(place),
                    int(self.output[place]) if served else -1, *_identity(int(place), self._units(place)),
                )  # fmt: skip
        kept = ring.read(at, WANTED_SECONDS)
        under_way = np.flatnonzero((self.arrival <= at) & (self.end > at))
        pending = [self._pending(int(place), at) for place in under_way if place % GATEWAYS == gateway]
        page = msgspec.structs.replace(
            self._page,
            age_of_start_seconds=float(at),
            covers_from_seconds=min(at - kept.covers_from, LONGEST_SECONDS),
            packed_rows=(*kept.pages, pack_rows(pending)),
        )
        return msgspec.msgpack.encode(page)

    def _units(self, place: Any) -> int:
        return _BYTES_PER_TOKEN * int(self.prompt[place])
