"""A slow engine to check the quick one by: one event per step, every block and context counted anew each time.

It has the same rules (see `fulcrum.simulation.worker`) for one worker and whole requests, and shares no code with it.
Where a request is in the queue, and who is preempted, goes by (rank, arrival) alone, as in vLLM's priority scheduling;
with equal ranks that is first come, first served.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fulcrum.capacity.speed import Speed


@dataclass
class Sequence:
    """One request."""

    index: int
    arrival_seconds: float
    prompt: int
    output: int
    rank: int = 0
    context: int = 0
    done: int = 0
    emitted: int = 0
    first: float | None = None
    end: float | None = None
    decoding: bool = False


@dataclass
class ReferenceEngine:
    """Runs whole requests on one worker without a prefix cache."""

    speed: Speed
    block_tokens: int = 16
    peak_blocks: int = 0
    steps: int = 0
    preemptions: int = 0
    now: float = 0.0
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    _under_way: tuple[list[Sequence], list[tuple[Sequence, int]]] = field(default=([], []))

    def run(self, requests: list[tuple[float, int, int]], ranks: list[int] | None = None) -> list[Sequence]:
        """Run (arrival, prompt, output) in order of arrival, the lowest rank first; returns them with their times."""
        every = [
            Sequence(i, *request, rank)
            for i, (request, rank) in enumerate(zip(requests, ranks or [0] * len(requests), strict=True))
        ]
        for each in every:
            each.context = each.prompt
        coming = list(every)
        while coming or self.waiting or self.running:
            if not self.running and not self.waiting:
                self.now = max(self.now, coming[0].arrival_seconds)
            while coming and coming[0].arrival_seconds <= self.now:
                self.waiting.append(coming.pop(0))
            self._step()
        return every

    def _blocks(self) -> int:
        return sum(-(-each.context // self.block_tokens) for each in self.running)

    def _step(self) -> None:
        self.now += self.begin_step()
        self.end_step()

    def begin_step(self) -> float:
        """Choose what the next step computes; returns the seconds that it takes a worker that is alone."""
        capacity = self.speed.kv_capacity_tokens // self.block_tokens
        preempted = False
        while self._blocks() > capacity:
            last = max(self.running, key=_turn)
            self.running.remove(last)
            last.decoding, last.done = False, 0
            self.waiting.append(last)
            self.preemptions += 1
            preempted = True
        self.waiting.sort(key=_turn)
        decodes = [each for each in self.running if each.decoding]
        budget = self.speed.max_batched_tokens - len(decodes)
        chunks: list[tuple[Sequence, int]] = []
        for each in self.running:
            if not each.decoding:
                chunk = max(0, min(budget, each.context - each.done))
                budget -= chunk
                chunks.append((each, chunk))
        while self.waiting and not preempted and budget > 0 and len(self.running) < self.speed.max_batch:
            if self._blocks() - (-self.waiting[0].context // self.block_tokens) > capacity:
                break
            each = self.waiting.pop(0)
            self.running.append(each)
            chunk = min(budget, each.context)
            budget -= chunk
            chunks.append((each, chunk))
        self.peak_blocks = max(self.peak_blocks, self._blocks())
        tokens = sum(chunk for _, chunk in chunks)
        squared = sum((each.done + chunk) ** 2 - each.done**2 for each, chunk in chunks)
        contexts = sum(each.context for each in decodes)
        seconds = 0.0
        if tokens:
            seconds += self.speed.prefill_seconds(tokens, squared)
        if decodes:
            seconds += self.speed.decode_step_seconds(len(decodes), contexts)
        if tokens and decodes:
            seconds -= min(self.speed.prefill_seconds(0, 0), self.speed.decode_step_seconds(0, 0))
        self._under_way = decodes, chunks
        return seconds

    def end_step(self) -> None:
        """The step that began last is over, `now`."""
        self.steps += 1
        decodes, chunks = self._under_way
        for each in decodes:
            self._emit(each)
        for each, chunk in chunks:
            each.done += chunk
            if each.done >= each.context:
                each.decoding = True
                self._emit(each)
        self.running = [each for each in self.running if each.end is None]

    def _emit(self, each: Sequence) -> None:
        each.emitted += 1
        each.context += 1
        if each.first is None:
            each.first = self.now
        if each.emitted == each.output:
            each.end = self.now


def _turn(each: Sequence) -> tuple[int, int]:
    return each.rank, each.index
