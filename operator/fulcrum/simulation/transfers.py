"""KV on its way: when a pull that begins now ends."""

from __future__ import annotations

from fulcrum.simulation.cluster import Links, Pulling, Sharing
from fulcrum.simulation.simulated_request import RequestWorker, SimulatedRequest


class Transfers:
    """State of the links: until when each worker's sending and receiving side is taken."""

    __slots__ = ("_links", "_receiving", "_sending")

    def __init__(self, links: Links) -> None:
        self._links = links
        self._sending: dict[str, float] = {}
        self._receiving: dict[str, float] = {}

    def end_seconds(self, request: SimulatedRequest, source: RequestWorker, target: RequestWorker, now: float) -> float:
        """Return when the KV of `request`, pulled from now on, has arrived; takes the links until then."""
        links = self._links
        tokens = max(0, request.prompt - request.cached)
        pair = links.pairs.get((source.pool, target.pool))
        if pair is not None:
            latency_seconds, seconds = pair.base_seconds, pair.seconds_per_token * tokens
        elif links.bytes_per_second is None:
            ends = (source.speed, target.speed)
            latency_seconds = max(end.transfer_seconds(0) for end in ends)
            seconds = max(end.transfer_seconds(tokens) for end in ends) - latency_seconds
        else:
            latency_seconds = links.latency_seconds
            seconds = tokens * links.kv_bytes_per_token / links.bytes_per_second
        if links.overlapped_layers:
            # The prefill's own time has passed already while the first layers moved.
            seconds = max(seconds / links.overlapped_layers, seconds - request.prefill_seconds)
        if links.sharing is Sharing.PARALLEL:
            return now + seconds + latency_seconds
        start = max(now, self._sending.get(source.name, 0.0), self._receiving.get(target.name, 0.0))
        end = start + seconds
        if links.pulling is Pulling.BETWEEN:
            end, latency_seconds = end + latency_seconds, 0.0
        self._sending[source.name] = self._receiving[target.name] = end
        return end + latency_seconds
