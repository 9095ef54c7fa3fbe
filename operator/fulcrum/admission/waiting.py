"""The queue of requests that would be refused now, but may be let in while they can still keep their promise. Pure.

Order: class priority, then weighted fair between clients, then the earliest deadline. Fair means start-time fair
queueing (Goyal, Vin and Cheng, 1996): each client has a virtual time, which advances with the tokens of its requests
that are let in, divided by its weight, and the client that is least far comes first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import inf
from typing import Final

import msgspec

from fulcrum.admission.decide import Admission
from fulcrum.admission.outcome import Admit, Preempt, Reject
from fulcrum.admission.tuning import TUNING
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.routing import ClusterView, Incoming

_POINTLESS: Final = (Reason.NEVER_FITS, Reason.TTFT_UNREACHABLE)
"""Why a request is refused at once. A predicted TTFT includes the wait in a worker's queue, and the promise passes as
quickly as that queue: only an error of the prediction would let such a request in later."""
_PREDICTIVE: Final = AdmissionPolicy.PREDICTIVE


class Client:
    """Who requests are fair between: an API key."""

    def __init__(self, name: str = "", weight: float = 1.0) -> None:
        self.name = name
        self.weight = weight


ANYONE: Final = Client()
"""Where no keys are asked for, all requests are of one client."""


SERVED: Final = "served"
EXPIRED: Final = "expired"
FULL: Final = "full"
LEFT: Final = "left"
OUTCOMES: Final = (SERVED, EXPIRED, FULL, LEFT)
"""What becomes of a request that could not be let in at once: let in later; refused, as it could be in time no more or
had waited for as long as it may; refused, as the queue was full; or given up by its client."""


class Waiting:
    """A request that waits."""

    def __init__(self, incoming: Incoming, client: Client, arrived_at: float, number: int, rejection: Reject) -> None:
        self.incoming = incoming
        self.client = client
        self.arrived_at = arrived_at
        self.number = number
        """In the order of arrival."""
        self.deadline = inf
        """When its promise ends: the order within a client."""
        self.until = inf
        """When it is refused."""
        self.rejection = rejection
        """Why it could not be let in at once. Later there is little time left for any path, which says nothing."""

    def at(self, now_seconds: float) -> Incoming:
        """The request as of now: so much of its promise is gone."""
        return msgspec.structs.replace(self.incoming, waited_seconds=max(now_seconds - self.arrived_at, 0.0))


Decision = Admit | Preempt | Reject
_Entry = tuple[float, int, Waiting]


class RequestQueue:
    """Requests of one gateway that wait."""

    def __init__(self, admission: Admission, *, max_wait_seconds: float, max_requests: int) -> None:
        self._admission = admission
        self._max_wait_seconds = max_wait_seconds
        self._max_requests = max_requests
        self.pass_seconds = TUNING.pass_share * admission.learnt.ttft_seconds
        """How often to call `settle` while requests wait."""
        self._ranks: list[dict[str, list[_Entry]]] = [{} for _ in sorted(set(admission.classes.ranks))]
        """By rank and client, sorted by deadline."""
        self._by_end: list[_Entry] = []
        """Sorted by `until`."""
        self._pushed_out: list[Waiting] = []
        self._weights: dict[str, float] = {}
        self._virtual: dict[str, float] = {}
        """Tokens over weight that each client was given, from a common beginning."""
        self._virtual_now = 0.0
        self._arrived = 0
        self.outcomes = {(name, outcome): 0 for name in admission.classes.names for outcome in OUTCOMES}
        """Requests, by class and what became of them."""
        self.waiting = [0] * len(admission.classes)
        """By class."""

    def __len__(self) -> int:
        return len(self._by_end)

    def arrive(self, incoming: Incoming, client: Client, decided: Decision, now_seconds: float) -> Waiting | None:
        """Let a request wait that is rejected now. `settle` before it is decided about.

        None: what is decided stands. It is let in, cannot be in time any more, or finds no place here.
        """
        if not isinstance(decided, Reject):
            if self._by_end:
                self._charge(client, incoming)
            return None
        if decided.reason in _POINTLESS:
            return None
        self._arrived += 1
        waiting = Waiting(incoming, client, now_seconds, self._arrived, decided)
        waiting.deadline = now_seconds + min(self._admission.learnt.ttft_seconds, incoming.ttft_seconds)
        waiting.until = self._until(waiting, decided)
        if waiting.until <= now_seconds:
            return None
        if not self._make_room(waiting):
            self._count(waiting, FULL)
            return None
        self._add(waiting)
        return waiting

    def settle(self, view: ClusterView, now_seconds: float) -> Iterator[tuple[Waiting, Decision]]:
        """Yield each request that waits no longer, with what is decided; start it before asking for the next one."""
        while self._pushed_out:
            yield self._refused(self._pushed_out.pop(), FULL)
        while self._by_end and self._by_end[0][0] <= now_seconds:
            waiting = self._by_end[0][2]
            decided = self._try(waiting, view, now_seconds)
            if decided is not None:
                yield waiting, decided
            elif waiting.until <= now_seconds:
                self._remove(waiting)
                yield self._refused(waiting, EXPIRED)
        refusals = 0
        refused: set[int] = set()
        while refusals < TUNING.pass_refusals:
            found = self._next(refused)
            if found is None:
                return
            decided = self._try(found, view, now_seconds)
            if decided is not None:
                yield found, decided
            else:
                refusals += 1
                refused.add(found.number)

    def leave(self, waiting: Waiting) -> None:
        """The client of a request has gone."""
        if waiting in self._pushed_out:
            self._pushed_out.remove(waiting)
        else:
            self._remove(waiting)
        self._count(waiting, LEFT)

    def _refused(self, waiting: Waiting, outcome: str) -> tuple[Waiting, Decision]:
        self._count(waiting, outcome)
        return waiting, waiting.rejection

    def _count(self, waiting: Waiting, outcome: str) -> None:
        self.outcomes[self._admission.classes.names[waiting.incoming.qos], outcome] += 1

    def _try(self, waiting: Waiting, view: ClusterView, now_seconds: float) -> Decision | None:
        """What to do with it; None: it may go on waiting."""
        incoming = waiting.at(now_seconds)
        decided = self._admission.consider(incoming, view, now_seconds, again=True)
        if isinstance(decided, Reject) and decided.reason is not Reason.NEVER_FITS:
            self._end(waiting, self._until(waiting, decided))
            return None
        self._remove(waiting)
        if isinstance(decided, Reject):
            self._count(waiting, EXPIRED)
        else:
            self._count(waiting, SERVED)
            self._charge(waiting.client, incoming)
        return decided

    def _add(self, waiting: Waiting) -> None:
        name = waiting.client.name
        if not self._by_end:
            self._virtual.clear()
            self._virtual_now = 0.0
        self._weights[name] = waiting.client.weight
        self._virtual[name] = max(self._virtual.get(name, 0.0), self._virtual_now)
        entries = self._ranks[self._rank(waiting)].setdefault(name, [])
        insort(entries, (waiting.deadline, waiting.number, waiting))
        insort(self._by_end, (waiting.until, waiting.number, waiting))
        self.waiting[waiting.incoming.qos] += 1

    def _until(self, waiting: Waiting, rejection: Reject) -> float:
        """When it has waited for as long as it may, or can keep its promise no longer, were nothing else there."""
        until = waiting.arrived_at + self._max_wait_seconds
        if self._admission.policy is not _PREDICTIVE:
            return until
        found, least_seconds = rejection.predicted, 0.0
        if found is not None and found.known:
            least_seconds = found.ttft_seconds - found.wait_seconds - found.hand_over.slot_seconds
        return min(until, waiting.deadline - least_seconds)

    def _make_room(self, newcomer: Waiting) -> bool:
        """Whether there is room for one more. Of a full queue, one makes way that is of a lower class, or of a client
        that has more than its share."""
        if len(self._by_end) < self._max_requests:
            return True
        rank = self._rank(newcomer)
        lowest = max(number for number, clients in enumerate(self._ranks) if clients)
        if lowest < rank:
            return False
        clients = self._ranks[lowest]
        most = max(clients, key=lambda name: len(clients[name]) / self._weights[name])
        if lowest == rank:
            client = newcomer.client
            own = (len(clients.get(client.name, ())) + 1) / client.weight
            if client.name == most or len(clients[most]) / self._weights[most] <= own:
                return False
        loser = clients[most][-1][2]
        self._remove(loser)
        self._pushed_out.append(loser)
        return True

    def _next(self, refused: set[int]) -> Waiting | None:
        """The first in order of those that were not refused in this pass."""
        for clients in self._ranks:
            best: Waiting | None = None
            best_key = (inf, inf)
            for name, entries in clients.items():
                waiting = next((entry[2] for entry in entries if entry[1] not in refused), None)
                if waiting is not None and (key := (self._virtual[name], waiting.deadline)) < best_key:
                    best, best_key = waiting, key
            if best is not None:
                return best
        return None

    def _charge(self, client: Client, incoming: Incoming) -> None:
        """A request of this client was let in while others wait."""
        begin = max(self._virtual.get(client.name, 0.0), self._virtual_now)
        self._virtual_now = begin
        self._virtual[client.name] = begin + (incoming.prompt_tokens + incoming.output_tokens) / client.weight

    def _end(self, waiting: Waiting, until: float) -> None:
        if until != waiting.until:
            del self._by_end[bisect_left(self._by_end, (waiting.until, waiting.number))]
            waiting.until = until
            insort(self._by_end, (until, waiting.number, waiting))

    def _remove(self, waiting: Waiting) -> None:
        del self._by_end[bisect_left(self._by_end, (waiting.until, waiting.number))]
        clients = self._ranks[self._rank(waiting)]
        entries = clients[waiting.client.name]
        del entries[bisect_left(entries, (waiting.deadline, waiting.number))]
        if not entries:
            del clients[waiting.client.name]
        self.waiting[waiting.incoming.qos] -= 1

    def _rank(self, waiting: Waiting) -> int:
        return self._admission.classes.ranks[waiting.incoming.qos]
