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

from fulcrum.admission import Admission
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
            key_ends=KEY_ENDS, admission=state.learnt.state(0.0),
        )  # fmt: skip
        self.ring_page = lru_cache(maxsize=64)(self._ring_page)

    def at(self, seconds: float) -> float:
        """Time on its clock, so long after the start."""
        return WANTED_SECONDS + seconds % self.cycle_seconds

    def _ring_page(self, at: int, gateway: int) -> bytes:
        """Return a gateway's answer to `GET /record?last=600` at a whole second of its clock."""
        ring = Ring()
        for place in self.by_end[self.end[self.by_end] <= at].tolist():
            if place % GATEWAYS == gateway:
                served = bool(self.served[place])
                ring.add(
                    float(self.arrival[place]), float(self.end[place] - self.arrival[place]),
                    float(self.ttft[place]) if served else _UNKNOWN, _UNKNOWN if served else _RETRY_AFTER_SECONDS,
                    int(self.prompt[place]), _units(self.prompt[place]), int(self.output[place]) if served else -1,
                    place + 1, 0, Outcome.SERVED if served else Outcome.REJECTED,
                    _keys(place, _units(self.prompt[place])),
                )  # fmt: skip
        kept = ring.read(at, WANTED_SECONDS)
        under_way = np.flatnonzero((self.arrival <= at) & (self.end > at)).tolist()
        pending = [self._pending(place, at) for place in under_way if place % GATEWAYS == gateway]
        page = msgspec.structs.replace(
            self._page,
            age_of_start_seconds=float(at),
            covers_from_seconds=min(at - kept.covers_from, LONGEST_SECONDS),
            packed_rows=(*kept.pages, pack_rows(pending)),
        )
        return msgspec.msgpack.encode(page)

    def _pending(self, place: int, at: int) -> tuple[Any, ...]:
        """Return the row of a request that is under way: its tokens come evenly."""
        arrival, ttft, units = float(self.arrival[place]), float(self.ttft[place]), _units(self.prompt[place])
        decoded = at - arrival - ttft
        made = 1 + int(decoded / float(self.tpot[place])) if decoded >= 0 else 0
        return (
            arrival, at - arrival, ttft if made else _UNKNOWN, _UNKNOWN, int(self.prompt[place]), units,
            min(made, int(self.output[place])), place + 1, place, 0, Outcome.PENDING, _keys(place, units),
        )  # fmt: skip

    def between(self, begin: float, end: float) -> tuple[list[int], list[int]]:
        """Return the requests of one gateway that came, and those that ended, from `begin` to `end` on its clock.

        Where `end` is before `begin`, a cycle has ended meanwhile.
        """
        if end < begin:
            parts = [self.between(begin, WANTED_SECONDS + self.cycle_seconds), self.between(WANTED_SECONDS, end)]
            return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
        came, ended = ((times > begin) & (times <= end) for times in (self.arrival, self.end))
        return (
            [place for place in np.flatnonzero(came).tolist() if place % GATEWAYS == 0],
            [place for place in np.flatnonzero(ended).tolist() if place % GATEWAYS == 0],
        )


class Counted:
    """What one gateway has counted so far; both gateways of a cluster say the same."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        """May become another one."""
        self._metrics = Metrics(model="m")
        self._at: float | None = None
        self._page = (-1.0, b"")

    def page(self, seconds: float) -> bytes:
        """Return the answer to `GET /metrics` so long after the start; it is made anew each second."""
        if seconds - self._page[0] >= 1.0 or self._at is None:
            at = self.recording.at(seconds)
            came, ended = ([], []) if self._at is None else self.recording.between(self._at, at)
            self._at = at
            for place in came:
                self._arrived(place)
            for place in ended:
                self._ended(place)
            info = gauge("info", "1 for each gateway that is scraped.", ("model", "pod"), [(("m", ""), 1.0)])
            self._page = (seconds, self._metrics.render([info]))
        return self._page[1]

    def _arrived(self, place: int) -> None:
        counts, prompt = self._metrics.of_class(DEFAULT_CLASS), float(self.recording.prompt[place])
        counts.arrivals += 1
        counts.arrived_prompt_tokens.add(prompt)
        counts.arrived_prompt_tokens_squared.add(prompt * prompt)
        counts.arrived_output_tokens.add(float(self.recording.output[place]))

    def _ended(self, place: int) -> None:
        """Count as `gateway.dispatch.accounting` does; what was expected of a request is what it came to."""
        known, counts = self.recording, self._metrics.of_class(DEFAULT_CLASS)
        prompt, output = float(known.prompt[place]), int(known.output[place])
        counts.prompt_tokens.observe(prompt)
        counts.expected_prompt_tokens.add(prompt)
        self._metrics.duration_seconds.observe(float(known.end[place] - known.arrival[place]))
        if not known.served[place]:
            self._metrics.requests[_ROUTE, _TOO_MANY, Reason.OVERLOADED.value, DEFAULT_CLASS] += 1
            counts.slo[SloOutcome.REJECTED] += 1
            return
        self._metrics.requests[_ROUTE, _OK, "", DEFAULT_CLASS] += 1
        ttft, tpot = float(known.ttft[place]), float(known.tpot[place]) if output > 1 else None
        counts.output_tokens.observe(output)
        counts.expected_output_tokens.add(output)
        counts.ttft_seconds.observe(ttft)
        if tpot is not None:
            counts.tpot_seconds.observe(tpot)
        judged = judge_latency(
            ttft_seconds=ttft,
            tpot_seconds=tpot,
            slo_ttft_seconds=known.slo.ttft_seconds,
            slo_tpot_seconds=known.slo.tpot_seconds,
        )
        assert judged is not None
        counts.slo[judged] += 1


class Recordings:
    """The recordings of both kinds of clusters, made when they are first asked for: each takes seconds."""

    def __init__(self, spec: InferenceClusterSpec, *, period_seconds: float) -> None:
        self._workers = sum(pool.workers.max for pool in spec.pools)
        self.steady = Recording(spec, STEADY, prefill=5, decode=self._workers - 5, period_seconds=2 * period_seconds)
        self._troubled = cache(
            lambda prefill: Recording(
                spec, TROUBLED, prefill=prefill, decode=self._workers - prefill, period_seconds=period_seconds
            )
        )

    def troubled(self, prefill: int) -> Recording:
        """Return that of a troubled cluster with so many prefill workers."""
        return self._troubled(min(max(prefill, 1), self._workers - 1))

    def make_all(self) -> None:
        """Make those of every layout."""
        for prefill in range(1, self._workers):
            self.troubled(prefill)


def _units(prompt_tokens: Any) -> int:
    return _BYTES_PER_TOKEN * int(prompt_tokens)


def _keys(place: int, units: int) -> tuple[int, ...]:
    """Return the prefix keys of a prompt that shares nothing with others, as long as real ones."""
    count = sum(end <= units for end in KEY_ENDS)
    return tuple((1 << 63) + (place << 8) + depth for depth in range(count))
