"""How long a worker may keep a request waiting before another one tries."""

from __future__ import annotations

from math import inf
from typing import Final

from fulcrum.admission import NeighbourSlowdown
from fulcrum.gateway.dispatch.exchange import MAX_ATTEMPTS, Exchange
from fulcrum.gateway.openai.inference_request import InferenceRequest
from fulcrum.routing import Flight
from fulcrum.routing.view import DEFAULT_TTFT_SECONDS

FACTOR: Final = 3.0
"""Deadline of a prefill leg, in predicted TTFTs."""
SHARE_OF_PROMISE: Final = 0.5
"""Least deadline of a prefill leg, in promised TTFTs: an earlier one gains nothing, a later one makes the next attempt
late."""
LEAST_SECONDS: Final = 0.25
WHOLE_FACTOR: Final = 5.0
"""Deadline of an answer that comes as one, in predicted times of the most tokens that it may have."""
STREAM_STEPS: Final = 50.0
"""Longest gap between two pieces of a stream, in predicted TPOTs: preemptions and long prompts hold up a healthy
worker."""
LEAST_STREAM_SECONDS: Final = 15.0
"""Least deadline between two pieces of a stream, and of an answer that comes as one."""
LOST_SECONDS: Final = 60.0
"""Least deadline of a later attempt, or where the early failovers are used up: such a silence is a lost request and
no queue. Also the most that a prediction may be exceeded by. The last attempt has the request's own deadline."""
_PER_REQUEST: Final = 0.05
_MOST: Final = 10.0


class LegDeadlines:
    """Early failovers are allowed for one request in twenty at most: an overloaded cluster is not asked all twice."""

    def __init__(self, ttft_seconds: float | None, neighbours: NeighbourSlowdown) -> None:
        self._ttft_seconds = ttft_seconds or DEFAULT_TTFT_SECONDS
        self._neighbours = neighbours
        self._left = _MOST

    def arrived(self) -> None:
        """A request came."""
        if self._left < _MOST:
            self._left += _PER_REQUEST

    def lost(self) -> None:
        """Another worker was asked."""
        self._left -= 1

    def first_answer_seconds(self, exchange: Exchange) -> float:
        """For a prefill, or a stream's first token; infinite where nothing better is to be had."""
        flight = exchange.flight
        if flight is None:
            return inf
        if exchange.response.started:
            return max(late_seconds(flight.route.ttft_seconds), LEAST_STREAM_SECONDS)
        promise_seconds = min(
            self._ttft_seconds, exchange.incoming.ttft_seconds if exchange.incoming is not None else inf
        )
        # Another worker on the same node would be as slow: there is no use in asking it.
        slower = self._neighbours.factor(flight.busy_neighbours, flight.started_at)
        return self._allowed(
            exchange,
            flight,
            max(late_seconds(slower * flight.route.ttft_seconds), SHARE_OF_PROMISE * promise_seconds, LEAST_SECONDS),
        )

    def last_leg_seconds(self, exchange: Exchange, request: InferenceRequest) -> float:
        """For a stream's first token, or an answer that comes as one."""
        if request.stream:
            return self.first_answer_seconds(exchange)
        flight = exchange.flight
        if flight is None or request.max_tokens is None or request.whole or not flight.route.known:
            return inf
        predicted_seconds = flight.route.ttft_seconds + request.max_tokens * flight.route.tpot_seconds
        return self._allowed(exchange, flight, max(WHOLE_FACTOR * predicted_seconds, LEAST_STREAM_SECONDS))

    def _allowed(self, exchange: Exchange, flight: Flight, seconds: float) -> float:
        """`seconds` where an early failover is allowed, else `LOST_SECONDS` at least; infinite on the last attempt.

        None is allowed on a later attempt, when they are used up, or at a worker whose speed is not known yet.
        """
        if exchange.fruitless + 1 >= MAX_ATTEMPTS:
            return inf
        if exchange.attempts > 1 or self._left < 1 or not flight.route.known:
            return max(seconds, LOST_SECONDS)
        return seconds


def late_seconds(predicted_seconds: float) -> float:
    """Return the seconds after which a first answer is overdue."""
    return min(FACTOR * predicted_seconds, predicted_seconds + LOST_SECONDS)


def between_pieces_seconds(flight: Flight, event_tokens: int = 1) -> float:
    """For the next piece of a stream, whose events may have `event_tokens` each."""
    return max((STREAM_STEPS + event_tokens) * flight.route.tpot_seconds, LEAST_STREAM_SECONDS)
