"""The gateway's decisions for each request: production admission and routing over the production view of workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fulcrum.admission import ANYONE, Admission, Admit, Preempt, Reject, RequestQueue, Waiting, capped
from fulcrum.api.admission_state import AdmissionState
from fulcrum.api.durations import seconds
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, AdmissionQueue, QosClass
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.kv import Tiers
from fulcrum.load.demand import LatencyTargets
from fulcrum.routing import AffinityMemory, Flight, Incoming, NoPath, Route, WorkerView, route, token_ends
from fulcrum.simulation.fleet import Pod
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.traffic import PREFIX_BLOCK_TOKENS
from fulcrum.simulation.worker import SimulatedWorker

_MOST_PREFIX_BLOCKS = 512
_AFFINITY_KEYS = 65_536


@dataclass(frozen=True, slots=True)
class Chosen:
    """The workers of a request; one and the same for a whole request."""

    prefill: SimulatedWorker
    decode: SimulatedWorker
    victims: Sequence[SimulatedRequest] = ()
    """Requests that make way for it: of lower classes those that wait for their prefill, and batch requests."""


class SimulatedGateway:
    """One gateway. It knows what a gateway knows: prompts as they come, and outputs only once they are over."""

    def __init__(
        self,
        *,
        slo: LatencyTargets,
        speeds: Mapping[str, WorkerSpeed],
        policy: AdmissionPolicy = AdmissionPolicy.OFF,
        classes: Sequence[QosClass] = (),
        two_legs: bool = False,
        gateways: int = 1,
        admits: Mapping[str, PoolAdmits | None] | None = None,
        transfers: Mapping[str, TransferCost] | None = None,
        queue: AdmissionQueue | None = None,
        learnt: AdmissionState | None = None,
    ) -> None:
        """`speeds` by pool are what agents report; a pool without one is unknown to the router. Of KV transfers they
        say nothing: `transfers` by pool is what gateways believe of them, until they have seen some.

        `gateways`: replicas that share the traffic evenly, of which this is one.

        `admits` of every pool of the spec; None: every pool takes every request.

        `two_legs`: no request is ever served by one worker alone. `queue`: where requests wait before they are refused.

        `learnt`: what its admission begins from, as the ring of a real gateway has it; None: nothing. Its workers are
        known by the names of Pods.
        """
        self._two_legs = two_legs
        self.admission = Admission(
            policy,
            classes,
            ttft_seconds=slo.ttft_seconds,
            tpot_seconds=slo.tpot_seconds,
            attainment=slo.attainment,
            gateways=gateways,
        )
        if learnt is not None:
            self.admission.learnt.begin_with(learnt, 0.0)
        memory = AffinityMemory(_AFFINITY_KEYS, token_ends(PREFIX_BLOCK_TOKENS, _MOST_PREFIX_BLOCKS))
        self.view = self.admission.new_view(memory, units_per_token=1.0)
        if admits is not None:
            self.view.workers.set_pools(admits)
        for pool, speed in speeds.items():
            self.view.workers.set_speed(pool, speed)
        for pool, cost in (transfers or {}).items():
            self.view.transfers.expect(pool, cost)
        self.tiers: Tiers | None = None
        """What all workers report to have below their KV caches."""
        self._ranks: dict[str, tuple[SimulatedWorker, ...]] = {}
        """By worker."""
        self._requests: dict[Flight, SimulatedRequest] = {}
        self._flights: dict[int, Flight] = {}
        self.queue: RequestQueue | None = None
        if queue is not None:
            self.queue = RequestQueue(
                self.admission, max_wait_seconds=seconds(queue.max_wait), max_requests=queue.max_requests
            )
        self._waiting: dict[Waiting, SimulatedRequest] = {}

    def changed(self, pod: Pod) -> None:
        """What the watch of Pods reports: a worker came, went, or has another role."""
        if not pod.ranks or pod.deleting:
            self._ranks.pop(pod.name, None)
            self.view.workers.remove(pod.name)
        else:
            self._ranks[pod.name] = pod.ranks
            self.view.workers.put(
                pod.name,
                pod.ranks[0].role,
                pool=pod.pool.name,
                revision="1",
                incarnation=f"{pod.uid}/{pod.restarts}",
                data_parallel=len(pod.ranks),
            )
            self.view.workers.set_tiers(pod.name, self.tiers)

    def ranks(self, names: Iterable[str | None]) -> dict[str | None, int] | None:
        """Return in which order engines serve requests of each of these classes; None when all of them are alike."""
        of_class = self.admission.classes.ranks
        ranks = {name: of_class[self._qos(name)] for name in names}
        return ranks if len(set(ranks.values())) > 1 else None

    def _qos(self, name: str | None) -> int:
        table = self.admission.classes
        index = table.index(name) if name is not None else None
        return index if index is not None else table.rest

    def choose(self, request: SimulatedRequest, now: float) -> Chosen | Reason | None:
        """Decide about a request, and take it for started; None: it waits, and `settle` yields it later.

        A request that was tried before has been admitted already; it is routed around the workers that lost it.
        """
        incoming = self.admission.incoming(
            prompt_tokens=request.prompt,
            qos=self._qos(request.qos_class),
            prefix=request.prefix_ids[: min(request.prompt // PREFIX_BLOCK_TOKENS, _MOST_PREFIX_BLOCKS)],
            units_per_token=1.0,
        )
        request.expected = self.admission.learnt.outputs.mean(incoming.qos, incoming.prompt_tokens)
        if self._two_legs:
            incoming = msgspec.structs.replace(incoming, two_legs=True)
        if request.tried:
            incoming = msgspec.structs.replace(incoming, exclude=frozenset(request.tried))
            found = route(incoming, self.view, now)
            return self._start(request, incoming, found, (), now) if isinstance(found, Route) else _unserved(found)
        decided = self.admission.consider(incoming, self.view, now)
        if self.queue is not None and (waiting := self.queue.arrive(incoming, ANYONE, decided, now)) is not None:
            self._waiting[waiting] = request
            return None
        return self._chosen(request, incoming, decided, now)

    def settle(self, now: float) -> Iterator[tuple[SimulatedRequest, Chosen | Reason]]:
        """Yield the requests that wait no longer, let in or refused."""
        if self.queue is not None:
            for waiting, decided in self.queue.settle(self.view, now):
                request = self._waiting.pop(waiting)
                yield request, self._chosen(request, waiting.at(now), decided, now)

    def _chosen(
        self, request: SimulatedRequest, incoming: Incoming, decided: Admit | Preempt | Reject, now: float
    ) -> Chosen | Reason:
        if isinstance(decided, Reject):
            self.admission.refuse(incoming, decided)
            return decided.reason
        if decided.output_cap is not None:
            incoming = capped(incoming, decided.output_cap)
        victims = decided.victims if isinstance(decided, Preempt) else ()
        return self._start(request, incoming, decided.route, victims, now)

    def _start(
        self, request: SimulatedRequest, incoming: Incoming, found: Route, victims: Sequence[Flight], now: float
    ) -> Chosen:
        aborted = [self._requests[flight] for flight in victims]
        flight = self.view.start(incoming, found, now)
        self._requests[flight] = request
        self._flights[request.index] = flight
        return Chosen(self._of(found.prefill), self._of(found.decode), aborted)

    def _of(self, view: WorkerView) -> SimulatedWorker:
        return self._ranks[view.worker][view.dp_rank or 0]

    def prefilled(self, request: SimulatedRequest, now: float) -> None:
        """The prefill leg was answered, or the first token of a whole request came."""
        self.view.prefill_done(self._flights[request.index], now)

    def pulled(self, request: SimulatedRequest, at: float) -> None:
        """The first token of a decode leg came."""
        self.view.pulled(self._flights[request.index], at)

    def ended(self, request: SimulatedRequest, now: float, *, served: bool) -> None:
        """An attempt is over."""
        flight = self._flights.pop(request.index, None)
        if flight is None:
            return
        del self._requests[flight]
        self.view.finish(flight, now)
        if not served:
            return
        request.expected = self.admission.learnt.outputs.mean(flight.load.qos, request.prompt)
        first = request.first_token_seconds
        self.admission.learnt.learn(
            flight,
            ttft_seconds=first - request.arrival_seconds if request.attempts == 1 else None,
            tpot_seconds=(now - first) / (request.output - 1) if request.output > 1 else None,
            output_tokens=request.output,
        )


def _unserved(found: NoPath) -> Reason:
    return Reason.NEVER_FITS if found is NoPath.NO_POOL else Reason.NO_WORKER
