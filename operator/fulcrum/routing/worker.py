"""One worker as routing sees it: its prompts, its batch, and its place among the others. Pure.

Of a worker with ranks of data parallel, each rank is a view of its own: it has its own queue, batch and KV cache. Its
ranks share what fails and comes back as a whole, the breaker and the health.

Kept in O(1) for each event. Times are the caller's clock in seconds; nothing here reads one. Only `ClusterView` tells a
worker what happens.
"""

from __future__ import annotations

from math import inf
from typing import Final

from fulcrum.api.names import Role
from fulcrum.kv import Tiers
from fulcrum.routing.decode_batch import DecodeBatch
from fulcrum.routing.engine_speed import EngineSpeed
from fulcrum.routing.health import WorkerHealth
from fulcrum.routing.lockstep import Lockstep
from fulcrum.routing.prefill_queue import PrefillQueue
from fulcrum.routing.request_load import RequestLoad

_NO_ADAPTERS: Final[frozenset[str]] = frozenset()


class WorkerView:
    """A worker and the work on it: own (started here) and foreign (reported by the worker, started elsewhere)."""

    prefill_key: tuple[float, ...]
    """The lowest comes first: idle workers, then decoding ones, then prefilling ones by the end of their queue."""
    decode_key: tuple[float, ...]
    """The lowest comes first: the worker with the most capacity to decode."""

    def __init__(
        self,
        *,
        index: int,
        worker: str,
        dp_rank: int | None,
        role: Role,
        pool: str,
        revision: str,
        node: str,
        incarnation: str,
        health: WorkerHealth,
        ranks: tuple[int, ...],
        engine: EngineSpeed,
    ) -> None:
        """`health` is that of all ranks of the worker. `ranks` are those of classes."""
        self.index = index
        """Never used again for another worker, nor for another process of this one."""
        self.worker = worker
        """Name of the worker."""
        self.name = worker if dp_rank is None else f"{worker}/dp{dp_rank}"
        """Unlike that of any other view."""
        self.dp_rank = dp_rank
        """Its rank of data parallel; None: the worker has no other."""
        self.role = role
        self.pool = pool
        self.revision = revision
        self.node = node
        self.incarnation = incarnation
        self.tiers: Tiers | None = None
        """What it has below its KV cache; None: nothing, or it is not known."""
        self.adapters = self.broken_adapters = _NO_ADAPTERS
        """LoRA adapters that it has loaded, and those that it cannot load until someone changes something."""
        self.health = health
        self.prompts = PrefillQueue(ranks)
        self.lockstep: Lockstep | None = None
        """The prompts of its worker's ranks, which take each step together; None: it has no others."""
        self.answers = DecodeBatch(engine)
        self.step_before = self.step_began = -inf
        """When the last prefill step began, and the one under way, as `timing` sees them."""
        self.tie_break = 0
        """Number of the last request, among those of all workers."""
        self.reported_at = 0.0
        self.pulling_tokens = 0.0
        """Prompt tokens whose KV it is to send or to receive."""
        self.pulls: dict[RequestLoad, None] = {}
        """Requests that these belong to, the oldest pull first."""
        self.link_at = 0.0
        """When its link took up the first of them, as far as is seen."""
        self.set_engine(engine)

    # What can be asked.

    @property
    def in_flight(self) -> int:
        """Own legs under way on it."""
        return len(self.prompts.legs) + self.answers.running

    @property
    def suspect(self) -> bool:
        """It failed a moment ago: taken only when no other worker fits."""
        return not self.health.breaker.available

    @property
    def foreign(self) -> bool:
        """Other gateways have work on it."""
        return bool(self.answers.foreign_running or self.prompts.foreign_seconds)

    @property
    def idle(self) -> bool:
        """Nothing is queued, runs, or will come, as far as is known."""
        return not (self.prompts.busy or self.answers.requests)

    # What happens.

    def set_engine(self, engine: EngineSpeed) -> None:
        """How fast it is."""
        self.engine = self.answers.engine = engine
        self.prompts.set_speed(engine.prefill_a, engine.chunk_tokens)
        self.set_keys()

    def take_role(self, role: Role) -> None:
        """It has this role from now on. What it has is still there; what kept coming for another role does not."""
        if role is not self.role:
            self.role = role
            self.health.take_role()
            self.prompts.prefill_rate = self.answers.join_rate = 0.0
            self.take_turn(0)

    def take_turn(self, tie_break: int) -> None:
        """It was sent the request of this number; among equally free workers the one with the lowest comes first.

        Times would not do: a gateway's clock stands still while it takes up what came in one millisecond.
        """
        self.tie_break = tie_break
        self.set_keys()

    def unqueue(self, load: RequestLoad, now_seconds: float, *, done: bool) -> None:
        """A prefill leg ended: it was answered (`done`), or it was taken away."""
        self.prompts.unqueue(load, now_seconds, done=done)
        if self.lockstep is None:
            self.set_keys()
        else:
            self.lockstep.ended(now_seconds, done=done)

    def queue(self, load: RequestLoad, now_seconds: float) -> None:
        """A prefill leg was sent to it."""
        if self.lockstep is None:
            self.prompts.queue(load, now_seconds)
        else:
            self.lockstep.queue(self.prompts, load, now_seconds)

    def join(self, load: RequestLoad, now_seconds: float) -> None:
        """A request answers."""
        self.answers.join(load, now_seconds)
        self.prompts.memory_seconds = self.answers.memory_seconds
        self.set_keys()

    def release(self, load: RequestLoad) -> None:
        """The room that was promised to a request is free again."""
        self.answers.release(load)
        self.set_keys()

    def set_foreign(
        self,
        now_seconds: float,
        *,
        prefill_seconds: float = 0.0,
        running: float = 0.0,
        context_tokens: float = 0.0,
        share: float = 0.0,
    ) -> None:
        """Work on it that was not started here: prefill, requests that decode, and the `share` of it that they take."""
        answers = self.answers
        answers.advance(now_seconds)
        self.prompts.set_foreign_prefill(now_seconds, prefill_seconds)
        answers.foreign_running, answers.foreign_context, answers.foreign_share = running, context_tokens, share
        self.reported_at = now_seconds
        self.set_keys()
        if self.lockstep is not None:
            self.lockstep.moved(now_seconds)

    def turns_out_fuller(self, now_seconds: float) -> bool:
        """Set its place among the others by what its answers have filled until now; report whether it is fuller."""
        before = self.decode_key
        self.answers.advance(now_seconds)
        self.set_keys()
        return self.decode_key > before

    def set_keys(self) -> None:
        """Its place among the others has changed."""
        prompts, answers = self.prompts, self.answers
        total = prompts.own_seconds + prompts.foreign_seconds
        tie_break = float(self.tie_break)
        turn_at = 0.0 if self.lockstep is None else self.lockstep.turn_at(prompts)
        if turn_at and self.engine.known:
            self.prefill_key = (2.0, turn_at, tie_break)
        elif total > 0 and self.engine.known:
            self.prefill_key = (2.0, prompts.anchor + prompts.prefill_a + total)
        else:
            self.prefill_key = (1.0 if answers.running else 0.0, float(len(prompts.legs)), tie_break)
        # Sums that come and go leave a rest behind, which is not to break a tie. Batch requests make way.
        self.decode_key = (round(answers.load - answers.batch_share, 6), tie_break)
