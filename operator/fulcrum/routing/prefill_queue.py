"""The prompts on one worker: what waits, what is under way, and when a further one would have its turn. Pure.

Kept in O(1) for each event. Times are the caller's clock in seconds; nothing here reads one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from math import ceil, exp

from fulcrum.api.worker import WorkCounters
from fulcrum.routing.request_load import RequestLoad
from fulcrum.routing.tuning import TUNING


class PrefillQueue:
    """The prompts on a worker: own ones (started here), and foreign ones (in its reports only)."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        """By class: in which order the engine takes what waits."""
        self.legs: dict[RequestLoad, None] = {}
        """Own prompts, in the order of their start."""
        self.own_seconds = 0.0
        """Their summed time, known to be right at `anchor`."""
        self.rank_seconds = [0.0] * (max(ranks) + 1)
        """`own_seconds` by rank."""
        self.foreign_seconds = 0.0
        self.queued_tokens = self.new_tokens = 0.0
        """Of all prompts, and of what of them is not cached."""
        self.anchor = 0.0
        self.step_work_seconds, self.step_tokens = -1.0, 0.0
        """Own prefill in the step that began at `anchor`; below 0: to be worked out."""
        self.step_legs: set[RequestLoad] = set()
        self.memory_seconds = TUNING.memory_seconds
        """Memory of the rates at which work comes to it."""
        self.prefill_rate = 0.0
        """Share of its time that prompts took, at `used_at`; own batch prompts, which are let in after it, apart."""
        self.used_at = 0.0
        self.batch_rate = self.batch_used_at = 0.0
        """The same of own batch prompts."""
        self.answered_tokens = 0.0
        """Tokens that were to be computed of the own prompts that were answered since its last report."""
        self.computed_tokens: int | None = None
        """Tokens of all prompts that its engine had computed by its last report; None: unknown."""
        self.usual = UsualPrompt()
        self.prefill_a, self.chunk_tokens = 0.0, 1.0

    def set_speed(self, prefill_a: float, chunk_tokens: float) -> None:
        """How long a step of its engine takes at least, and how many tokens are in it at most."""
        self.prefill_a, self.chunk_tokens = prefill_a, chunk_tokens
        self.step_work_seconds = -1.0

    # What can be asked.

    @property
    def busy(self) -> bool:
        """It has prompts, own or foreign."""
        return bool(self.legs or self.foreign_seconds)

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
            # Overdue: its end was not seen. The longer it hangs, the longer it will go on to.
            return total - limit + (credit - limit) / 2
        return total - credit if credit > 0 else total

    def step_left_seconds(self, now_seconds: float) -> float:
        """Time that is left of its step with prompts that is under way."""
        credit = now_seconds - self.anchor
        if credit < 0 or not self.busy:
            return 0.0
        begun = self._begun_seconds()
        return begun - credit if credit <= begun else (credit - begun) / 2  # as in `backlog_seconds`

    def waiting_seconds(self, now_seconds: float) -> tuple[float, float]:
        """Time of its next step with what waits for it, and of all that waits."""
        if not self.legs:
            return 0.0, 0.0
        begun = self._begun_seconds()
        if now_seconds < self.anchor:
            return begun, self.prefill_a + self.own_seconds
        waiting = self.own_seconds - self.step_work_seconds
        tokens = self.new_tokens - self.step_tokens
        if waiting <= 0 or tokens <= 0:
            return 0.0, 0.0
        return self.prefill_a + waiting * min(self.chunk_tokens / tokens, 1.0), self.prefill_a + waiting

    def overtaken(self, rank: int) -> list[RequestLoad]:
        """Legs of lower ranks that a prompt of `rank` would be served before, in the order of their service.

        What has begun is not interrupted: the engine goes on with it in its next step before it takes what waits.
        """
        self._begun_seconds()
        in_order = self._in_order(self.legs)
        return [leg for leg in in_order if self.ranks[leg.qos] > rank and leg not in self.step_legs]

    def batch_fits(self, new_tokens: float, seconds_per_token: float, most_seconds: float) -> bool:
        """Report whether only batch prompts are here, which with one more of `new_tokens` are in one short step."""
        if self.foreign_seconds or any(not leg.batch for leg in self.legs):
            return False
        self._begun_seconds()
        tokens = new_tokens + self.new_tokens - self.step_tokens
        return tokens <= self.chunk_tokens and self.prefill_a + tokens * seconds_per_token <= most_seconds

    def begun_batch(self) -> list[RequestLoad]:
        """Batch prompts that have begun and need more steps than the one under way."""
        self._begun_seconds()
        return [leg for leg in self.step_legs if leg.batch and leg.new_tokens > self.chunk_tokens]

    def prefill_share(self, now_seconds: float) -> float:
        """Share of its time that prompts took in the last seconds, whichever gateway sent them."""
        return max(self._faded_rate(now_seconds), 0.0)

    def batch_share(self, now_seconds: float) -> float:
        """Share of its time that own batch prompts took in the last seconds."""
        return self.batch_rate * exp(-max(now_seconds - self.batch_used_at, 0.0) / self.memory_seconds)

    def lower_seconds(self, rank: int) -> float:
        """Prefill of legs of lower ranks."""
        return sum(self.rank_seconds[rank + 1 :], 0.0)

    def overdue(self, now_seconds: float) -> bool:
        """Its prefill takes more than twice as long as predicted, so its sort key cannot be believed."""
        return now_seconds - self.anchor > 2 * self._begun_seconds()

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

    def _begun_seconds(self) -> float:
        """Prefill of the step that is believed to be under way: foreign work, and what waited when it began."""
        if self.step_work_seconds < 0:
            self._find_step()
        return self.foreign_seconds + self.prefill_a + self.step_work_seconds

    def _find_step(self) -> None:
        """An engine takes all that waits in one step, those of the highest rank first, up to its token budget."""
        self.step_work_seconds = self.step_tokens = 0.0
        self.step_legs = set()
        room = self.chunk_tokens
        for leg in self._in_order(takewhile(lambda leg: leg.started_at <= self.anchor, self.legs)):
            # The first one counts in full: no answer comes before it, however many steps it takes.
            tokens = min(leg.new_tokens, room) if self.step_legs else leg.new_tokens
            self.step_work_seconds += leg.work_seconds * tokens / leg.new_tokens
            self.step_tokens += tokens
            self.step_legs.add(leg)
            room -= tokens
            if room <= 0:
                break

    def _in_order(self, legs: Iterable[RequestLoad]) -> list[RequestLoad]:
        """Sort legs as the engine serves them."""
        if len(self.rank_seconds) == 1:
            return list(legs)
        return sorted(legs, key=lambda leg: self.ranks[leg.qos])

    # What happens.

    def queue(self, load: RequestLoad, now_seconds: float, wait_seconds: float = 0.0) -> None:
        """A prefill leg was sent to it. If it has no other one, its step begins in `wait_seconds`."""
        if self.own_seconds + self.foreign_seconds <= 0:
            self.anchor = now_seconds + wait_seconds
        if now_seconds <= self.anchor:
            self.step_work_seconds = -1.0
        self.legs[load] = None
        self.own_seconds += load.work_seconds
        self.rank_seconds[self.ranks[load.qos]] += load.work_seconds
        self.queued_tokens += load.prompt_tokens
        self.new_tokens += load.new_tokens
        if load.batch:
            self.batch_rate = self.batch_share(now_seconds) + load.work_seconds / self.memory_seconds
            self.batch_used_at = now_seconds
        else:
            self._takes(load.work_seconds, now_seconds)

    def begin_by(self, now_seconds: float) -> None:
        """Its next step begins now, if it was to begin later."""
        if self.anchor > now_seconds:
            self.anchor = now_seconds
            self.step_work_seconds = -1.0

    def unqueue(self, load: RequestLoad, now_seconds: float, *, done: bool) -> None:
        """A prefill leg ended: it was answered (`done`), or it was taken away."""
        del self.legs[load]
        self.step_work_seconds = -1.0
        self.own_seconds -= load.work_seconds
        self.rank_seconds[self.ranks[load.qos]] -= load.work_seconds
        self.queued_tokens -= load.prompt_tokens
        self.new_tokens -= load.new_tokens
        if done:
            self.answered_tokens += load.new_tokens
            # What was neither spent on this leg nor waited for belonged to a foreign one.
            spare = now_seconds - self.anchor - self.prefill_a - load.work_seconds
            self.foreign_seconds = max(self.foreign_seconds - max(spare, 0.0), 0.0)
            self.anchor = now_seconds
        if not self.legs:
            self.own_seconds = self.queued_tokens = self.new_tokens = 0.0
            self.rank_seconds = [0.0] * len(self.rank_seconds)

    def set_computed(self, now_seconds: float, computed_tokens: int, seconds_per_token: float) -> None:
        """Its engine has computed so many prompt tokens since its start: those of other gateways take its time, too."""
        if self.computed_tokens is not None and computed_tokens >= self.computed_tokens:
            seconds = (computed_tokens - self.computed_tokens - self.answered_tokens) * seconds_per_token
            self._takes(seconds, now_seconds)
            if seconds > 0:
                # Time spent on prompts of others that are done by now brought none of the waiting ones nearer.
                self.anchor = min(self.anchor + seconds, now_seconds)
                self.step_work_seconds = -1.0
        self.computed_tokens, self.answered_tokens = computed_tokens, 0.0

    def _takes(self, seconds: float, now_seconds: float) -> None:
        """Prompts take so much of its time; below 0 where own ones took less than was expected of them."""
        self.prefill_rate = self._faded_rate(now_seconds) + seconds / self.memory_seconds
        self.used_at = now_seconds

    def _faded_rate(self, now_seconds: float) -> float:
        return self.prefill_rate * exp(-max(now_seconds - self.used_at, 0.0) / self.memory_seconds)

    def set_foreign_prefill(self, now_seconds: float, seconds: float) -> None:
        """So much prefill was not started here, by the worker's own report."""
        if self.own_seconds + self.foreign_seconds <= 0 or not self.legs:
            self.anchor = now_seconds
            self.step_work_seconds = -1.0
        self.foreign_seconds = seconds


class UsualPrompt:
    """Mean of the prompts that a worker's engine prefilled lately, whichever gateway sent them; sums that fade."""

    __slots__ = ("_counted", "_prompts", "_tokens", "_uncached")

    def __init__(self) -> None:
        self._counted: WorkCounters | None = None
        self._prompts = self._tokens = self._uncached = 0.0

    def learn(self, work: WorkCounters) -> None:
        """Take the engine's counters, which begin again with it."""
        before, self._counted = self._counted, work
        prompts = work.prompts - before.prompts if before is not None else 0
        if before is None or prompts <= 0:
            return
        tokens, cached = work.prompt_tokens - before.prompt_tokens, work.cached_tokens - before.cached_tokens
        left = (1 - 1 / TUNING.recent_requests) ** prompts
        self._prompts = left * self._prompts + prompts
        self._tokens = left * self._tokens + tokens
        self._uncached = left * self._uncached + max(tokens - cached, 0)

    def tokens(self, else_tokens: float) -> tuple[float, float]:
        """Return the mean length, at least 1, and what of it is computed; `else_tokens` of both while none came."""
        if not self._tokens:
            return max(else_tokens, 1.0), max(else_tokens, 1.0)
        return self._tokens / self._prompts, max(self._uncached / self._prompts, 1.0)
