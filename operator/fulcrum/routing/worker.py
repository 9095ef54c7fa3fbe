"""One worker as routing sees it: what is queued, what runs, what will come; kept in O(1) per event. Pure.

Times are the caller's clock in seconds; nothing here reads one.
"""

from __future__ import annotations

from math import ceil, exp
from typing import TYPE_CHECKING, Final

from fulcrum.api.names import Role
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.speed import SpeedSource, WorkerSpeed
from fulcrum.routing.breaker import Breaker

if TYPE_CHECKING:
    from fulcrum.routing.flight import Flight

NOMINAL_SPEED: Final = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.01, prefill_b=1e-4, prefill_c=0.0, decode_a=0.02, decode_b=1e-4, decode_c=1e-7
    ),
    kv_capacity_tokens=0,
    source=SpeedSource.ROOFLINE,
)
"""Stands in while a worker's speed is unknown: enough to compare workers by, never to promise anything by."""

UNBOUNDED: Final = float("inf")
RATE_SECONDS: Final = 10.0
"""Memory of the rates at which work joins a worker."""
LEAST_STEP_SECONDS: Final = 1e-6
"""No step is shorter, whatever a profile leaves out: times are divided by it."""
LEAST_LEFT: Final = 0.5
"""Share of the expected output that is left of a running request, on average: lengths are guesses, and those that still
run are the long ones."""
_IDLE: Final = -1e12
"""Idle workers come before busy ones, the one whose turn was the longest ago first."""
_DECODING: Final = _IDLE / 2
"""Those that decode something come after those that do not, which would hold nobody up."""
_LEG: Final = 1e6
"""For each prompt where nobody knows how long they take: more than all turns together."""
_TIE: Final = 1e-9
"""Of a worker's capacity, for each turn: all of them together are less than a request takes."""
_OVERDUE_FACTOR: Final = 2.0
_OVERDUE_SECONDS: Final = 0.05


class WorkerView:
    """A worker and the work on it: own (started here) and foreign (reported by the worker, started elsewhere)."""

    __slots__ = (
        "anchor",
        "answered",
        "breaker",
        "chunk_tokens",
        "decode_a",
        "decode_at",
        "decode_b",
        "decode_c",
        "decode_key",
        "decode_share",
        "expected_tokens",
        "foreign_context",
        "foreign_running",
        "foreign_seconds",
        "foreign_share",
        "incarnation",
        "index",
        "join_rate",
        "joined_at",
        "joined_steps",
        "known",
        "kv_capacity",
        "legs",
        "max_batch",
        "name",
        "new_tokens",
        "node",
        "own_seconds",
        "pending",
        "pending_context",
        "pending_output",
        "pool",
        "prefill_a",
        "prefill_b",
        "prefill_c",
        "prefill_key",
        "prefill_rate",
        "prompt_tokens",
        "queued_tokens",
        "rank_seconds",
        "ranks",
        "reported_at",
        "revision",
        "role",
        "running",
        "speed",
        "step_tokens",
        "step_work_seconds",
        "steps",
        "tight_tpot_seconds",
        "tights",
        "transfer_base",
        "transfer_per_token",
        "turn",
        "used_at",
        "work_per_token",
    )

    def __init__(
        self,
        *,
        index: int,
        name: str,
        role: Role,
        pool: str,
        revision: str,
        node: str,
        ranks: tuple[int, ...] = (0,),
    ) -> None:
        self.index = index
        """Never used again for another worker, nor for another process of this one."""
        self.name = name
        self.role = role
        self.pool = pool
        self.revision = revision
        self.node = node
        self.incarnation = ""
        self.breaker = Breaker()
        self.answered = 0
        """Requests that it answered since the last tick."""

        # Prefill: legs in the order of their start, their summed time, and when that sum was last known to be right.
        self.legs: dict[Flight, None] = {}
        self.own_seconds = 0.0
        self.ranks = ranks
        """By class: in which order the engine takes what waits."""
        self.rank_seconds = [0.0] * (max(ranks) + 1)
        """`own_seconds` by rank."""
        self.foreign_seconds = 0.0
        self.queued_tokens = self.new_tokens = 0.0
        """Of all prompts, and of what of them is not cached."""
        self.anchor = 0.0
        self.step_work_seconds, self.step_tokens = -1.0, 0.0
        """Own prefill in the step that began at `anchor`; below 0: to be worked out."""
        self.prefill_key = 2 * _IDLE
        self.prefill_rate = 0.0
        self.used_at = 0.0

        # Decode: `steps` counts the engine's steps, so a request's progress is a difference of two counts, and the
        # sums over all requests (prompts, steps at joining, expected outputs) give contexts and what is left.
        self.running = 0
        self.prompt_tokens = 0.0
        self.joined_steps = 0.0
        self.expected_tokens = 0.0
        self.steps = 0.0
        self.decode_at = 0.0
        self.pending = 0
        """Requests that will decode here and are still in prefill."""
        self.pending_context = 0.0
        self.pending_output = 0.0
        self.decode_share = 0.0
        self.decode_key = 0.0
        self.join_rate = 0.0
        self.joined_at = 0.0
        self.turn = 0
        """Number of the last request, among those of all workers."""
        self.tights: dict[float, int] = {}
        self.tight_tpot_seconds = UNBOUNDED
        """The tightest TPOT that a request here was promised beyond the cluster's."""

        self.foreign_running = 0.0
        self.foreign_context = 0.0
        self.foreign_share = 0.0
        self.reported_at = -RATE_SECONDS
        self.set_speed(None)

    def set_speed(self, speed: WorkerSpeed | None) -> None:
        """How fast it is; None: unknown."""
        self.known = speed is not None
        self.speed = speed = speed or NOMINAL_SPEED
        self.step_work_seconds = -1.0
        # Copied: these are read several times for each request.
        k = speed.coefficients
        self.prefill_a, self.prefill_b, self.prefill_c = k.prefill_a, k.prefill_b, k.prefill_c
        self.decode_a, self.decode_b, self.decode_c = max(k.decode_a, LEAST_STEP_SECONDS), k.decode_b, k.decode_c
        self.kv_capacity = float(speed.kv_capacity_tokens)
        self.max_batch = float(speed.max_batch)
        self.chunk_tokens = float(speed.max_batched_tokens)
        self.transfer_base = speed.transfer_base_seconds
        self.transfer_per_token = speed.transfer_seconds_per_token
        # Short prompts share a step, so each bears its part of the base.
        self.work_per_token = k.prefill_a / speed.max_batched_tokens + k.prefill_b
        self._set_prefill_key()

    # What can be asked.

    @property
    def in_flight(self) -> int:
        """Own legs under way on it."""
        return len(self.legs) + self.running

    @property
    def suspect(self) -> bool:
        """It failed a moment ago: taken only when nobody else fits."""
        return not self.breaker.available

    @property
    def foreign(self) -> bool:
        """Others have work on it."""
        return bool(self.foreign_running or self.foreign_seconds)

    @property
    def idle(self) -> bool:
        """Nothing is queued, runs, or will come, as far as is known."""
        return not (self.legs or self.running or self.pending or self.foreign_running or self.foreign_seconds)

    def work_seconds(self, prompt_tokens: float, cached_tokens: float) -> float:
        """Time that a prompt takes of a busy worker."""
        new_tokens = prompt_tokens - cached_tokens
        return new_tokens * (self.work_per_token + self.prefill_c * (prompt_tokens + cached_tokens))

    def backlog_seconds(self, now_seconds: float, overtaken_seconds: float = 0.0) -> float:
        """Time until a prompt that is queued now gets its turn.

        It overtakes `overtaken_seconds` of what waits.
        """
        total = self.own_seconds - overtaken_seconds + self.foreign_seconds
        if total <= 0:
            return 0.0
        # The step under way ends before another one begins, however short its prompts are.
        total += self.prefill_a
        credit = now_seconds - self.anchor
        limit = self._begun_seconds()
        if credit > limit:
            # Overdue: nobody has seen it end. The longer it hangs, the longer it will go on to.
            return total - limit + (credit - limit) / 2
        return total - credit if credit > 0 else total

    def overtaken(self, rank: int) -> list[Flight]:
        """Legs of lower ranks that a prompt of `rank` would be served before, in the order of their service.

        What has begun is not interrupted: the engine goes on with it in its next step before it takes what waits.
        """
        ranks = self.ranks
        room = self.chunk_tokens
        for leg in self.legs:
            if leg.started_at > self.anchor:
                break
            if ranks[leg.qos] <= rank:
                room -= leg.new_tokens
        waiting: list[Flight] = []
        for lower in range(rank + 1, len(self.rank_seconds)):
            for leg in self.legs:
                if ranks[leg.qos] == lower:
                    if room <= 0 or leg.started_at > self.anchor:
                        waiting.append(leg)
                    else:
                        room -= leg.new_tokens
        return waiting

    def prefill_share(self, now_seconds: float) -> float:
        """Share of its time that its prompts took in the last seconds."""
        return self.prefill_rate * exp(-max(now_seconds - self.used_at, 0.0) / RATE_SECONDS)

    def lower_seconds(self, rank: int) -> float:
        """Prefill of legs of lower ranks."""
        seconds = 0.0
        for lower in range(rank + 1, len(self.rank_seconds)):
            seconds += self.rank_seconds[lower]
        return seconds

    def overdue(self, now_seconds: float) -> bool:
        """Its prefill is behind what was predicted by more than an ordinary error."""
        limit = self._begun_seconds()
        return now_seconds - self.anchor > _OVERDUE_FACTOR * limit + _OVERDUE_SECONDS

    def _begun_seconds(self) -> float:
        """Prefill of the step that is believed to be under way: foreign work, and what waited when it began.

        An engine takes all that waits in one step, those of the highest rank first, up to its token budget.
        """
        if self.step_work_seconds < 0:
            self.step_work_seconds = self._step_work_seconds()
        return self.foreign_seconds + self.prefill_a + self.step_work_seconds

    def spared_seconds(self, new_tokens: float, overtaken_tokens: float = 0.0) -> float:
        """Return how much sooner a prompt that is queued now is done than the work before it, its own, and bases say.

        In the work a step's base is counted by the tokens in it, as if all steps were full, and once more for the step
        under way and for its own. In truth each has one base, or a few where a prompt takes several.
        """
        chunk = self.chunk_tokens
        steps = 1.0
        waiting = new_tokens
        tokens = 0.0
        if self.legs:
            self._begun_seconds()
            tokens = self.new_tokens - overtaken_tokens
            waiting += max(tokens - self.step_tokens, 0.0)
            steps += 1.0 - ceil(self.step_tokens / chunk)
        return self.prefill_a * (steps + (tokens + new_tokens) / chunk - ceil(waiting / chunk))

    def _step_work_seconds(self) -> float:
        ranks = self.ranks
        room, seconds = self.chunk_tokens, 0.0
        self.step_tokens = 0.0
        for rank in range(len(self.rank_seconds)):
            for leg in self.legs:
                if leg.started_at > self.anchor:
                    break
                if ranks[leg.qos] == rank:
                    if leg.new_tokens >= room:
                        # The first one counts in full: no answer comes before it, however many steps it takes.
                        if not seconds:
                            self.step_tokens = leg.new_tokens
                            return leg.work_seconds
                        self.step_tokens += room
                        return seconds + leg.work_seconds * room / leg.new_tokens
                    room -= leg.new_tokens
                    seconds += leg.work_seconds
                    self.step_tokens += leg.new_tokens
        return seconds

    def step_seconds(self) -> float:
        """One decode step of what runs now."""
        return (
            self.decode_a
            + self.decode_b * (self.running + self.foreign_running)
            + self.decode_c * (self.context_tokens + self.foreign_context)
        )

    @property
    def context_tokens(self) -> float:
        """Summed contexts of own running requests, as of the last event."""
        context = self.prompt_tokens + self.running * self.steps - self.joined_steps
        return context if context > 0 else 0.0

    @property
    def left_tokens(self) -> float:
        """Output tokens that an own running request still has to make, on average; at least 1."""
        running = self.running
        if not running:
            return 1.0
        left = self.expected_tokens - running * self.steps + self.joined_steps
        left = max(left, LEAST_LEFT * self.expected_tokens)
        return left / running if left > running else 1.0

    # What happens. Only `ClusterView` calls these.

    def take_role(self, role: Role) -> None:
        """It has this role from now on. What it has is still there; what kept coming for another role does not."""
        if role is not self.role:
            self.role = role
            self.prefill_rate = self.join_rate = 0.0
            self.take_turn(0)

    def take_turn(self, turn: int) -> None:
        """Among workers that are equally free, the one with the lowest number comes first.

        Times would not do: a gateway's clock stands still while it takes up what came in one millisecond.
        """
        self.turn = turn
        self._set_prefill_key()
        self._set_decode_key()

    def queue(self, flight: Flight, now_seconds: float, turn: int) -> None:
        """A prefill leg was sent to it; `turn` counts the requests of all workers."""
        if self.own_seconds + self.foreign_seconds <= 0:
            self.anchor = now_seconds
        if now_seconds <= self.anchor:
            self.step_work_seconds = -1.0
        self.legs[flight] = None
        self.own_seconds += flight.work_seconds
        self.rank_seconds[self.ranks[flight.qos]] += flight.work_seconds
        self.queued_tokens += flight.prompt_tokens
        self.new_tokens += flight.new_tokens
        self.prefill_rate = self.prefill_share(now_seconds) + flight.work_seconds / RATE_SECONDS
        self.used_at = now_seconds
        self.take_turn(turn)

    def unqueue(self, flight: Flight, now_seconds: float, *, done: bool) -> None:
        """A prefill leg ended: it was answered (`done`), or it was taken away."""
        del self.legs[flight]
        self.step_work_seconds = -1.0
        self.own_seconds -= flight.work_seconds
        self.rank_seconds[self.ranks[flight.qos]] -= flight.work_seconds
        self.queued_tokens -= flight.prompt_tokens
        self.new_tokens -= flight.new_tokens
        if done:
            # What was neither spent on this leg nor waited for belonged to somebody else's.
            spare = now_seconds - self.anchor - self.prefill_a - flight.work_seconds
            self.foreign_seconds = max(self.foreign_seconds - max(spare, 0.0), 0.0)
            self.anchor = now_seconds
        if not self.legs:
            self.own_seconds = self.queued_tokens = self.new_tokens = 0.0
            self.rank_seconds = [0.0] * len(self.rank_seconds)
        self._set_prefill_key()

    def promise(self, flight: Flight, turn: int) -> None:
        """A request will decode here after its prefill; `turn` counts the requests of all workers."""
        self.pending += 1
        self.pending_context += flight.prompt_tokens
        self.pending_output += flight.output_tokens
        self.decode_share += flight.share
        if flight.tight_tpot_seconds < UNBOUNDED:
            self._tighten(flight.tight_tpot_seconds)
        self.take_turn(turn)

    def unpromise(self, flight: Flight) -> None:
        """A promised request no longer waits for its prefill: it joins now, or it is over."""
        self.pending -= 1
        self.pending_context = self.pending_context - flight.prompt_tokens if self.pending else 0.0
        self.pending_output = self.pending_output - flight.output_tokens if self.pending else 0.0

    def join(self, flight: Flight, now_seconds: float) -> None:
        """A request decodes."""
        self.advance(now_seconds)
        self.running += 1
        self.prompt_tokens += flight.prompt_tokens
        self.expected_tokens += flight.output_tokens
        self.joined_steps += self.steps
        flight.joined_steps = self.steps
        self._set_prefill_key()
        gone = now_seconds - self.joined_at
        self.join_rate = self.join_rate * exp(-max(gone, 0.0) / RATE_SECONDS) + 1 / RATE_SECONDS
        self.joined_at = now_seconds

    def progress(self, flight: Flight, output_tokens: float, now_seconds: float) -> None:
        """A running request is known to have made `output_tokens`."""
        self.advance(now_seconds)
        joined = self.steps - output_tokens
        self.joined_steps += joined - flight.joined_steps
        flight.joined_steps = joined
        if output_tokens > flight.output_tokens:
            self.expected_tokens += output_tokens - flight.output_tokens
            flight.output_tokens = output_tokens

    def leave(self, flight: Flight, now_seconds: float) -> None:
        """A request no longer decodes."""
        self.advance(now_seconds)
        self.running -= 1
        if self.running:
            self.prompt_tokens -= flight.prompt_tokens
            self.expected_tokens -= flight.output_tokens
            self.joined_steps -= flight.joined_steps
        else:
            self.prompt_tokens = self.expected_tokens = self.joined_steps = self.steps = 0.0
            self._set_prefill_key()

    def release(self, flight: Flight) -> None:
        """The room that was promised to a request is free again."""
        busy = self.running or self.pending
        self.decode_share = self.decode_share - flight.share if busy else 0.0
        if flight.tight_tpot_seconds < UNBOUNDED:
            self._loosen(flight.tight_tpot_seconds)
        self._set_decode_key()

    def advance(self, now_seconds: float) -> None:
        """Time went by: every running request has made a token for each step."""
        gone = now_seconds - self.decode_at
        if gone <= 0:
            return
        self.decode_at = now_seconds
        if self.running:
            self.steps += gone / self.step_seconds()

    def set_foreign(
        self, now_seconds: float, *, seconds: float, running: float, context_tokens: float, share: float
    ) -> None:
        """Work on it that was not started here, by its own report; `share`: what it takes of its capacity to decode."""
        if self.own_seconds + self.foreign_seconds <= 0 or not self.legs:
            self.anchor = now_seconds
            self.step_work_seconds = -1.0
        self.advance(now_seconds)
        self.foreign_seconds = seconds
        self.foreign_running = running
        self.foreign_context = context_tokens
        self.foreign_share = share
        self.reported_at = now_seconds
        self._set_prefill_key()
        self._set_decode_key()

    def _set_prefill_key(self) -> None:
        total = self.own_seconds + self.foreign_seconds
        # When its queue will be empty; for an idle one, or where nobody knows how long that takes, whose turn it is.
        if total > 0 and self.known:
            self.prefill_key = self.anchor + self.prefill_a + total
        else:
            self.prefill_key = (_DECODING if self.running else _IDLE) + len(self.legs) * _LEG + self.turn

    def _set_decode_key(self) -> None:
        # The one whose turn was the longest ago comes first among equals.
        self.decode_key = self.decode_share + self.foreign_share + _TIE * self.turn

    def _tighten(self, tpot_seconds: float) -> None:
        self.tights[tpot_seconds] = self.tights.get(tpot_seconds, 0) + 1
        self.tight_tpot_seconds = min(self.tight_tpot_seconds, tpot_seconds)

    def _loosen(self, tpot_seconds: float) -> None:
        if self.tights[tpot_seconds] > 1:
            self.tights[tpot_seconds] -= 1
        else:
            del self.tights[tpot_seconds]
            self.tight_tpot_seconds = min(self.tights, default=UNBOUNDED)
