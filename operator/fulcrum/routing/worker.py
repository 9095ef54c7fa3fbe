"""One worker as routing sees it: its prompts, what decodes on it, and what will. Pure.

Of a worker with ranks of data parallel, each rank is a view of its own: it has its own queue, batch and KV cache. Its
ranks share what fails and comes back as a whole, the breaker and the health.

Kept in O(1) for each event. Times are the caller's clock in seconds; nothing here reads one. Only `ClusterView` tells a
worker what happens.
"""

from __future__ import annotations

from math import exp, inf
from typing import Final

from fulcrum.api.names import Role
from fulcrum.capacity.decode_curve import decode_line
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.kv import Tiers
from fulcrum.routing.health import WorkerHealth
from fulcrum.routing.lockstep import Lockstep
from fulcrum.routing.nominal_speed import NOMINAL_SPEED
from fulcrum.routing.prefill_queue import PrefillQueue
from fulcrum.routing.request_load import RequestLoad
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.usual_prompt import UsualPrompt

_NO_ADAPTERS: Final[frozenset[str]] = frozenset()


class WorkerView:
    """A worker and the work on it: own (started here) and foreign (reported by the worker, started elsewhere).

    `steps` counts the engine's decode steps, so a request's progress is a difference of two counts, and the sums over
    all requests (prompts, steps at joining, expected outputs) give contexts and what is left.
    """

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
    ) -> None:
        """`health` is that of all ranks of the worker. `ranks` are those of classes."""
        self.index = index
        """Never used again for another worker, nor for another process of this one."""
        self.worker = worker
        """Name of the worker."""
        self.dp_rank = dp_rank
        """Its rank of data parallel; None: the worker has no other."""
        self.name = worker if dp_rank is None else f"{worker}/dp{dp_rank}"
        """Unlike that of any other view."""
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
        self.step_before = self.step_began = -inf
        """When the last prefill step began, and the one under way, as `timing` sees them."""

        self.prompts = PrefillQueue(ranks)
        self.lockstep: Lockstep | None = None
        """The prompts of its worker's ranks, which take each step together; None: it has no others."""
        self.running = 0
        self.prompt_tokens = self.joined_steps = self.expected_tokens = 0.0
        """Sums over own running requests."""
        self.steps = self.decode_at = 0.0
        """Steps that it has made, as of a time."""
        self.pending = 0
        """Requests that will decode here and are still in prefill."""
        self.pending_context = self.pending_output = 0.0
        self.decode_share = self.batch_share = 0.0
        self.join_rate = self.joined_at = 0.0
        """Requests that join its batch in a second, as of a time."""
        self.tie_break = 0
        """Number of the last request, among those of all workers."""
        self.tights: dict[float, int] = {}
        self.tight_tpot_seconds = inf
        """The tightest TPOT that a request here was promised beyond the cluster's."""
        self.foreign_running = self.foreign_context = self.foreign_share = 0.0
        self.reported_at = 0.0
        self.usual_prompt = UsualPrompt()
        self.pulling_tokens = 0.0
        """Prompt tokens whose KV it is to send or to receive."""
        self.pulls: dict[RequestLoad, None] = {}
        """Requests that these belong to, the oldest pull first."""
        self.link_at = 0.0
        """When its link took up the first of them, as far as is seen."""
        self.set_speed(None)

    def set_speed(self, speed: WorkerSpeed | None) -> None:
        """How fast it is; None: unknown."""
        self.known = speed is not None
        self.speed = speed = speed or NOMINAL_SPEED
        # Copied: these are read several times for each request.
        k = speed.coefficients
        self.prefill_a, self.prefill_b, self.prefill_c = k.prefill_a, k.prefill_b, k.prefill_c
        # Times are divided by a step, whatever a profile leaves out.
        self.least_step = max(speed.idle_step_seconds, 1e-6)
        self.curved = len(k.decode_curve) > 1
        self.decode_b, self.decode_c = k.decode_b, k.decode_c
        self.kv_capacity = float(speed.kv_capacity_tokens)
        self.max_batch = float(speed.max_batch)
        self.chunk_tokens = float(speed.max_batched_tokens)
        # Short prompts share a step, so each bears its part of the base.
        self.work_per_token = k.prefill_a / speed.max_batched_tokens + k.prefill_b
        self.prompts.set_speed(self.prefill_a, self.chunk_tokens)
        self.set_keys()

    # What can be asked.

    def decode_line(self, batch: float) -> tuple[float, float, float]:
        """Return a, b, c of `a + b * batch + c * context`, the seconds of a decode step of about so many requests."""
        if self.curved:
            return decode_line(self.speed.coefficients, batch)
        return self.least_step, self.decode_b, self.decode_c

    def work_seconds(self, prompt_tokens: float, cached_tokens: float, cv2: float = 0.0) -> float:
        """Time that a prompt takes of a busy worker.

        With `cv2`, the squared coefficient of variation of lengths, it is the mean over prompts of that mean length.
        """
        new_tokens = prompt_tokens - cached_tokens
        return new_tokens * (self.work_per_token + self.prefill_c * (1 + cv2) * (prompt_tokens + cached_tokens))

    @property
    def in_flight(self) -> int:
        """Own legs under way on it."""
        return len(self.prompts.legs) + self.running

    @property
    def suspect(self) -> bool:
        """It failed a moment ago: taken only when no other worker fits."""
        return not self.health.breaker.available

    @property
    def foreign(self) -> bool:
        """Other gateways have work on it."""
        return bool(self.foreign_running or self.prompts.foreign_seconds)

    @property
    def idle(self) -> bool:
        """Nothing is queued, runs, or will come, as far as is known."""
        return not (
            self.prompts.legs or self.running or self.pending or self.foreign_running or self.prompts.foreign_seconds
        )

    @property
    def decode_load(self) -> float:
        """Part of its capacity to decode that is promised or in use."""
        return self.decode_share + self.foreign_share

    def step_share_of(self, prompt_tokens: float, output_tokens: float, tpot_seconds: float) -> float:
        """Part of its longest decode step that a request takes, 0 to 1."""
        context = prompt_tokens + output_tokens / 2
        if self.curved:
            most = self.speed.decode_batch(tpot_seconds, context)
            return 1.0 / most if most > 1.0 else 1.0
        room = tpot_seconds - self.least_step
        return min((self.decode_b + self.decode_c * context) / room, 1.0) if room > 0 else 1.0

    def share_of(self, prompt_tokens: float, output_tokens: float, tpot_seconds: float) -> float:
        """Part of it that a request takes, 0 to 1: of its step, its batch or its KV cache, whichever is most."""
        share = max(self.step_share_of(prompt_tokens, output_tokens, tpot_seconds), 1 / self.max_batch)
        memory = (prompt_tokens + output_tokens / 2) / self.kv_capacity if self.kv_capacity else 0.0
        return min(max(share, memory), 1.0)

    def step_seconds(self) -> float:
        """One decode step of what runs now."""
        batch = self.running + self.foreign_running
        a, b, c = self.decode_line(batch)
        return max(a + b * batch + c * (self.context_tokens + self.foreign_context), self.least_step)

    @property
    def context_tokens(self) -> float:
        """Summed contexts of own running requests, as of the last event."""
        context = self.prompt_tokens + self.running * self.steps - self.joined_steps
        return context if context > 0 else 0.0

    @property
    def left_tokens(self) -> float:
        """Output tokens that an own running request still has to make, on average; at least 1."""
        return self.left_at(self.context_tokens) if self.running else 1.0

    def left_at(self, context_tokens: float) -> float:
        """The same once the contexts of own running requests sum up to `context_tokens`."""
        left = self.expected_tokens + self.prompt_tokens - context_tokens
        # Those that still run are the long ones, or held up (by their KV): the longer they are overdue, the longer they
        # will be, as in `backlog_seconds`.
        return max(left, -left / 2, TUNING.least_left * self.expected_tokens, self.running) / self.running

    # What happens.

    def take_role(self, role: Role) -> None:
        """It has this role from now on. What it has is still there; what kept coming for another role does not."""
        if role is not self.role:
            self.role = role
            self.health.take_role()
            self.prompts.prefill_rate = self.join_rate = 0.0
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

    def promise(self, load: RequestLoad) -> None:
        """A request will decode here after its prefill."""
        self.pending += 1
        self.pending_context += load.prompt_tokens
        self.pending_output += load.output_tokens
        self.decode_share += load.share
        if load.batch:
            self.batch_share += load.share
        tight = load.tight_tpot_seconds
        if tight < inf:
            self.tights[tight] = self.tights.get(tight, 0) + 1
            self.tight_tpot_seconds = min(self.tight_tpot_seconds, tight)

    def unpromise(self, load: RequestLoad) -> None:
        """A promised request no longer waits for its prefill: it joins now, or it is over."""
        self.pending -= 1
        self.pending_context = self.pending_context - load.prompt_tokens if self.pending else 0.0
        self.pending_output = self.pending_output - load.output_tokens if self.pending else 0.0

    def join(self, load: RequestLoad, now_seconds: float) -> None:
        """A request decodes."""
        self.advance(now_seconds)
        self.running += 1
        self.prompt_tokens += load.prompt_tokens
        self.expected_tokens += load.output_tokens
        self.joined_steps += self.steps
        load.joined_steps = self.steps
        self.set_keys()
        # At least as long as an answer takes: what comes meanwhile sets its pace, and 10 s may hold one long prompt.
        gone = now_seconds - self.joined_at
        life_seconds = self.expected_tokens / self.running * self.step_seconds()
        self.prompts.memory_seconds = memory = max(TUNING.memory_seconds, life_seconds)
        self.join_rate = self.join_rate * exp(-max(gone, 0.0) / memory) + 1 / memory
        self.joined_at = now_seconds

    def leave(self, load: RequestLoad, now_seconds: float) -> None:
        """A request no longer decodes."""
        self.advance(now_seconds)
        self.running -= 1
        if self.running:
            self.prompt_tokens -= load.prompt_tokens
            self.expected_tokens -= load.output_tokens
            self.joined_steps -= load.joined_steps
        else:
            self.prompt_tokens = self.expected_tokens = self.joined_steps = self.steps = 0.0

    def release(self, load: RequestLoad) -> None:
        """The room that was promised to a request is free again."""
        busy = self.running or self.pending
        self.decode_share = self.decode_share - load.share if busy else 0.0
        if load.batch:
            self.batch_share = self.batch_share - load.share if busy else 0.0
        tight = load.tight_tpot_seconds
        if tight < inf:
            self.tights[tight] -= 1
            if not self.tights[tight]:
                del self.tights[tight]
                self.tight_tpot_seconds = min(self.tights, default=inf)
        self.set_keys()

    def decoding(self) -> tuple[int, float, float, float, int, float, float]:
        """What decodes here and what will, as `set_aside` changes it and `put_back` restores it."""
        return (
            self.running, self.prompt_tokens, self.joined_steps, self.expected_tokens, self.pending,
            self.pending_context, self.pending_output,
        )  # fmt: skip

    def set_aside(self, load: RequestLoad, *, joined: bool) -> None:
        """Predict without a request that decodes here (`joined`), or will after its prefill."""
        if not joined:
            self.unpromise(load)
            return
        self.running -= 1
        self.prompt_tokens -= load.prompt_tokens
        self.joined_steps -= load.joined_steps
        self.expected_tokens -= load.output_tokens

    def put_back(self, decoding: tuple[int, float, float, float, int, float, float]) -> None:
        """End what `set_aside` began."""
        (
            self.running, self.prompt_tokens, self.joined_steps, self.expected_tokens, self.pending,
            self.pending_context, self.pending_output,
        ) = decoding  # fmt: skip

    def advance(self, now_seconds: float) -> None:
        """Time went by: every running request has made a token for each step."""
        gone = now_seconds - self.decode_at
        if gone <= 0:
            return
        self.decode_at = now_seconds
        if self.running:
            self.steps += gone / self.step_seconds()

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
        self.advance(now_seconds)
        self.prompts.set_foreign_prefill(now_seconds, prefill_seconds)
        self.foreign_running, self.foreign_context, self.foreign_share = running, context_tokens, share
        self.reported_at = now_seconds
        self.set_keys()
        if self.lockstep is not None:
            self.lockstep.moved(now_seconds)

    def set_keys(self) -> None:
        """Its place among the others has changed."""
        total = self.prompts.own_seconds + self.prompts.foreign_seconds
        tie_break = float(self.tie_break)
        turn_at = 0.0 if self.lockstep is None else self.lockstep.turn_at(self.prompts)
        if turn_at and self.known:
            self.prefill_key = (2.0, turn_at, tie_break)
        elif total > 0 and self.known:
            self.prefill_key = (2.0, self.prompts.anchor + self.prefill_a + total)
        else:
            self.prefill_key = (1.0 if self.running else 0.0, float(len(self.prompts.legs)), tie_break)
        # Sums that come and go leave a rest behind, which is not to break a tie. Batch requests make way.
        self.decode_key = (round(self.decode_load - self.batch_share, 6), tie_break)
