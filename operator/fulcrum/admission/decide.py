"""Accept a request or turn it away, at its arrival, by what is predicted for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fulcrum.admission.classes import ClassTable
from fulcrum.admission.limits import over_memory, over_threshold, over_tpot, over_ttft
from fulcrum.admission.margin import Margin
from fulcrum.admission.neighbours import NeighbourSlowdown
from fulcrum.admission.outcome import Admit, Over, Preempt, Reject, Tally, ThresholdLimits
from fulcrum.admission.outputs import OutputLengths
from fulcrum.admission.shares import ClassShares
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, QosClass
from fulcrum.routing import (
    AffinityMemory,
    ClusterView,
    Flight,
    Incoming,
    NoPath,
    RequestLoad,
    Route,
    route,
)
from fulcrum.routing.tuning import TUNING

# Looking up a member of an enum costs half a microsecond.
_OFF: Final = AdmissionPolicy.OFF
_THRESHOLD: Final = AdmissionPolicy.THRESHOLD
_PREFILL: Final = Role.PREFILL
_DECODE: Final = Role.DECODE
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
        self.ttft_seconds = ttft_seconds
        self.tpot_seconds = tpot_seconds
        self.outputs = OutputLengths(len(self.classes))
        self.ttft_margins = [Margin(attainment) for _ in self.classes.names]
        """By class: engines prefill them in order, so that what comes later makes the lower ones later alone."""
        # A batch with too long steps is late for all requests in it, so it must be rarer: as if two came late at once.
        self.tpot_margin = Margin(1 - (1 - attainment) ** 2)
        self.neighbours = NeighbourSlowdown()
        self.admitted = [0] * len(self.classes)
        """Admitted requests, by class."""
        self.rejected: dict[tuple[str, Reason], Tally] = {}
        """Rejected (and preempted) requests, by class and reason."""
        self._limits = limits or ThresholdLimits()
        self._shares = ClassShares(self.classes, gateways=gateways)

    def share(self, gateways: int) -> None:
        """So many gateways share the traffic evenly from now on."""
        self._shares.gateways = gateways

    def new_view(
        self, affinity: AffinityMemory | None = None, units_per_token: float = TUNING.bytes_per_token
    ) -> ClusterView:
        """A view that speaks of the same classes and promises."""
        return ClusterView(
            class_names=self.classes.names,
            ranks=self.classes.ranks,
            ttft_seconds=self.ttft_seconds,
            tpot_seconds=self.tpot_seconds,
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
    ) -> Incoming:
        """A request, the length of its output estimated; `units_per_token` are those of its `prefix`."""
        return Incoming(
            prompt_tokens=prompt_tokens,
            output_tokens=self.outputs.expect(qos, prompt_tokens, max_tokens),
            qos=qos,
            # A request may ask for more than is promised to all, never for less.
            ttft_seconds=ttft_seconds if ttft_seconds < self.ttft_seconds else _UNBOUNDED,
            tpot_seconds=tpot_seconds if tpot_seconds < self.tpot_seconds else _UNBOUNDED,
            prefix=prefix,
            units_per_token=units_per_token,
            whole=whole,
        )

    def decide(self, incoming: Incoming, view: ClusterView, now_seconds: float) -> Admit | Preempt | Reject:
        """Whether, and where, to serve a request: `view.start` is the caller's.

        Changes only counters, demand, and what requests that wait where it is to go are expected to take.
        """
        view.pass_time(now_seconds)
        self.outputs.look(view.decoding, now_seconds)
        found = route(incoming, view, now_seconds)
        if not isinstance(found, Route):
            reason = Reason.NEVER_FITS if found is NoPath.NO_POOL else Reason.NO_WORKER
            return self._turn_away(incoming, Reject(reason))
        if self.policy is _OFF:
            return self._let_in(incoming, found)
        least_seconds = found.decode.least_step
        view.step_limit_seconds = least_seconds + self.tpot_margin.allowed_seconds(self.tpot_seconds - least_seconds)
        self._shares.offered(incoming, found, view, now_seconds)
        slower = self._slower(found, view, now_seconds)
        if found.idle and slower == 1.0 and self._helps(found, view):
            return self._let_in(incoming, found)
        rooms = self._shares.room(incoming.qos, found, view, now_seconds)
        over = self._over(incoming, found, view, rooms, slower)
        if not over:
            return self._serve(incoming, found, view, now_seconds)
        worst = max(over, key=lambda one: one.after_seconds)
        reason, promised_seconds = worst.reason, worst.promised_seconds
        if reason is Reason.TTFT_UNREACHABLE:
            self.ttft_margins[incoming.qos].rejected()
        elif reason is Reason.TPOT_UNREACHABLE:
            self.tpot_margin.rejected()
        if rooms != (1.0, 1.0) and not self._over(incoming, found, view, (1.0, 1.0), slower):
            reason, promised_seconds = Reason.CLASS_SHARE, 0.0
        return self._turn_away(
            incoming, Reject(reason, _next_seconds(found, worst.after_seconds), found, promised_seconds)
        )

    def learn(
        self,
        flight: Flight,
        *,
        ttft_seconds: float | None = None,
        tpot_seconds: float | None = None,
        output_tokens: float | None = None,
    ) -> None:
        """A request was served: what became of its predictions. Leave out what is not known."""
        found = flight.route
        if output_tokens is not None and output_tokens > 0:
            self.outputs.learn(flight.load.qos, flight.load.prompt_tokens, output_tokens)
        if not found.known:
            return
        # A worker that flipped meanwhile did two things at once; that says nothing about the next request.
        if ttft_seconds is not None and (found.whole or flight.prefill.role is not _DECODE):
            # What busy neighbours explain is no error of the prediction: both would be taken off the same promise.
            slower = self.neighbours.factor(flight.busy_neighbours, flight.load.started_at)
            predicted_seconds = slower * flight.load.ttft_seconds
            # Where it had to wait, requests before it may have been mispredicted, and not its worker.
            if found.wait_seconds <= 0 and found.hand_over.slot_seconds <= 0:
                self.neighbours.learn(
                    ttft_seconds / flight.load.ttft_seconds, flight.busy_neighbours, flight.load.started_at
                )
            self.ttft_margins[flight.load.qos].learn(predicted_seconds, ttft_seconds, self.ttft_seconds)
        if tpot_seconds is not None and (found.whole or flight.decode.role is not _PREFILL):
            # Later requests joined its batch, up to the limit of that time; what no batch can change is left out.
            least_seconds = flight.decode.least_step
            limit_seconds = max(found.hand_over.step_seconds, flight.step_limit_seconds)
            # What was predicted is not above its shortest step only where the worker was measured again meanwhile. That
            # speed is given up already, so how wrong it was says nothing about the next prediction.
            if min(found.tpot_seconds, limit_seconds) > least_seconds:
                self.tpot_margin.learn(
                    found.tpot_seconds - least_seconds,
                    tpot_seconds - least_seconds,
                    self.tpot_seconds - least_seconds,
                    limit_seconds=limit_seconds - least_seconds,
                )

    def _helps(self, found: Route, view: ClusterView) -> bool:
        """Whether to serve it on workers that have nothing to do, whatever is predicted.

        Turning it away helps no other request, unless it would keep the workers from others for long, for an answer
        that comes too late to be of use.
        """
        hopeless = found.ttft_seconds > TUNING.most_wrong * self.ttft_seconds
        return not (found.known and hopeless) or view.workers.idle

    def _slower(self, found: Route, view: ClusterView, now_seconds: float) -> float:
        """How many times longer than predicted it takes, because workers that share its hardware are busy."""
        if not self.neighbours.per_neighbour:
            return 1.0
        return self.neighbours.factor(view.workers.busy_neighbours(found.prefill), now_seconds)

    def _over(
        self, incoming: Incoming, found: Route, view: ClusterView, rooms: tuple[float, float], slower: float
    ) -> list[Over]:
        """Limits that the path is over, when other classes keep all but `rooms` of prefill and decode."""
        if self.policy is _THRESHOLD or not found.known:
            return over_threshold(incoming, found, view, self._limits, rooms)
        checks = (
            over_ttft(incoming, found, view, self.ttft_margins[incoming.qos], rooms[0], slower=slower),
            over_tpot(incoming, found, view, self.tpot_margin, rooms[1]),
            over_memory(incoming, found),
        )
        return [one for one in checks if one is not None]

    def _serve(
        self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float
    ) -> Admit | Preempt | Reject:
        """Within all limits of its path: let it in, if those of lower classes can bear it."""
        overtaken = self._overtaken(incoming, found, view)
        after_seconds = found.prefill.prompts.backlog_seconds(now_seconds)
        if overtaken is None:
            return self._turn_away(incoming, Reject(Reason.CLASS_SHARE, _next_seconds(found, after_seconds), found))
        later, victims = overtaken
        for leg, ttft_seconds in later:
            leg.ttft_seconds = ttft_seconds
        admitted = self._let_in(incoming, found)
        if not victims:
            return admitted
        for victim in victims:
            self._count(victim.qos, Reason.PREEMPTED, victim.prompt_tokens, victim.output_tokens)
        aborted = tuple(view.prefilling[victim] for victim in victims)
        return Preempt(found, aborted, _next_seconds(found, after_seconds + found.work_seconds))

    def _overtaken(
        self, incoming: Incoming, found: Route, view: ClusterView
    ) -> tuple[list[tuple[RequestLoad, float]], list[RequestLoad]] | None:
        """Return which requests of lower classes are served later for it, with their new TTFT; and which make way.

        Those that would be late make way, and so room for those behind them. None: one would be late whose class would
        then have less than what is reserved for it.
        """
        later: list[tuple[RequestLoad, float]] = []
        victims: list[RequestLoad] = []
        rank = view.ranks[incoming.qos]
        worker = found.prefill
        if self.policy is _THRESHOLD or not found.known or worker.prompts.lower_seconds(rank) <= 0:
            return later, victims
        promise = self.ttft_seconds
        more_seconds = found.work_seconds
        less_seconds = [0.0] * len(self.classes)
        for leg in worker.prompts.overtaken(rank):
            qos = leg.qos
            ttft_seconds = leg.ttft_seconds + more_seconds
            less = less_seconds[qos] + leg.work_seconds
            allowed = self.ttft_margins[qos].allowed_seconds(promise)
            if leg.ttft_seconds <= allowed < ttft_seconds and self._shares.above_reserve(qos, view, less):
                less_seconds[qos] = less
                more_seconds = max(more_seconds - leg.work_seconds, 0.0)
                victims.append(leg)
            elif leg.ttft_seconds <= promise < ttft_seconds:
                return None
            else:
                later.append((leg, ttft_seconds))
        return later, victims

    def _let_in(self, incoming: Incoming, found: Route) -> Admit:
        self.admitted[incoming.qos] += 1
        return Admit(found)

    def _turn_away(self, incoming: Incoming, rejection: Reject) -> Reject:
        self._count(incoming.qos, rejection.reason, incoming.prompt_tokens, incoming.output_tokens)
        return rejection

    def _count(self, qos: int, reason: Reason, prompt_tokens: float, output_tokens: float) -> None:
        key = (self.classes.names[qos], reason)
        tally = self.rejected.get(key)
        if tally is None:
            tally = self.rejected[key] = Tally()
        tally.requests += 1
        tally.prompt_tokens += prompt_tokens
        tally.output_tokens += output_tokens


def _next_seconds(found: Route, after_seconds: float) -> float:
    """Return when to try again: not before the step under way has ended, as nothing changes until then."""
    return max(after_seconds, found.hand_over.step_seconds)
