"""What it costs to move KV between the workers of two pools, as one gateway (or the simulator) learns it. Pure.

From the answer of a prefill leg to the first event of the decode leg pass the transfer, and what the decode worker
needs for a first step: the rest of the step under way, where it is busy, and a step with the new request.
"""

from __future__ import annotations

from fulcrum.api.gateway import LearntRate
from fulcrum.capacity.kv import UNKNOWN_TRANSFER, TransferCost
from fulcrum.capacity.transfers import LearntTransfer
from fulcrum.routing.flight import Flight
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.worker import WorkerView

PoolPair = tuple[str, str, bool]
"""Pools of the prefill and of the decode worker, and whether both are on one node."""


class Transfers:
    """Costs by pair of pools, near (on one node) and far."""

    def __init__(self) -> None:
        self.learnt: dict[PoolPair, LearntTransfer] = {}
        self._priors: dict[str, TransferCost] = {}
        self._costs: dict[PoolPair, TransferCost] = {}
        """Of all pairs that were asked for: read for each request."""
        self._forget_at = 0.0

    def expect(self, pool: str, cost: TransferCost) -> None:
        """Before any transfer was seen, this is what moving KV costs a worker of `pool`."""
        if self._priors.get(pool) != cost:
            self._priors[pool] = cost
            self.learnt = {pair: found for pair, found in self.learnt.items() if pool not in pair}
            self._costs.clear()

    def cost(self, source: WorkerView, target: WorkerView) -> TransferCost:
        """Return what moving KV from `source` to `target` costs."""
        pair = _pair(source, target)
        found = self._costs.get(pair)
        if found is None:
            found = self._costs[pair] = self._look_up(*pair)
        return found

    def _look_up(self, source: str, target: str, near: bool) -> TransferCost:
        """Return the cost on other nodes, or of the way back, where only that is learnt: it is the same network."""
        for known in ((source, target, near), (source, target, False), (target, source, near), (target, source, False)):
            learnt = self.learnt.get(known)
            if learnt is not None:
                return learnt.cost
        priors = self._priors
        return priors.get(source, UNKNOWN_TRANSFER).slower(priors.get(target, UNKNOWN_TRANSFER))

    def wait_seconds(self, source: WorkerView, target: WorkerView, now_seconds: float) -> float:
        """Return how long a pull that is asked for at `now` waits: each end carries one at a time."""
        if source.pulling_tokens <= 0 and target.pulling_tokens <= 0:
            return 0.0
        rate = self.cost(source, target).seconds_per_token
        sent = source.pulling_tokens * rate - (now_seconds - source.link_at)
        received = target.pulling_tokens * rate - (now_seconds - target.link_at)
        return max(sent, received, 0.0)

    @staticmethod
    def begin(flight: Flight, tokens: float, now_seconds: float) -> None:
        """A decode worker is asked to pull the KV of so many tokens."""
        flight.pulled_tokens, flight.pull_asked_at = tokens, now_seconds
        flight.pull_waits = _is_full(flight.decode)
        for worker in (flight.prefill, flight.decode):
            if not worker.pulls:
                worker.link_at = now_seconds
            worker.pulls[flight.load] = None
            worker.pulling_tokens += tokens

    @staticmethod
    def drop(flight: Flight) -> None:
        """Its pull is over, or its end will not be seen: it counts no more."""
        tokens, flight.pulled_tokens = flight.pulled_tokens, 0.0
        for worker in (flight.prefill, flight.decode):
            worker.pulls.pop(flight.load, None)
            worker.pulling_tokens = max(worker.pulling_tokens - tokens, 0.0)

    def ended(self, flight: Flight, now_seconds: float) -> None:
        """The first event of the decode leg came."""
        source, target, tokens = flight.prefill, flight.decode, flight.pulled_tokens
        if tokens <= 0:
            return
        answers = target.answers
        step = answers.step_seconds()
        # A busy engine begins to pull between two steps, and adds what it has pulled between two others.
        between = 0.5 * step if answers.running + answers.foreign_running > 1 else 0.0
        began_at = max(flight.pull_asked_at + between, source.link_at, target.link_at)
        seconds = now_seconds - step - began_at
        for worker in (source, target):
            # A pull that overtakes an older one over a slower link says nothing of how long that one was held up.
            if next(iter(worker.pulls), None) is flight.load:
                worker.link_at = max(now_seconds - step, began_at)
        self.drop(flight)
        if flight.pull_waits or _is_full(target) or target.prompts.busy:
            return  # it may have waited for a place in the batch, or for prompts
        if between and seconds <= step + between:
            if self.cost(source, target).seconds(tokens) <= step:
                return  # as expected: it took a step at most, and how much of it is not seen
            seconds = step
        seconds -= between
        pair = _pair(source, target)
        found = self.learnt.get(pair)
        if found is None:
            found = self.learnt[pair] = LearntTransfer(self.cost(source, target))
        found.learn(tokens=tokens, seconds=max(seconds, 0.0), now_seconds=now_seconds)
        self._costs.clear()

    def report(self) -> tuple[LearntRate, ...]:
        """Return what was learnt, for the operator."""
        return tuple(
            LearntRate(
                prefill_pool=source,
                decode_pool=target,
                near=near,
                base_seconds=found.cost.base_seconds,
                seconds_per_token=found.cost.seconds_per_token,
                transfers=found.rows,
            )
            for (source, target, near), found in self.learnt.items()
            if found.rows
        )

    def forget(self, now_seconds: float) -> None:
        """Time went by: pairs of which nothing was seen for long are as unknown as before, so they are tried again."""
        if now_seconds < self._forget_at:
            return
        self._forget_at = now_seconds + TUNING.memory_seconds
        if any(found.stale(now_seconds) for found in self.learnt.values()):
            self.learnt = {pair: found for pair, found in self.learnt.items() if not found.stale(now_seconds)}
            self._costs.clear()


def _is_full(target: WorkerView) -> bool:
    """Report whether what decodes there, whoever sent it, may fill the batch or the KV cache."""
    answers, engine = target.answers, target.engine
    running = answers.running + answers.foreign_running
    context = answers.context_tokens + answers.foreign_context
    return running > engine.max_batch or context > TUNING.estimate_share * engine.kv_capacity > 0


def _pair(source: WorkerView, target: WorkerView) -> PoolPair:
    return source.pool, target.pool, source.node == target.node and source.node != ""
