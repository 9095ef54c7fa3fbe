"""The gateways of a cluster: each decides about its part of the requests, and tells the others what it sent where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fulcrum.api.reasons import Reason
from fulcrum.routing import learn_batch, take_batch
from fulcrum.simulation.fleet import Pod
from fulcrum.simulation.load_report import load_report
from fulcrum.simulation.simulated_gateway import Chosen, SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest

_KNUTH: Final = 2_654_435_761
"""Multiplier of a multiplicative hash (Knuth, The Art of Computer Programming, volume 3, section 6.4)."""


class Gateways:
    """Has the methods of one gateway. Requests are spread by a hash of their number, as connections are."""

    def __init__(self, gateways: Sequence[SimulatedGateway]) -> None:
        """At least one gateway."""
        self._gateways = tuple(gateways)
        for gateway in self._gateways:
            gateway.view.affinity.share(others=self.several)

    @property
    def several(self) -> bool:
        """Report whether there is more than one: only then load reports say anything that is not known."""
        return len(self._gateways) > 1

    def changed(self, pod: Pod) -> None:
        """A worker came, went, or has another role: every gateway watches Pods."""
        for gateway in self._gateways:
            gateway.changed(pod)

    def report(self, pods: Iterable[Pod], now: float) -> None:
        """Tell every gateway the load of every ready worker, and which prefixes the others sent where."""
        for pod in pods:
            if pod.ranks and not pod.deleting:
                load = load_report(pod)
                for gateway in self._gateways:
                    gateway.view.report(pod.name, load, now)
        for gateway in self._gateways:
            batch = take_batch(gateway.view)
            for other in self._gateways:
                if batch is not None and other is not gateway:
                    learn_batch(other.view, batch)

    def ranks(self, names: Iterable[str | None]) -> dict[str | None, int] | None:
        """Return in which order engines serve requests of each of these classes; None when all of them are alike."""
        return self._gateways[0].ranks(names)

    def choose(self, request: SimulatedRequest, now: float) -> Chosen | Reason | None:
        """Decide about a request, and take it for started; None: it waits."""
        return self._of(request).choose(request, now)

    def settle(self, now: float) -> Iterator[tuple[SimulatedRequest, Chosen | Reason]]:
        """Yield the requests that wait no longer, let in or refused."""
        for gateway in self._gateways:
            yield from gateway.settle(now)

    @property
    def pass_seconds(self) -> float | None:
        """How long until `settle` is due; None: no request waits."""
        queues = [gateway.queue for gateway in self._gateways if gateway.queue]
        return queues[0].pass_seconds if queues else None

    def prefilled(self, request: SimulatedRequest, now: float) -> None:
        """The prefill leg was answered, or the first token of a whole request came."""
        self._of(request).prefilled(request, now)

    def pulled(self, request: SimulatedRequest, at: float) -> None:
        """The first token of a decode leg came."""
        self._of(request).pulled(request, at)

    def ended(self, request: SimulatedRequest, now: float, *, served: bool) -> None:
        """An attempt is over."""
        self._of(request).ended(request, now, served=served)

    def _of(self, request: SimulatedRequest) -> SimulatedGateway:
        return self._gateways[(request.index * _KNUTH >> 16) % len(self._gateways)]
