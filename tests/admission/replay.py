"""Traffic of every kind through admission and routing; prints one line for each decision. A script of its own, so that
the same traffic can be decided by the compiled and by the plain code.

    python tests/admission/replay.py SEEDS
"""

from __future__ import annotations

import random
import sys
from heapq import heappop, heappush
from math import inf

from fulcrum.admission import Admission, Admit, Preempt, Reject
from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.api.serving_types import AdmissionPolicy, QosClass
from fulcrum.api.worker import LoadReport, SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import ClusterView, Flight, Incoming
from fulcrum.routing.flight import ENDED, PREFILLING

CLASSES = (
    QosClass(name="a", priority=100, reserved=0.1),
    QosClass(name="b", priority=50, reserved=0.3),
    QosClass(name="c", priority=10),
)
REQUESTS = 400


class Replay:
    """One cluster and the traffic that comes to it."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        policy = chance.choice((*AdmissionPolicy, AdmissionPolicy.PREDICTIVE))
        classes = CLASSES if seed % 4 else ()
        self.admission = Admission(policy, classes, ttft_seconds=1.0, tpot_seconds=0.05, gateways=chance.choice((1, 2)))
        self.view = self.admission.new_view()
        self.now = 0.0
        self.events: list[tuple[float, int, Flight]] = []
        self._build(len(classes))

    def _build(self, classes: int) -> None:
        chance, view = self.chance, self.view
        for pool in ("x", "y"):
            if chance.random() < 0.9:
                view.workers.set_speed(pool, self._speed())
                moving = TransferCost(base_seconds=0.002, seconds_per_token=chance.choice((0.0, 1e-6, 1e-4)))
                view.transfers.expect(pool, moving)
        some = (Role.PREFILL, Role.DECODE, Role.DECODE, Role.MIXED, Role.DRAINING)
        roles = [Role.PREFILL, Role.DECODE, *chance.choices(some, k=chance.choice((0, 2, 7)))]
        for number, role in enumerate(roles):
            pool, revision = chance.choice("xxxy"), chance.choice("rrrs")
            view.workers.put(f"w{number}", role, pool=pool, revision=revision, node=f"n{number % 3}")
        if chance.random() < 0.3:
            only = ("b",) if classes else ()
            view.workers.set_pools(
                {"x": PoolAdmits(max_prompt_tokens=3000), "y": PoolAdmits(min_prompt_tokens=500, classes=only)}
            )

    def _speed(self) -> WorkerSpeed:
        chance = self.chance
        return WorkerSpeed(
            coefficients=SpeedCoefficients(
                prefill_a=chance.choice((0.0, 0.008)), prefill_b=3e-5, prefill_c=1e-10,
                decode_a=0.012, decode_b=chance.choice((2e-5, 4e-4)), decode_c=2e-8,
            ),
            kv_capacity_tokens=chance.choice((0, 50_000, 800_000)),
            max_batch=chance.choice((16, 256)),
        )  # fmt: skip

    def run(self) -> list[str]:
        rate = self.chance.choice((5, 50, 200, 500))
        lines = []
        for number in range(REQUESTS):
            self.now += self.chance.expovariate(rate)
            self._pass_time()
            self._disturb()
            incoming = self._incoming()
            decided = self.admission.decide(incoming, self.view, self.now)
            lines.append(self._decided(incoming, decided, number))
        return lines

    def _decided(self, incoming: Incoming, decided: Admit | Preempt | Reject, number: int) -> str:
        if isinstance(decided, Reject):
            return f"{decided.reason} {decided.retry_after_seconds}"
        found = decided.route
        victims = decided.victims if isinstance(decided, Preempt) else ()
        for victim in victims:
            self.view.finish(victim, self.now)
        flight = self.view.start(incoming, found, self.now)
        prefilled = self.now + found.ttft_seconds * self.chance.uniform(0.5, 3)
        heappush(self.events, (prefilled, number, flight))
        there = found.hand_over
        figures = (
            f"{found.ttft_seconds!r} {found.tpot_seconds!r} {found.slowest_seconds!r} {there.kv_tokens!r} "
            f"{found.cached_tokens!r}"
        )
        return f"{found.prefill.name} {found.decode.name} {figures} {len(victims)}"

    def _incoming(self) -> Incoming:
        chance = self.chance
        conversation, depth = chance.randint(0, 30), chance.randint(0, 8)
        return self.admission.incoming(
            prompt_tokens=max(chance.lognormvariate(6.5, 1), depth * 140.0),
            max_tokens=chance.choice((None, 10, 300)),
            qos=chance.randrange(len(self.admission.classes)),
            prefix=tuple(conversation * 100 + block for block in range(depth)),
            units_per_token=4.0,
            ttft_seconds=chance.choice((inf, 0.3)),
            tpot_seconds=chance.choice((inf, 0.03)),
            whole=chance.random() < 0.05,
        )

    def _pass_time(self) -> None:
        chance, view = self.chance, self.view
        while self.events and self.events[0][0] <= self.now:
            at, number, flight = heappop(self.events)
            if flight.phase == ENDED:
                continue
            if flight.phase == PREFILLING:
                view.prefill_done(
                    flight, at, prompt_tokens=chance.choice((None, int(flight.load.prompt_tokens * 1.05)))
                )
                if chance.random() < 0.7:
                    view.pulled(flight, at + chance.choice((0.01, 0.1, 1.0)))
                heappush(self.events, (at + flight.load.output_tokens * 0.013 * chance.uniform(0.5, 2), number, flight))
                continue
            view.finish(flight, at)
            ttft_seconds = flight.route.ttft_seconds * chance.uniform(0.5, 2)
            tpot_seconds = flight.route.tpot_seconds * chance.uniform(0.7, 1.5)
            flight.served(ttft_seconds=ttft_seconds, tpot_seconds=tpot_seconds)
            self.admission.learnt.learn(
                flight, ttft_seconds=ttft_seconds, tpot_seconds=tpot_seconds, output_tokens=chance.randint(1, 600)
            )

    def _disturb(self) -> None:
        chance, view = self.chance, self.view
        what, worker = chance.random(), chance.choice(list(view.workers.by_name.values()))
        if what < 0.01:
            view.workers.failed(worker, self.now)
        elif what < 0.03:
            view.workers.worked(worker)
        elif what < 0.05:
            view.tick(self.now)
        elif what < 0.07:
            report = LoadReport(
                role=worker.role, role_epoch=0, ready=True, draining=False, running=chance.randint(0, 40),
                waiting=chance.randint(0, 5), kv_usage=chance.random(), queued_prompt_tokens=chance.randint(0, 5000),
            )  # fmt: skip
            view.report(worker.name, report, self.now)
        elif what < 0.075:
            view.workers.put(
                "w1", chance.choice((Role.DECODE, Role.PREFILL, Role.MIXED)), pool="x", revision="r", node="n1"
            )


def decisions(view: type[ClusterView]) -> str:
    """Where the code is that decides."""
    return sys.modules[view.__module__].__file__ or ""


if __name__ == "__main__":
    print(decisions(ClusterView), file=sys.stderr)
    for seed in range(int(sys.argv[1])):
        for line in Replay(seed).run():
            print(seed, line)
