"""One engine: continuous batching as vLLM does it, advanced from change to change instead of step by step.

Every step takes one token for each decoding request and fills the rest of the token budget with chunks of waiting
prompts, first come, first served; when the KV blocks run out the latest request is preempted and recomputed. The role
plays no part in it: it only decides which requests are sent here.

As long as nothing joins, leaves or prefills, a run of k decode steps takes `k*base + slope*(k*C + B*k*(k-1)/2)`: each
context grows by one per step. A run ends at the first step at which something changes, so skipping the steps between
changes no result. What comes in the middle of a run takes effect at the next step boundary, as in the engine.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Protocol

from fulcrum.api.names import Role
from fulcrum.simulation.job import Job, Leg
from fulcrum.simulation.kv_blocks import KvBlocks
from fulcrum.simulation.speed import Speed, StepTimes
from fulcrum.simulation.timeline import Timeline


class WorkerHost(Protocol):
    """Who is told what a worker has done."""

    def finished(self, job: Job, worker: Worker, now: float) -> None:
        """Handle a job whose last token is out."""

    def prefilled(self, job: Job, worker: Worker, now: float) -> None:
        """Handle a job whose KV is ready and held for a decode worker."""

    def first_token(self, job: Job, now: float) -> None:
        """Handle a whole request whose prefill is done."""

    def pull(self, job: Job, worker: Worker, now: float) -> None:
        """Start moving the job's KV to `worker`, which has reserved the blocks; then call `loaded`."""


class Worker:
    """State of one engine. Policies read the public attributes."""

    __slots__ = (
        "_base",
        "_chunks",
        "_cut",
        "_finish",
        "_held",
        "_host",
        "_kv",
        "_max_batch",
        "_ready",
        "_running",
        "_slope",
        "_step",
        "_steps",
        "_timeline",
        "_times",
        "batch",
        "busy_seconds",
        "cached_tokens",
        "clock",
        "context_tokens",
        "decode_legs",
        "decode_seconds",
        "decode_tokens",
        "event",
        "held_blocks",
        "loading",
        "max_batched_tokens",
        "name",
        "pool",
        "preemptions",
        "prefill_legs",
        "prefill_seconds",
        "prompt_tokens",
        "prompts",
        "queued_tokens",
        "role",
        "speed",
        "stopped",
        "suspect",
        "tpot_ewma_seconds",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        *,
        name: str,
        pool: str,
        role: Role,
        speed: Speed,
        times: StepTimes,
        block_tokens: int,
        cached: bool,
        timeline: Timeline,
        host: WorkerHost,
    ) -> None:
        self.name = name
        self.pool = pool
        self.role = role
        """As gateways see it."""
        self.speed = speed
        self.suspect = False
        self.prefill_legs = 0
        """Prefill legs under way, as a gateway counts them."""
        self.decode_legs = 0
        """Requests promised to or under way on this worker as their last leg."""
        self.batch = 0
        """Requests that decode."""
        self.context_tokens = 0
        """Sum of their contexts at the start of the step that runs."""
        self.queued_tokens = 0
        """Prompt tokens that wait for prefill, those of begun prompts included."""
        self.waiting: deque[Job] = deque()
        """Requests that have not begun: prompts, and KV that is not being pulled yet."""
        self.loading = 0
        """Requests whose KV is on its way."""
        self.held_blocks = 0
        """Blocks that are kept until a decode worker has pulled them (shared prefixes not counted)."""
        self.stopped = False
        self.clock = 0.0
        self.prompts = self.prompt_tokens = self.cached_tokens = self.decode_tokens = self.preemptions = 0
        self.prefill_seconds = self.decode_seconds = self.busy_seconds = self.tpot_ewma_seconds = 0.0
        self.event = -1
        self.max_batched_tokens = speed.max_batched_tokens
        self._max_batch = speed.max_batch
        self._times, self._base, self._slope = times, times.base, times.slope
        self._timeline, self._host = timeline, host
        self._kv = KvBlocks(capacity_tokens=speed.kv_capacity_tokens, block_tokens=block_tokens, cached=cached)
        self._running: dict[int, Job] = {}  # in the order of their admission
        self._chunks: list[tuple[Job, int]] = []  # of the step that runs
        self._finish: list[tuple[int, int, Job]] = []  # by the step after which they end
        self._ready: deque[Job] = deque()  # pulled, not in the batch yet
        self._held: dict[int, Job] = {}
        self._step = 0
        self._steps = -1  # of the run under way; -1: idle
        self._cut = False  # the run already ends at its next boundary

    @property
    def in_flight(self) -> int:
        """Legs under way, as a gateway counts them."""
        return self.prefill_legs + self.decode_legs

    @property
    def kv_usage(self) -> float:
        """Fraction of KV blocks in use."""
        return self._kv.used / self._kv.capacity

    @property
    def kv_capacity_blocks(self) -> int:
        """KV blocks in all."""
        return self._kv.capacity

    @property
    def kv_used_blocks(self) -> int:
        """KV blocks in use."""
        return self._kv.used

    @property
    def running(self) -> int:
        """Requests in the engine's running batch: those that decode, and begun prompts."""
        return len(self._running)

    @property
    def held(self) -> int:
        """Requests whose KV is kept until a decode worker has pulled it."""
        return len(self._held)

    @property
    def idle(self) -> bool:
        """Nothing runs, waits, loads or is held."""
        return not (self._running or self.waiting or self._ready or self.loading or self._held)

    def fits(self, job: Job) -> bool:
        """Report whether the job's whole sequence has room in the KV cache."""
        return self._kv.holds(job.prompt + job.output)

    def submit(self, job: Job, now: float) -> None:
        """Take a job's leg (`job.leg`)."""
        if job.held_by is None:
            self.queued_tokens += job.context
        self.waiting.append(job)
        self.wake(now)

    def kv_lost(self, job: Job) -> None:
        """The KV of a waiting job is gone before it was pulled: it will be computed here."""
        self.queued_tokens += job.context

    def cancel(self, job: Job) -> None:
        """Drop a job that has not been prefilled; a chunk of it that is being computed is computed in vain."""
        if job.index in self._running:
            self._chunks = [(each, tokens) for each, tokens in self._chunks if each is not job]
            del self._running[job.index]
            self._kv.give_back(job, self._kv.blocks_of(job, job.context))
            self.queued_tokens -= job.context - job.done
        elif job in self.waiting:
            self.waiting.remove(job)
            self.queued_tokens -= job.context

    def loaded(self, job: Job, now: float) -> None:
        """The KV of a job has arrived."""
        self.loading -= 1
        self._ready.append(job)
        self.wake(now)

    def release(self, job: Job, now: float) -> None:
        """The KV that was held for a peer is no longer needed."""
        del self._held[job.index]
        kv = self._kv
        pinned, job.pinned = job.pinned, job.held_pins
        blocks = kv.blocks_of(job, job.prompt)
        self.held_blocks -= blocks
        kv.give_back(job, blocks)
        job.pinned, job.held_by, job.held_pins = pinned, None, 0
        if self.waiting:
            self.wake(now)

    def forget(self, job: Job, now: float) -> None:
        """The KV of a job that was on its way here will not come: compute it instead."""
        self.loading -= 1
        self._kv.give_back(job, self._kv.blocks_of(job, job.context))
        self.queued_tokens += job.context
        self.waiting.appendleft(job)
        self.wake(now)

    def wake(self, now: float) -> None:
        """Something changed: look at it at the next step boundary, which is now if there is no step under way."""
        if self._steps < 0:
            self._steps = 0
            self._cut = True
            self.clock = now
            self._timeline.plan(now, self)
        elif not self._cut:
            self._cut = True
            steps, seconds = self._boundary(now - self.clock)
            if steps < self._steps:
                self._steps = steps
                self._timeline.plan(self.clock + seconds, self)

    def _boundary(self, elapsed_seconds: float) -> tuple[int, float]:
        """Return the first step boundary not before `elapsed_seconds` of this run, and when it is: a quadratic.

        The step that began is always finished, so it is at least the first.
        """
        batch = self.batch
        slope = self._slope[batch]
        quadratic = slope * batch / 2
        linear = self._base[batch] + slope * self.context_tokens - quadratic
        root = linear + math.sqrt(max(0.0, linear * linear + 4 * quadratic * elapsed_seconds))
        if root <= 0.0:
            return self._steps, self._run_seconds(self._steps)
        steps = max(1, math.ceil(2 * elapsed_seconds / root))
        while steps > 1 and self._run_seconds(steps - 1) >= elapsed_seconds:
            steps -= 1
        while (seconds := self._run_seconds(steps)) < elapsed_seconds:
            steps += 1
        return steps, seconds

    def _run_seconds(self, steps: int) -> float:
        """Seconds of `steps` decode steps from the start of this run, the batch unchanged."""
        batch = self.batch
        contexts = steps * self.context_tokens + batch * (steps * (steps - 1) // 2)
        return steps * self._base[batch] + self._slope[batch] * contexts

    def fire(self, now: float) -> None:
        """A run of steps is over."""
        steps, batch = self._steps, self.batch
        seconds = now - self.clock
        self.clock = now
        self._cut = True  # what comes meanwhile is looked at below
        if steps > 0:
            self.busy_seconds += seconds
            if batch:
                self._kv.grow(self._step, steps)
                self._step += steps
                self.context_tokens += batch * steps
                self.decode_tokens += batch * steps
                self.decode_seconds += batch * seconds
                self.tpot_ewma_seconds = seconds / steps
                finish, step = self._finish, self._step
                while finish and finish[0][0] <= step:
                    job = heappop(finish)[2]
                    self._leave(job)
                    self._host.finished(job, self, now)
            if self._chunks:
                self._end_chunks(now)
        self._schedule(now)

    def _end_chunks(self, now: float) -> None:
        chunks, self._chunks = self._chunks, []
        for job, tokens in chunks:
            job.done += tokens
            job.computed += tokens
            self.queued_tokens -= tokens
            if job.done < job.context:
                self._chunks.append((job, 0))
                continue
            self.prompts += 1
            self.prompt_tokens += job.context
            self.cached_tokens += job.cached
            job.prefill_seconds = now - job.started_seconds
            self.prefill_seconds += job.prefill_seconds
            if job.leg is Leg.PREFILL:
                del self._running[job.index]
                self._held[job.index] = job
                self.held_blocks += self._kv.blocks_of(job, job.prompt)
                job.held_by, job.held_pins, job.pinned = self, job.pinned, 0
                self._host.prefilled(job, self, now)
                continue
            if job.first_token_seconds < 0:
                job.first_token_seconds = now
                if job.leg is Leg.WHOLE:
                    self._host.first_token(job, now)
            job.left -= 1
            if not job.left:
                del self._running[job.index]
                self._kv.give_back(job, self._kv.blocks_of(job, job.context))
                self._host.finished(job, self, now)
                continue
            before = self._kv.blocks_of(job, job.context)
            job.context += 1
            self._kv.used += self._kv.blocks_of(job, job.context) - before
            self._join(job)

    def _join(self, job: Job) -> None:
        """Decode from the next step on."""
        self._running[job.index] = job
        job.joined_step = self._step
        self.batch += 1
        self.context_tokens += job.context
        self._kv.join(job.context, self._step)
        heappush(self._finish, (self._step + job.left, job.index, job))

    def _leave(self, job: Job) -> None:
        """Decode no longer; `context` and `left` become what they are now."""
        taken = self._step - job.joined_step
        job.context += taken
        job.left -= taken
        del self._running[job.index]
        self.batch -= 1
        self.context_tokens -= job.context
        self._kv.leave(job.context, self._step)
        self._kv.give_back(job, self._kv.blocks_of(job, job.context))

    def _preempt(self) -> None:
        """Free the blocks of the latest request; it is computed again when there is room."""
        job = self._running[next(reversed(self._running))]
        self.preemptions += 1
        if job.done < job.context and any(each is job for each, _ in self._chunks):
            self._chunks = [(each, tokens) for each, tokens in self._chunks if each is not job]
            del self._running[job.index]
            self._kv.give_back(job, self._kv.blocks_of(job, job.context))
            self.queued_tokens += job.done
        else:
            self._finish = [entry for entry in self._finish if entry[2] is not job]
            heapify(self._finish)
            self._leave(job)
            self.queued_tokens += job.context
        job.done = 0
        self.waiting.appendleft(job)

    def _schedule(self, now: float) -> None:
        """Begin the next step, or the next run of steps."""
        kv, running = self._kv, self._running
        started: list[Job] = []
        ready = self._ready
        while ready and len(running) < self._max_batch:
            job = ready.popleft()
            self._join(job)
            if job.first_token_seconds < 0:
                started.append(job)
        preempted = False
        while kv.used > kv.capacity and running:
            self._preempt()
            preempted = True
        tokens, squared = self._fill(now, admit=not preempted) if self.waiting or self._chunks else (0, 0)
        self._cut = False
        if tokens:
            self._steps = 1
            first = seconds = self._times.step_seconds(self.batch, self.context_tokens, tokens, squared)
            self._cut = True
        elif self.batch:
            self._steps = kv.steps_within(self._step, self._finish[0][0] - self._step)
            seconds = self._run_seconds(self._steps)
            first = self._run_seconds(1) if started else 0.0
        else:
            self._steps = -1
            return
        for job in started:
            if job.first_token_seconds < 0 and job.index in running:
                job.first_token_seconds = now + first
        self._timeline.plan(now + seconds, self)

    def _fill(self, now: float, *, admit: bool) -> tuple[int, int]:
        """Fill the step's budget with chunks of prompts; returns their tokens and the growth of squared lengths."""
        budget = self.max_batched_tokens - self.batch
        chunks: list[tuple[Job, int]] = []
        total = squared = 0
        for job, _ in self._chunks:
            chunk = max(0, min(budget, job.context - job.done))
            budget -= chunk
            total += chunk
            squared += chunk * (chunk + 2 * job.done)
            chunks.append((job, chunk))
        waiting, running, kv = self.waiting, self._running, self._kv
        while admit and waiting and budget > 0 and len(running) < self._max_batch:
            job = waiting[0]
            if not kv.take(job):
                break
            waiting.popleft()
            if job.leg is Leg.DECODE and job.held_by is not None:
                self.loading += 1
                self._host.pull(job, self, now)
                continue
            running[job.index] = job
            job.started_seconds = now
            job.done = job.cached
            self.queued_tokens -= job.cached
            chunk = min(budget, job.context - job.done)
            budget -= chunk
            total += chunk
            squared += chunk * (chunk + 2 * job.done)
            chunks.append((job, chunk))
        self._chunks = chunks
        return total, squared

    def stop(self) -> list[Job]:
        """The engine dies: returns every job that was on it and had not been handed over."""
        self.stopped = True
        self.event = -1
        lost = {job.index: job for job in (*self._running.values(), *self.waiting, *self._ready)}
        self._steps = -1
        return list(lost.values())

    @property
    def held_jobs(self) -> tuple[Job, ...]:
        """The jobs whose KV is held, the longest held first."""
        return tuple(self._held.values())
