"""Ranks of one worker take each engine step together: the slowest of them sets its time. Pure.

So a prompt waits for the step of any rank that is under way, its own step takes as long as the longest prompt in it on
any rank, and what decodes on one rank stands still while another one prefills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf

from fulcrum.routing.prefill_queue import PrefillQueue
from fulcrum.routing.request_load import RequestLoad


class Lockstep:
    """The prompts on all ranks of a worker, looked at once for each instant."""

    def __init__(self, queues: Sequence[PrefillQueue], set_keys: Sequence[Callable[[], None]]) -> None:
        """`set_keys` are called where another rank than the one that something happens on may have another place among
        workers.
        """
        self._queues, self._set_keys = tuple(queues), tuple(set_keys)
        self._rate = self._used_at = 0.0
        """Share of their time that own prompts took, at a time."""
        # What was found at the last look.
        self._looked_at = -inf
        self._left_seconds = self._waiting_seconds = 0.0
        self._longest: PrefillQueue | None = None
        self._first_seconds = self._second_seconds = 0.0
        self._prefill_share = 0.0

    # What can be asked.

    @property
    def idle(self) -> bool:
        """No rank has prompts."""
        return not any(queue.busy for queue in self._queues)

    def turn_at(self, queue: PrefillQueue) -> float:
        """Time at which a further prompt has its turn on a rank, as of the last look; 0: at once."""
        _, waiting_seconds = queue.waiting_seconds(self._looked_at)
        wait_seconds = self._left_seconds + waiting_seconds
        return self._looked_at + wait_seconds if wait_seconds else 0.0

    def left_seconds(self, now_seconds: float) -> float:
        """Time that is left of the step with prompts that is under way."""
        self._look(now_seconds)
        return self._left_seconds

    def beside_seconds(self, queue: PrefillQueue, now_seconds: float) -> float:
        """Time that the next step takes at least, because of what waits for it on other ranks."""
        self._look(now_seconds)
        return self._second_seconds if queue is self._longest else self._first_seconds

    def backlog_seconds(self, now_seconds: float) -> float:
        """Time until all prompts are done."""
        self._look(now_seconds)
        return self._left_seconds + self._waiting_seconds

    def overdue(self, now_seconds: float) -> bool:
        """Every rank with prompts takes more than twice as long as predicted: no rank explains why the others do."""
        return all(queue.overdue(now_seconds) for queue in self._queues if queue.legs and queue.anchor <= now_seconds)

    def prefill_share(self, now_seconds: float) -> float:
        """Share of their time in which any of them prefilled of late, whichever gateway sent the prompts."""
        self._look(now_seconds)
        return self._prefill_share

    # What happens.

    def queue(self, queue: PrefillQueue, load: RequestLoad, now_seconds: float) -> None:
        """A prefill leg was sent to a rank: it takes so much of the time of all of them as it makes them end later."""
        before = self.backlog_seconds(now_seconds)
        # A step has the base of its prompts and of its decodes once.
        base = 0.0 if self._waiting_seconds else queue.prefill_a
        queue.queue(load, now_seconds, self._left_seconds)
        self._looked_at = -inf
        more = max(self.backlog_seconds(now_seconds) - before - base, 0.0)
        self._rate = self._faded_rate(now_seconds) + more / queue.memory_seconds
        self._used_at = now_seconds
        self.moved(now_seconds)

    def ended(self, now_seconds: float, *, done: bool) -> None:
        """A prefill leg ended. It was answered (`done`): a step is over, and what waited for that begins now."""
        if done:
            for queue in self._queues:
                queue.begin_by(now_seconds)
        self.moved(now_seconds)

    def moved(self, now_seconds: float) -> None:
        """The prompts of a rank have changed."""
        self._looked_at = -inf
        self._look(now_seconds)
        for set_keys in self._set_keys:
            set_keys()

    def _faded_rate(self, now_seconds: float) -> float:
        return self._rate * exp(-max(now_seconds - self._used_at, 0.0) / self._queues[0].memory_seconds)

    def _look(self, now_seconds: float) -> None:
        if now_seconds == self._looked_at:
            return
        self._looked_at = now_seconds
        self._left_seconds = self._waiting_seconds = self._first_seconds = self._second_seconds = 0.0
        self._longest = None
        idle_share = 1.0
        for queue in self._queues:
            idle_share *= 1.0 - min(queue.prefill_share(now_seconds), 1.0)
            self._left_seconds = max(self._left_seconds, queue.step_left_seconds(now_seconds))
            step_seconds, all_seconds = queue.waiting_seconds(now_seconds)
            self._waiting_seconds = max(self._waiting_seconds, all_seconds)
            if step_seconds > self._first_seconds:
                self._second_seconds = self._first_seconds
                self._first_seconds, self._longest = step_seconds, queue
            else:
                self._second_seconds = max(self._second_seconds, step_seconds)
        # Prompts of other gateways are only in the rates of ranks, which are taken for independent.
        self._prefill_share = max(self._faded_rate(now_seconds), 1.0 - idle_share)
