"""One engine, or one rank of it: continuous batching as vLLM does it, advanced from change to change.

Every step takes one token for each decoding request and fills the rest of the token budget with chunks of waiting
prompts: those that have begun, then the others in the order of their arrival; when the KV blocks run out the latest
request is preempted and recomputed. Where classes have ranks, the queue is in the order of rank and arrival, and the
latest of the lowest class is preempted; what has begun goes on first all the same, as in vLLM. The role plays no part
in it: it only decides which requests are sent here. When steps end is said by `steps`: what comes in the middle of one
takes effect at the next step boundary, as in the engine. KV is pulled beside the steps, or between them (`Pulling`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from fulcrum.api.names import Role
from fulcrum.capacity.speed import Speed
from fulcrum.simulation.class_queue import ClassQueue
from fulcrum.simulation.decode_run import DecodeRun
from fulcrum.simulation.held_kv import HeldKv
from fulcrum.simulation.kv_blocks import KvBlocks
from fulcrum.simulation.kv_tiers import Restoring, WorkerTiers
from fulcrum.simulation.prefill_run import PrefillRun
from fulcrum.simulation.simulated_request import Leg, SimulatedRequest
from fulcrum.simulation.speed import StepTimes
from fulcrum.simulation.steps import WorkerSteps
from fulcrum.simulation.worker_host import WorkDone, WorkerHost


class SimulatedWorker:
    """State of one engine, or of one rank of data parallel. Policies read the public attributes."""

    def __init__(
        self,
        *,
        pod: str,
        pool: str,
        role: Role,
        speed: Speed,
        times: StepTimes,
        block_tokens: int,
        cached: bool,
        pauses: bool = False,
        ranks: Mapping[str | None, int] | None = None,
        tiers: WorkerTiers | None = None,
        steps: WorkerSteps,
        host: WorkerHost,
        dp_rank: int | None = None,
    ) -> None:
        """`pod` names the worker that it is, or of which it is one of several ranks of data parallel (`dp_rank`), which
        all take the same `steps`. `ranks` of the classes by name, the lowest first; None: all are alike. `tiers`: what
        is below its KV cache.
        """
        self.pod = pod
        self.dp_rank = dp_rank
        self.name = pod if dp_rank is None else f"{pod}/dp{dp_rank}"
        self.pool = pool
        self.role = role
        """As gateways see it."""
        self.speed = speed
        self.prefill_legs = 0
        """Prefill legs under way, as a gateway counts them."""
        self.decode_legs = 0
        """Requests promised to or under way on this worker as their last leg."""
        self.queued_tokens = 0
        """Prompt tokens that wait for prefill, those of begun prompts included."""
        self.waiting = _queue(ranks)
        """Requests that have not begun: prompts, and KV that is not being pulled yet."""
        self.loading = 0
        """Requests whose KV is on its way."""
        self.stopped = False
        self.work = WorkDone()
        self._steps = steps
        self.prefills = False
        """Its next step has chunks of prompts."""
        self.started: list[SimulatedRequest] = []
        """What has its first token after the next step."""
        # These get their first token by the run under way, of one step; on a shared machine only.
        self._first: list[SimulatedRequest] = []
        self._pauses = pauses  # no step while KV is on its way (`Pulling.BETWEEN`)
        self._times, self._host, self._tiers = times, host, tiers
        self._kv = KvBlocks(capacity_tokens=speed.kv_capacity_tokens, block_tokens=block_tokens, cached=cached)
        self.held = HeldKv(self._kv)
        """What is kept until decode workers have pulled it."""
        self.decode_run = DecodeRun(times, self._kv)
        """What decodes."""
        self._running: dict[int, SimulatedRequest] = {}  # in the order of their admission
        self._prefill = PrefillRun()
        self._ready = _queue(ranks)  # pulled, not in the batch yet
        self._leaving: list[SimulatedRequest] = []  # aborted while they decode: they are gone with the step under way
        self._ranks = ranks

    @property
    def in_flight(self) -> int:
        """Legs under way, as a gateway counts them."""
        return self.prefill_legs + self.decode_legs

    @property
    def batch(self) -> int:
        """Requests that decode."""
        return self.decode_run.batch

    @property
    def context_tokens(self) -> int:
        """Sum of their contexts at the start of the run under way."""
        return self.decode_run.context_tokens

    def steps_until(self, now: float) -> int:
        """Decode steps that it has taken, those of the run under way that are over included."""
        return self.decode_run.step + self._steps.over(now)

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
    def held_blocks(self) -> int:
        """KV blocks that are kept for decode workers (shared prefixes not counted)."""
        return self.held.blocks

    @property
    def running(self) -> int:
        """Requests in the engine's running batch: those that decode, and begun prompts."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        """Nothing runs, waits, loads or is held."""
        return not (self._running or self.waiting or self._ready or self.loading or self.held)

    def fits(self, request: SimulatedRequest) -> bool:
        """Report whether the request's whole sequence has room in the KV cache."""
        return self._kv.holds(request.prompt + request.output)

    def submit(self, request: SimulatedRequest, now: float) -> None:
        """Take a request's leg (`request.leg`)."""
        if request.held_by is None:
            self.queued_tokens += request.context
        self.waiting.append(request)
        self.wake(now)

    def kv_lost(self, request: SimulatedRequest) -> None:
        """The KV of a waiting request is gone before it was pulled: it will be computed here."""
        self.queued_tokens += request.context

    def cancel(self, request: SimulatedRequest, now: float) -> None:
        """Drop a request that was sent here; what is being computed of it is computed in vain."""
        if request.held_by is not None or request in self._ready:
            self._cancel_pulled(request)
            self.wake(now)
        elif request.index in self._running:
            if not self._prefill.drop(request):
                self._leaving.append(request)
                self.wake(now)
                return
            del self._running[request.index]
            self._kv.give_back(request, self._kv.blocks_of(request, request.context))
            self.queued_tokens -= request.context - request.done - request.restoring
            _stop_restoring(request)
        elif request in self.waiting:
            self.waiting.remove(request)
            self.queued_tokens -= request.context

    def _cancel_pulled(self, request: SimulatedRequest) -> None:
        """Drop a request whose KV waits at a peer, is on its way, or has come."""
        if request.loading:
            self.loading -= 1
        elif request in self._ready:
            self._ready.remove(request)
        else:
            if request in self.waiting:
                self.waiting.remove(request)
            return
        self._kv.give_back(request, self._kv.blocks_of(request, request.context))

    def loaded(self, request: SimulatedRequest, now: float) -> None:
        """The KV of a request has arrived."""
        self.loading -= 1
        self._ready.append(request)
        self.wake(now)

    def restored(self, request: SimulatedRequest, now: float) -> None:
        """The rest of a begun prompt's prefix is loaded: it goes on behind it once its front is computed."""
        if request.limit == request.done:
            _jump(request)
        else:
            request.loading = True  # until its front is computed
        self.wake(now)

    def release(self, request: SimulatedRequest, now: float) -> None:
        """The KV that was held for a peer is no longer needed."""
        self.held.release(request)
        if self.waiting:
            self.wake(now)

    def forget(self, request: SimulatedRequest, now: float) -> None:
        """The KV of a request that was on its way here will not come: compute it instead."""
        self.loading -= 1
        self._kv.give_back(request, self._kv.blocks_of(request, request.context))
        self.queued_tokens += request.context
        self.waiting.appendleft(request)
        self.wake(now)

    def wake(self, now: float) -> None:
        """Something changed: look at it at the next step boundary, which is now if there is no step under way."""
        self._steps.wake(now)

    def ended(self, steps: int, seconds: float, now: float) -> None:
        """So many steps are over, which took so long in all."""
        batch, work = self.decode_run.batch, self.work
        self._brings_first(self._first, now)
        self._first = []
        if steps > 0:
            if batch or self._prefill.chunks:
                work.busy_seconds += seconds
            if batch:
                work.decode_tokens += batch * steps
                work.decode_seconds += batch * seconds
                for request in self.decode_run.advance(steps):
                    del self._running[request.index]
                    self._host.finished(request, self, now)
            if self._prefill.chunks:
                self._end_chunks(now)

    def _end_chunks(self, now: float) -> None:
        work = self.work
        computed, whole = self._prefill.advance()
        self.queued_tokens -= computed
        for request, _ in self._prefill.chunks:
            if request.loading and request.limit == request.done:
                _jump(request)
        for request in whole:
            request.prefill_seconds = now - request.started_seconds
            work.prompts += 1
            work.prompt_tokens += request.context
            work.cached_tokens += request.cached
            work.prefill_seconds += request.prefill_seconds
            if self._tiers is not None:
                self._tiers.store(request)
            if request.leg is Leg.PREFILL:
                del self._running[request.index]
                self.held.hold(request)
                request.held_by = self
                self._host.prefilled(request, self, now)
                continue
            if request.first_token_seconds < 0:
                request.first_token_seconds = now
                if request.leg is Leg.WHOLE:
                    self._host.first_token(request, now)
            request.left -= 1
            if not request.left:
                del self._running[request.index]
                self._kv.give_back(request, self._kv.blocks_of(request, request.context))
                self._host.finished(request, self, now)
                continue
            before = self._kv.blocks_of(request, request.context)
            request.context += 1
            self._kv.used += self._kv.blocks_of(request, request.context) - before
            self.decode_run.join(request)

    def _preempt(self) -> None:
        """Free the blocks of the latest request of the lowest class; it is computed again when there is room."""
        latest, ranks = reversed(self._running.values()), self._ranks
        # Of equal ones `max` takes the first that it sees, which is the latest.
        request = next(latest) if ranks is None else max(latest, key=lambda each: ranks[each.qos_class])
        self.work.preemptions += 1
        del self._running[request.index]
        if request.done < request.context and self._prefill.drop(request):
            self._kv.give_back(request, self._kv.blocks_of(request, request.context))
            self.queued_tokens += request.done + request.restoring
            _stop_restoring(request)
        else:
            self.decode_run.drop(request)
            self.queued_tokens += request.context
        request.done = 0
        self.waiting.appendleft(request)

    def pulls_first(self, now: float) -> bool:
        """Pull what is to be there before the next step; report whether any KV is on its way."""
        return self._pauses and self._pull_all(now)

    def choose(self, now: float) -> int:
        """Choose what the next step computes; returns how often it may be taken until something changes, 0: never."""
        kv, running, decode = self._kv, self._running, self.decode_run
        for request in self._leaving:
            if running.pop(request.index, None) is not None:
                decode.drop(request)
        self._leaving.clear()
        started: list[SimulatedRequest] = []
        ready = self._ready
        while ready and len(running) < self.speed.max_batch:
            request = ready.popleft()
            running[request.index] = request
            decode.join(request)
            if request.first_token_seconds < 0:
                started.append(request)
        preempted = False
        while kv.used > kv.capacity and running:
            self._preempt()
            preempted = True
        prefill = self._prefill
        # A step that preempts lets no request in; if nothing is left to run, that step takes no time.
        tokens = self._fill(now, admit=not (preempted and running)) if self.waiting or prefill.chunks else 0
        self.started, self.prefills = started, tokens > 0
        if tokens:
            return 1
        if not decode.batch:
            return 0
        # There is no room for the one that was preempted, but there may be for one of a higher class.
        one = (preempted and self._ranks is not None) or (started and self._steps.shared)
        return 1 if one else decode.steps_until_change()

    def step_seconds(self) -> float:
        """Time that its next step takes by itself."""
        decode, prefill = self.decode_run, self._prefill
        return self._times.step_seconds(decode.batch, decode.context_tokens, prefill.tokens, prefill.squared_tokens)

    def bring_first(self, now: float, step_seconds: float) -> None:
        """What is in `started` has its first token after so many seconds."""
        if self._steps.shared:
            self._first = self.started
        else:
            self._brings_first(self.started, now + step_seconds)

    def _brings_first(self, started: list[SimulatedRequest], at: float) -> None:
        """The first tokens of these come at a time, of the requests that are still there."""
        for request in started:
            if request.first_token_seconds < 0 and request.index in self._running:
                request.first_token_seconds = at
                self._host.first_token(request, at)

    def _pull_all(self, now: float) -> bool:
        """Pull for those at the head of the queue, as far as there is room; report whether any KV is on its way."""
        waiting = self.waiting
        places = self.speed.max_batch - len(self._running) - len(self._ready) - self.loading
        while places > 0 and waiting and _is_pulled(waiting[0]) and self._kv.take(waiting[0]):
            places -= 1
            self.loading += 1
            self._host.pull(waiting.popleft(), self, now)
        return self.loading > 0

    def _fill(self, now: float, *, admit: bool) -> int:
        """Fill the step's budget with chunks of prompts, those that have begun first; returns their tokens."""
        prefill = self._prefill
        budget = prefill.go_on(self.speed.max_batched_tokens - self.decode_run.batch)
        waiting, running, kv = self.waiting, self._running, self._kv
        while admit and waiting and budget > 0 and len(running) < self.speed.max_batch:
            request = waiting[0]
            pulled = _is_pulled(request)
            if (pulled and self._pauses) or not kv.take(request):
                break
            waiting.popleft()
            if pulled:
                self.loading += 1
                self._host.pull(request, self, now)
                continue
            running[request.index] = request
            request.started_seconds = now
            request.done = request.cached
            self.queued_tokens -= request.cached
            if (found := self._restoring(request, now)) is not None:
                request.limit, request.restoring = found.compute_until, found.matched - found.compute_until
                self.queued_tokens -= request.restoring
                self._host.restore(request, self, found.ends)
            budget -= prefill.begin(request, budget)
        return prefill.tokens

    def _restoring(self, request: SimulatedRequest, now: float) -> Restoring | None:
        """Return what is loaded for a prompt that begins, while prompts that have begun come first."""
        if self._tiers is None:
            return None
        ahead = sum(begun.context - begun.done - begun.restoring - chunk for begun, chunk in self._prefill.chunks)
        return self._tiers.begin(request, now, ahead_tokens=ahead)

    def stop(self, now: float) -> list[SimulatedRequest]:
        """The engine dies: returns every request that was on it and had not been handed over."""
        self.stopped = True
        self._steps.stop(now)
        lost = {request.index: request for request in (*self._running.values(), *self.waiting, *self._ready)}
        for request in self._running.values():
            _stop_restoring(request)
        return list(lost.values())


def _queue(ranks: Mapping[str | None, int] | None) -> deque[SimulatedRequest] | ClassQueue:
    return deque() if ranks is None else ClassQueue(ranks)


def _jump(request: SimulatedRequest) -> None:
    """Go on behind what was loaded."""
    request.done += request.restoring
    request.cached += request.restoring
    request.limit, request.restoring, request.loading = None, 0, False


def _stop_restoring(request: SimulatedRequest) -> None:
    """What is being loaded is not wanted any more."""
    if request.limit is not None:
        request.event = -1
        request.limit, request.restoring, request.loading = None, 0, False


def _is_pulled(request: SimulatedRequest) -> bool:
    """Report whether a waiting request's KV is held for it by a peer."""
    return request.leg is Leg.DECODE and request.held_by is not None
