"""Accept a request or turn it away, at its arrival, by what is predicted for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fulcrum.admission.classes import ClassTable
from fulcrum.admission.learnt import Learnt
from fulcrum.admission.limits import over_idle, over_memory, over_threshold, over_tpot, over_ttft
from fulcrum.admission.outcome import Admit, Over, Preempt, Reject, Tally, ThresholdLimits
from fulcrum.admission.shares import ClassShares, Overtaken
from fulcrum.admission.tuning import TUNING
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, QosClass
from fulcrum.routing import (
    AffinityMemory,
    BatchInTheWay,
    ClusterView,
    Flight,
    Incoming,
    NoPath,
    Route,
    route,
)
from fulcrum.routing.tuning import TUNING as ROUTING

# Looking up a member of an enum costs half a microsecond.
_OFF: Final = AdmissionPolicy.OFF
_THRESHOLD: Final = AdmissionPolicy.THRESHOLD
_UNBOUNDED: Final = float("inf")


class Admission:
    """Admission of one cluster: its policy, its classes, and what was learned so far."""

    def __init__(
        self,
        policy: AdmissionPolicy,
        classes: Sequence[QosClass] = (),
        *,
        ttft_seconds: float = 2.0,
        tpot_seconds: float = 0.1,
        attainment: float = 0.95,
        gateways: int = 1,
        limits: ThresholdLimits | None = None,
    ) -> None:
        """`gateways`: replicas that share the traffic evenly."""
        self.policy = policy
        self.classes = ClassTable(classes)
        self.learnt = Learnt(
            len(self.classes), ttft_seconds=ttft_seconds, tpot_seconds=tpot_seconds, attainment=attainment
        )
        self.admitted = [0] * len(self.classes)
        """Admitted requests, by class."""
        self.rejected: dict[tuple[str, Reason], Tally] = {}
        """Rejected (and preempted) requests, by class and reason."""
        self._limits = limits or ThresholdLimits()
        self._shares = ClassShares(self.classes, gateways=gateways)
        self._saturated_until = -_UNBOUNDED

    def share(self, gateways: int) -> None:
        """So many gateways share the traffic evenly from now on."""
        self._shares.gateways = gateways

    def new_view(
        self, affinity: AffinityMemory | None = None, units_per_token: float = ROUTING.bytes_per_token
    ) -> ClusterView:
        """A view that speaks of the same classes and promises."""
        return ClusterView(
            class_names=self.classes.names,
            ranks=self.classes.ranks,
            batch=self.classes.batch,
            ttft_seconds=self.learnt.ttft_seconds,
            tpot_seconds=self.learnt.tpot_seconds,
            affinity=affinity,
            units_per_token=units_per_token,
        )

    def incoming(
        self,
        *,
        prompt_tokens: float,
        max_tokens: float | None = None,
        qos: int = 0,
        prefix: tuple[int, ...] = (),
        units_per_token: float = 1.0,
        ttft_seconds: float = _UNBOUNDED,
        tpot_seconds: float = _UNBOUNDED,
        whole: bool = False,
        adapter: str = "",
    ) -> Incoming:
        """A request, the length of its output estimated; `units_per_token` are those of its `prefix`."""
        return Incoming(
            prompt_tokens=prompt_tokens,
            output_tokens=self.learnt.outputs.expect(qos, prompt_tokens, max_tokens),
            qos=qos,
            # A request may ask for more than is promised to all, never for less.
            ttft_seconds=ttft_seconds if ttft_seconds < self.learnt.ttft_seconds else _UNBOUNDED,
            tpot_seconds=tpot_seconds if tpot_seconds < self.learnt.tpot_seconds else _UNBOUNDED,
            prefix=prefix,
            units_per_token=units_per_token,
            whole=whole,
            adapter=adapter,
        )

    def decide(self, incoming: Incoming, view: ClusterView, now_seconds: float) -> Admit | Preempt | Reject:
        """Whether, and where, to serve a request: `view.start` is the caller's.

        Changes only counters, demand, and what requests that wait where it is to go are expected to take.
        """
        decided = self.consider(incoming, view, now_seconds)
        if isinstance(decided, Reject):
            self.refuse(incoming, decided)
        return decided

    def consider(
        self, incoming: Incoming, view: ClusterView, now_seconds: float, *, again: bool = False
    ) -> Admit | Preempt | Reject:
        """As `decide`, without counting a rejection: the request may wait, and be asked about `again`.

        The caller counts a rejection that is final with `refuse`.

        A class that can be degraded is, while the cluster is saturated: that begins with a rejection, and ends when
        the rejected request could have come in. To one that has waited it is.
        """
        view.pass_time(now_seconds)
        self.learnt.forget(view, now_seconds)
        self.learnt.outputs.look(view.decoding, now_seconds)
        cap = self.classes.output_caps[incoming.qos]
        if cap is not None and (incoming.waited_seconds > 0 or now_seconds < self._saturated_until):
            incoming = capped(incoming, cap)
            return _with_cap(self._consider(incoming, view, now_seconds, again), cap)
        decided = self._consider(incoming, view, now_seconds, again)
        if (
            isinstance(decided, Reject)
            and decided.retry_after_seconds is not None
            and not self.classes.batch[incoming.qos]
        ):
            longest_seconds = now_seconds + TUNING.demand_seconds
            self._saturated_until = min(now_seconds + decided.retry_after_seconds, longest_seconds)
            if cap is not None:
                return _with_cap(self._consider(capped(incoming, cap), view, now_seconds, again=True), cap)
        return decided

    def _consider(
        self, incoming: Incoming, view: ClusterView, now_seconds: float, again: bool
    ) -> Admit | Preempt | Reject:
        """Decide; where the best worker is fuller than it was taken for, once more with what is known now."""
        decided = self._on_best_path(incoming, view, now_seconds, again)
        while (
            isinstance(decided, Reject)
            and decided.over is Reason.KV_EXHAUSTED
            and decided.predicted is not None
            and decided.predicted.decode.turns_out_fuller(now_seconds)
        ):
            decided = self._on_best_path(incoming, view, now_seconds, again=True)
        return decided

    def _on_best_path(
        self, incoming: Incoming, view: ClusterView, now_seconds: float, again: bool
    ) -> Admit | Preempt | Reject:
        # Waiting makes no path better: where two legs would be late now, one worker for both would hold up others.
        fresh = msgspec.structs.replace(incoming, waited_seconds=0.0) if incoming.waited_seconds > 0 else incoming
        found = route(fresh, view, now_seconds)
        if not isinstance(found, Route):
            return Reject(Reason.NEVER_FITS if found is NoPath.NO_POOL else Reason.NO_WORKER)
        if self.classes.batch[incoming.qos]:
            return self._fill_idle(incoming, found, view, now_seconds)
        if self.policy is _OFF:
            return self._let_in(incoming, found)
        least_seconds = found.decode.engine.least_step
        view.step_limit_seconds = least_seconds + self.learnt.tpot_margin.allowed_seconds(
            self.learnt.tpot_seconds - least_seconds
        )
        if not again:
            self._shares.offered(incoming, found, view, now_seconds)
        slower = self.learnt.slower(found, view, now_seconds)
        if found.idle and slower == 1.0 and self._helps(found, view):
            return self._let_in(incoming, found)
        blocking = BatchInTheWay(incoming, found, view, now_seconds) if view.batch else None
        victims: list[Flight] = []
        if blocking is not None and blocking.prompts:
            victims, found = blocking.prompts, blocking.without()
        rooms = self._shares.room(incoming.qos, found, view, now_seconds, self.learnt)
        if incoming.waited_seconds > 0:
            # It is tried many times, and comes in at the moment of the most favourable error of a prediction.
            rooms = min(rooms[0], ROUTING.estimate_share), min(rooms[1], ROUTING.estimate_share)
        over = self._over(incoming, found, view, rooms, slower)
        if over and blocking is not None:
            cleared = blocking.fewest(
                lambda path: bool(self._over(incoming, path, view, rooms, slower)),
                lambda path: slower == 1.0 and self._helps(path, view),
            )
            if cleared is not None:
                found, victims, over = *cleared, []
        if not over:
            return self._serve(incoming, found, view, now_seconds, victims)
        worst = max(over, key=lambda one: one.after_seconds)
        reason, promised_seconds = worst.reason, worst.promised_seconds
        if rooms != (1.0, 1.0) and not self._over(incoming, found, view, (1.0, 1.0), slower):
            reason, promised_seconds = Reason.CLASS_SHARE, 0.0
        return Reject(reason, _next_seconds(found, worst.after_seconds), found, promised_seconds, worst.reason)

    def refuse(self, incoming: Incoming, rejection: Reject) -> None:
        """Count a request that is turned away for good."""
        if rejection.over is Reason.TTFT_UNREACHABLE:
            self.learnt.ttft_margins[incoming.qos].rejected()
        elif rejection.over is Reason.TPOT_UNREACHABLE:
            self.learnt.tpot_margin.rejected()
        self._count(incoming.qos, rejection.reason, incoming.prompt_tokens, incoming.output_tokens)

    def _helps(self, found: Route, view: ClusterView) -> bool:
        """Whether to serve it on workers that have nothing to do, whatever is predicted.

        Turning it away helps no other request, unless it would keep the workers from others for long, for an answer
        that comes too late to be of use.
        """
        hopeless = found.ttft_seconds > ROUTING.most_wrong * self.learnt.ttft_seconds
        return not (found.known and hopeless) or view.workers.idle

    def _over(
        self, incoming: Incoming, found: Route, view: ClusterView, rooms: tuple[float, float], slower: float
    ) -> list[Over]:
        """Limits that the path is over, when other classes keep all but `rooms` of prefill and decode."""
        if self.policy is _THRESHOLD or not found.known:
            return over_threshold(incoming, found, view, self._limits, rooms)
        checks = (
            over_ttft(incoming, found, view, self.learnt.ttft_margins[incoming.qos], rooms[0], slower=slower),
            over_tpot(incoming, found, view, self.learnt.tpot_margin, rooms[1]),
            over_memory(incoming, found),
        )
        return [one for one in checks if one is not None]

    def _fill_idle(self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float) -> Admit | Reject:
        """Let a batch request in where it takes what is idle."""
        over = over_idle(incoming, found, view, self.learnt.tpot_margin, now_seconds)
        if over is None:
            return self._let_in(incoming, found)
        return Reject(over.reason, _next_seconds(found, over.after_seconds), found)

    def _serve(
        self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float, batch: list[Flight]
    ) -> Admit | Preempt | Reject:
        """Within all limits of its path without those of `batch`: let it in, if those of lower classes can bear it."""
        behind: Overtaken | None = ([], [])
        if self.policy is not _THRESHOLD and found.known:
            behind = self._shares.overtaken(incoming, found, view, self.learnt)
        after_seconds = found.prefill.prompts.backlog_seconds(now_seconds)
        if behind is None:
            return Reject(Reason.CLASS_SHARE, _next_seconds(found, after_seconds), found)
        later, victims = behind
        for leg, ttft_seconds in later:
            leg.ttft_seconds = ttft_seconds
        admitted = self._let_in(incoming, found)
        if not victims and not batch:
            return admitted
        aborted = (*batch, *(view.prefilling[victim] for victim in victims))
        for each in aborted:
            reason = Reason.NOTHING_IDLE if each.load.batch else Reason.PREEMPTED
            self._count(each.load.qos, reason, each.load.prompt_tokens, each.load.output_tokens)
        return Preempt(found, aborted, _next_seconds(found, after_seconds + found.work_seconds))

    def _let_in(self, incoming: Incoming, found: Route) -> Admit:
        self.admitted[incoming.qos] += 1
        return Admit(found)

    def _count(self, qos: int, reason: Reason, prompt_tokens: float, output_tokens: float) -> None:
        key = (self.classes.names[qos], reason)
        tally = self.rejected.get(key)
        if tally is None:
            tally = self.rejected[key] = Tally()
        tally.requests += 1
        tally.prompt_tokens += prompt_tokens
        tally.output_tokens += output_tokens


def capped(incoming: Incoming, output_cap: int) -> Incoming:
    """The request with an answer of at most `output_cap` tokens."""
    if incoming.output_tokens <= output_cap:
        return incoming
    return msgspec.structs.replace(incoming, output_tokens=float(output_cap))


def _with_cap(decided: Admit | Preempt | Reject, output_cap: int) -> Admit | Preempt | Reject:
    return decided if isinstance(decided, Reject) else msgspec.structs.replace(decided, output_cap=output_cap)


def _next_seconds(found: Route, after_seconds: float) -> float:
    """Return when to try again: not before the step under way has ended, as nothing changes until then."""
    return max(after_seconds, found.hand_over.step_seconds)
