"""How long a worker may keep a request waiting, and compute nothing, before another one tries."""

from __future__ import annotations

from math import inf
from typing import Final

from fulcrum.admission import NeighbourSlowdown
from fulcrum.gateway.api_formats.inference_request import InferenceRequest
from fulcrum.gateway.dispatch.exchange import MAX_ATTEMPTS, Exchange
from fulcrum.gateway.workers.registry import KnownRank
from fulcrum.routing import Flight, WorkerView
from fulcrum.routing.view import DEFAULT_TTFT_SECONDS

FACTOR: Final = 5.0
"""Longest silence before a first token, in predicted TTFTs, or in steps of an engine whose progress is known. A machine
that is busy with other things makes a step four times as long as it was measured."""
SHARE_OF_PROMISE: Final = 0.5
"""Least such silence, in promised TTFTs: an earlier end gains nothing, a later one makes the next attempt late."""
LEAST_SECONDS: Final = 0.25
WHOLE_FACTOR: Final = 5.0
"""Longest silence before an answer that comes as one, in predicted times of the most tokens that it may have, where the
engine's progress is unknown."""
STREAM_STEPS: Final = 50.0
"""Longest gap between two pieces of a stream, in predicted TPOTs: preemptions hold up a healthy worker."""
LEAST_STREAM_SECONDS: Final = 15.0
"""Least silence between two pieces of a stream, and before an answer that comes as one."""
LOST_SECONDS: Final = 60.0
"""Least silence of a later attempt, or where the early failovers are used up: after it the request counts as lost. Also
the most that a prediction may be exceeded by. The last attempt has the request's own deadline."""
_PER_REQUEST: Final = 0.05
_MOST: Final = 10.0


class LegDeadlines:
    """Early failovers are allowed for one request in twenty at most: an overloaded cluster is not asked all twice."""

    def __init__(
        self, ttft_seconds: float | None, neighbours: NeighbourSlowdown, *, request_timeout_seconds: float
    ) -> None:
        self._ttft_seconds = ttft_seconds or DEFAULT_TTFT_SECONDS
        self._neighbours = neighbours
        # A third, so that a worker that hangs leaves time for two more attempts.
        self._lost_seconds = min(LOST_SECONDS, request_timeout_seconds / MAX_ATTEMPTS)
        self._left = _MOST

    def arrived(self) -> None:
        """A request came."""
        if self._left < _MOST:
            self._left += _PER_REQUEST

    def lost(self) -> None:
        """Another worker was asked."""
        self._left -= 1

    def first_answer_seconds(self, exchange: Exchange, rank: KnownRank) -> float:
        """For a prefill, or a stream's first token; infinite where nothing better is to be had."""
        flight = exchange.flight
        if flight is None:
            return inf
        predicted_seconds = flight.route.ttft_seconds
        if rank.worker.progress.known and rank.state is flight.route.prefill:
            predicted_seconds = min(predicted_seconds, step_seconds(rank.state))
        if exchange.response.started:
            return max(late_seconds(predicted_seconds), LEAST_STREAM_SECONDS)
        promise_seconds = min(
            self._ttft_seconds, exchange.incoming.ttft_seconds if exchange.incoming is not None else inf
        )
        # Another worker on the same node would be as slow: there is no use in asking it.
        slower = self._neighbours.factor(flight.busy_neighbours, flight.load.started_at)
        return self._allowed(
            exchange,
            flight,
            max(late_seconds(slower * predicted_seconds), SHARE_OF_PROMISE * promise_seconds, LEAST_SECONDS),
        )

    def last_leg_seconds(self, exchange: Exchange, request: InferenceRequest, rank: KnownRank) -> float:
        """For a stream's first token, or an answer that comes as one."""
        if request.stream:
            return self.first_answer_seconds(exchange, rank)
        flight = exchange.flight
        if flight is None or not flight.route.known:
            return inf
        if rank.worker.progress.known:
            seconds = FACTOR * step_seconds(rank.state)
        elif request.max_tokens is None or request.whole:
            return inf
        else:
            seconds = WHOLE_FACTOR * (flight.route.ttft_seconds + request.max_tokens * flight.route.tpot_seconds)
        return self._allowed(exchange, flight, max(seconds, LEAST_STREAM_SECONDS))

    def _allowed(self, exchange: Exchange, flight: Flight, seconds: float) -> float:
        """`seconds` where an early failover is allowed, else `LOST_SECONDS` at least; infinite on the last attempt.

        None is allowed on a later attempt, when they are used up, or at a worker whose speed is not known yet.
        """
        if exchange.fruitless + 1 >= MAX_ATTEMPTS:
            return inf
        if exchange.attempts > 1 or self._left < 1 or not flight.route.known:
            return max(seconds, self._lost_seconds)
        return seconds


def late_seconds(predicted_seconds: float) -> float:
    """Return the seconds after which a first answer is overdue."""
    return min(FACTOR * predicted_seconds, predicted_seconds + LOST_SECONDS)


def step_seconds(worker: WorkerView) -> float:
    """Return the predicted seconds of the longest step: its budget full of one prompt, beside all that decodes now."""
    budget = worker.engine.speed.max_batched_tokens
    return worker.engine.speed.prefill_seconds(budget, budget**2) + worker.answers.step_seconds()


def between_pieces_seconds(flight: Flight, event_tokens: int = 1) -> float:
    """For the next piece of a stream, whose events may have `event_tokens` each."""
    decode, steps = flight.route.decode, STREAM_STEPS + event_tokens
    return max(steps * flight.route.tpot_seconds, FACTOR * step_seconds(decode), LEAST_STREAM_SECONDS)
