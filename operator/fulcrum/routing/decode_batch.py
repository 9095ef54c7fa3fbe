"""What decodes on one worker, and what will: own requests (started here), and foreign ones (in its reports only). Pure.

Kept in O(1) for each event. Times are the caller's clock in seconds; nothing here reads one.
"""

from __future__ import annotations

from math import exp, inf

from fulcrum.routing.engine_speed import EngineSpeed
from fulcrum.routing.request_load import RequestLoad
from fulcrum.routing.tuning import TUNING

Decoding = tuple[int, float, float, float, int, float, float]


class DecodeBatch:
    """The batch of a worker.

    `steps` counts the engine's decode steps, so a request's progress is a difference of two counts, and the sums over
    all requests (prompts, steps at joining, expected outputs) give contexts and what is left.
    """

    def __init__(self, engine: EngineSpeed) -> None:
        self.engine = engine
        self.running = 0
        self.prompt_tokens = self.joined_steps = self.expected_tokens = 0.0
        """Sums over own running requests."""
        self.steps = self.decode_at = 0.0
        """Steps that it has made, as of a time."""
        self.pending = 0
        """Requests that will decode here and are still in prefill."""
        self.pending_context = self.pending_output = 0.0
        self.decode_share = self.batch_share = 0.0
        """Parts of its capacity that own requests take; those of batch requests are in both."""
        self.join_rate = self.joined_at = 0.0
        """Requests that join it in a second, as of a time."""
        self.memory_seconds = TUNING.memory_seconds
        """Memory of the rates at which work comes to the worker."""
        self.tights: dict[float, int] = {}
        self.tight_tpot_seconds = inf
        """The tightest TPOT that a request here was promised beyond the cluster's."""
        self.foreign_running = self.foreign_context = self.foreign_share = 0.0

    # What can be asked.

    @property
    def requests(self) -> float:
        """All that decode here, and that will as far as is known."""
        return self.running + self.pending + self.foreign_running

    @property
    def load(self) -> float:
        """Part of its capacity that is promised, or of its KV cache that is in use: answers outgrow expectations."""
        promised, capacity = self.decode_share + self.foreign_share, self.engine.kv_capacity
        return max(promised, (self.context_tokens + self.foreign_context) / capacity) if capacity > 0 else promised

    def step_seconds(self) -> float:
        """One decode step of what runs now."""
        batch = self.running + self.foreign_running
        a, b, c = self.engine.decode_line(batch)
        return max(a + b * batch + c * (self.context_tokens + self.foreign_context), self.engine.least_step)

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
        # will be, as in `PrefillQueue.backlog_seconds`.
        return max(left, -left / 2, TUNING.least_left * self.expected_tokens, self.running) / self.running

    # What happens.

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
        """A request answers."""
        self.advance(now_seconds)
        self.running += 1
        self.prompt_tokens += load.prompt_tokens
        self.expected_tokens += load.output_tokens
        self.joined_steps += self.steps
        load.joined_steps = self.steps
        # At least as long as an answer takes: what comes meanwhile sets its pace, and 10 s may hold one long prompt.
        gone = now_seconds - self.joined_at
        life_seconds = self.expected_tokens / self.running * self.step_seconds()
        self.memory_seconds = memory = max(TUNING.memory_seconds, life_seconds)
        self.join_rate = self.join_rate * exp(-max(gone, 0.0) / memory) + 1 / memory
        self.joined_at = now_seconds

    def leave(self, load: RequestLoad, now_seconds: float) -> None:
        """A request no longer answers."""
        self.advance(now_seconds)
        self._take_off(load)
        if not self.running:
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

    def advance(self, now_seconds: float) -> None:
        """Time went by: every running request has made a token for each step."""
        gone = now_seconds - self.decode_at
        if gone <= 0:
            return
        self.decode_at = now_seconds
        if self.running:
            self.steps += gone / self.step_seconds()

    def decoding(self) -> Decoding:
        """What decodes here and what will, as `set_aside` changes it and `put_back` restores it."""
        return (
            self.running, self.prompt_tokens, self.joined_steps, self.expected_tokens, self.pending,
            self.pending_context, self.pending_output,
        )  # fmt: skip

    def set_aside(self, load: RequestLoad, *, joined: bool) -> None:
        """Predict without a request that decodes here (`joined`), or will after its prefill."""
        if joined:
            self._take_off(load)
        else:
            self.unpromise(load)

    def put_back(self, decoding: Decoding) -> None:
        """End what `set_aside` began."""
        (
            self.running, self.prompt_tokens, self.joined_steps, self.expected_tokens, self.pending,
            self.pending_context, self.pending_output,
        ) = decoding  # fmt: skip

    def _take_off(self, load: RequestLoad) -> None:
        self.running -= 1
        self.prompt_tokens -= load.prompt_tokens
        self.expected_tokens -= load.output_tokens
        self.joined_steps -= load.joined_steps
