"""Ideal workers: they do what the speed model says, prompt by prompt and by priority. Nothing is random here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

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
        view.workers.set_speed("pool", speed)
    for number in range(prefills):
        view.workers.put(f"p{number}", Role.PREFILL, pool="pool")
    for number in range(decodes):
        view.workers.put(f"d{number}", Role.DECODE, pool="pool")
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
    number: int
    """Of arrival."""
    first_at: float | None = None
    ended_at: float | None = None
    preempted: bool = False

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
class PromptQueue:
    """Prompts of one worker. As engines do: what has begun goes on, then by priority, then first come, first served."""

    waiting: list[tuple[int, int, Served]] = field(default_factory=list)
    """A heap of (rank, number, request)."""
    begun: Served | None = None

    def head(self) -> Served | None:
        """What is computed now."""
        while (self.begun is None or self.begun.preempted) and self.waiting:
            self.begun = heappop(self.waiting)[2]
        return None if self.begun is None or self.begun.preempted else self.begun


@dataclass
class Batch:
    """Requests that decode on one worker. All make tokens at one pace, so that one count is enough for all of them."""

    speed: WorkerSpeed
    context: float = 0.0
    """Tokens of all requests, prompts included."""
    made: float = 0.0
    """Tokens that a request has made which is in it from the beginning."""
    ends: list[tuple[float, int, Served]] = field(default_factory=list)
    """A heap of (`made` at the end of the request, number, request)."""

    def join(self, one: Served) -> None:
        """The first token is made in prefill."""
        self.context += one.arrival.prompt_tokens + 1.0
        heappush(self.ends, (self.made + one.arrival.output_tokens - 1.0, one.number, one))

    def step(self, seconds: float, slowness: float) -> list[Served]:
        """Make tokens for `seconds`; returns the requests that have all of theirs."""
        step_seconds = self.speed.decode_step_seconds(len(self.ends), self.context) * slowness
        self.made += seconds / step_seconds
        self.context += len(self.ends) * seconds / step_seconds
        ended = []
        while self.ends and self.ends[0][0] <= self.made:
            end, _, one = heappop(self.ends)
            self.context -= one.arrival.prompt_tokens + one.arrival.output_tokens + self.made - end
            ended.append(one)
        return ended


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
    queues: dict[str, PromptQueue] = field(default_factory=lambda: defaultdict(PromptQueue))
    batches: dict[str, Batch] = field(default_factory=dict)

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
        one = Served(arrival, flight, flight.load.work_seconds * self.slowness, number=len(self.served))
        queue = self.queues[flight.prefill.name]
        heappush(queue.waiting, (self.view.ranks[flight.load.qos], one.number, one))
        self.served.append(one)
        self.active[flight] = one
        return True

    def _work(self) -> None:
        prefilled = []
        for queue in self.queues.values():
            one = queue.head()
            if one is None:
                continue
            one.prefill_left -= self.tick_seconds
            if one.prefill_left <= 1e-9:
                queue.begun = None
                one.first_at = self.now
                self.view.prefill_done(one.flight, self.now)
                prefilled.append(one)
        for batch in self.batches.values():
            if batch.ends:
                for one in batch.step(self.tick_seconds, self.slowness):
                    one.ended_at = self.now
                    self._end(one)
        for one in prefilled:
            worker = one.flight.decode
            if worker.name not in self.batches:
                self.batches[worker.name] = Batch(worker.engine.speed)
            self.batches[worker.name].join(one)

    def _end(self, one: Served) -> None:
        del self.active[one.flight]
        self.view.finish(one.flight, self.now)
        self.admission.learnt.learn(
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
