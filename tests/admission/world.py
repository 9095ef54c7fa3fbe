"""Ideal workers: they do what the speed model says, prompt by prompt and by priority. Nothing is random here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fulcrum.admission import Admission, Preempt, Reject
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy, QosClass
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import ClusterView, Flight

TTFT_SECONDS = 1.0
TPOT_SECONDS = 0.05
SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.0, prefill_b=1e-4, prefill_c=0.0, decode_a=0.01, decode_b=1e-3, decode_c=0.0
    ),
    kv_capacity_tokens=200_000,
)
"""A prompt of 1,000 tokens takes 0.1 s; 40 requests decode at 50 ms a token."""
SHORT_STEPS = replace(SPEED, max_batched_tokens=1000)
"""One prompt a step, as a rule: what comes later waits, and can be overtaken."""


def make(
    policy: AdmissionPolicy = AdmissionPolicy.PREDICTIVE,
    classes: Iterable[QosClass] = (),
    *,
    prefills: int = 1,
    decodes: int = 1,
    speed: WorkerSpeed | None = SPEED,
) -> tuple[Admission, ClusterView]:
    admission = Admission(policy, tuple(classes), ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS)
    view = admission.new_view()
    if speed is not None:
        view.set_speed("pool", speed)
    for number in range(prefills):
        view.put(f"p{number}", Role.PREFILL, pool="pool")
    for number in range(decodes):
        view.put(f"d{number}", Role.DECODE, pool="pool")
    return admission, view


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request of a given length, at a given time."""

    at: float
    prompt_tokens: int
    output_tokens: int
    qos: int = 0


@dataclass
class Served:
    """What became of an arrival."""

    arrival: Arrival
    flight: Flight
    prefill_left: float
    made: float = 0.0
    first_at: float | None = None
    ended_at: float | None = None
    preempted: bool = False
    begun: bool = False

    @property
    def ttft_seconds(self) -> float:
        assert self.first_at is not None
        return self.first_at - self.arrival.at

    @property
    def tpot_seconds(self) -> float:
        assert self.first_at is not None
        assert self.ended_at is not None
        return (self.ended_at - self.first_at) / max(self.arrival.output_tokens - 1, 1)

    @property
    def good(self) -> bool:
        return self.ttft_seconds <= TTFT_SECONDS and self.tpot_seconds <= TPOT_SECONDS


@dataclass
class World:
    """Runs arrivals through an admission; `slowness`: how much slower than predicted the workers are."""

    admission: Admission
    view: ClusterView
    slowness: float = 1.0
    blind: bool = True
    """Output lengths are not known beforehand."""
    tick_seconds: float = 0.005
    now: float = 0.0
    served: list[Served] = field(default_factory=list)
    rejected: list[tuple[Arrival, Reject]] = field(default_factory=list)
    active: dict[Flight, Served] = field(default_factory=dict)

    def run(self, arrivals: Iterable[Arrival], drain_seconds: float = 300.0) -> None:
        waiting = sorted(arrivals, key=lambda one: one.at)
        waiting.reverse()
        until = waiting[0].at + drain_seconds
        while (waiting or self.active) and self.now < until:
            self.now += self.tick_seconds
            while waiting and waiting[-1].at <= self.now:
                self.arrive(waiting.pop())
            self._work()

    def arrive(self, arrival: Arrival) -> bool:
        """Whether it was let in."""
        incoming = self.admission.incoming(
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=None if self.blind else arrival.output_tokens,
            qos=arrival.qos,
        )
        outcome = self.admission.decide(incoming, self.view, self.now)
        if isinstance(outcome, Reject):
            self.rejected.append((arrival, outcome))
            return False
        if isinstance(outcome, Preempt):
            for victim in outcome.victims:
                self.view.finish(victim, self.now)
                self.active.pop(victim).preempted = True
        flight = self.view.start(incoming, outcome.route, self.now)
        one = Served(arrival, flight, flight.work_seconds * self.slowness)
        self.served.append(one)
        self.active[flight] = one
        return True

    def _work(self) -> None:
        heads: dict[str, Served] = {}
        batches: dict[str, list[Served]] = {}
        for one in list(self.active.values()):
            flight = one.flight
            if one.first_at is None:
                head = heads.get(flight.prefill.name)
                if head is None or self._before(one, head):
                    heads[flight.prefill.name] = one
            else:
                batches.setdefault(flight.decode.name, []).append(one)
        for one in heads.values():
            one.begun = True
            one.prefill_left -= self.tick_seconds
            if one.prefill_left <= 1e-9:
                one.first_at = self.now
                one.made = 1.0
                self.view.prefill_done(one.flight, self.now)
        for batch in batches.values():
            speed = batch[0].flight.decode.speed
            context = sum(one.arrival.prompt_tokens + one.made for one in batch)
            step = speed.decode_step_seconds(len(batch), context) * self.slowness
            for one in batch:
                one.made += self.tick_seconds / step
                if one.made >= one.arrival.output_tokens:
                    one.ended_at = self.now
                    self._end(one)

    def _before(self, one: Served, other: Served) -> bool:
        """As engines do: what has begun goes on, then by priority, then first come, first served."""
        if one.begun or other.begun:
            return one.begun
        return self.view.ranks[one.flight.qos] < self.view.ranks[other.flight.qos]

    def _end(self, one: Served) -> None:
        del self.active[one.flight]
        self.view.finish(one.flight, self.now)
        self.admission.learn(
            one.flight,
            ttft_seconds=one.ttft_seconds,
            tpot_seconds=one.tpot_seconds,
            output_tokens=one.arrival.output_tokens,
        )


def steady(
    rate: float, seconds: float, *, prompt_tokens: int = 1000, output_tokens: int = 50, qos: int = 0, at: float = 0.0
) -> list[Arrival]:
    """Equal requests at equal distances."""
    return [
        Arrival(at=at + number / rate, prompt_tokens=prompt_tokens, output_tokens=output_tokens, qos=qos)
        for number in range(int(rate * seconds))
    ]
