"""Accept a request or turn it away, at its arrival, by what is predicted for it and for those already accepted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from fulcrum.admission.classes import ClassTable
from fulcrum.admission.late import LateRoom
from fulcrum.admission.limits import held_up, over_kv, over_others, over_threshold, over_tpot, over_ttft
from fulcrum.admission.neighbours import NeighbourSlowdown
from fulcrum.admission.outcome import Admit, Over, Preempt, Reject, Tally, ThresholdLimits
from fulcrum.admission.peaks import Peaks
from fulcrum.admission.postpone import Postponed, PostponeRoom
from fulcrum.admission.predict import SMALL_SHARE, Margin, MeanOutputs, OutputLengths
from fulcrum.admission.shares import Shares
from fulcrum.admission.turns import InLine, Turns
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, QosClass
from fulcrum.routing import (
    AffinityMemory,
    ClusterView,
    Flight,
    Incoming,
    NobodyFits,
    NobodyThere,
    NoPool,
    Route,
    route,
)

# Looking up a member of an enum costs half a microsecond.
_OFF: Final = AdmissionPolicy.OFF
_THRESHOLD: Final = AdmissionPolicy.THRESHOLD
_PREDICTIVE: Final = AdmissionPolicy.PREDICTIVE
_PREFILL: Final = Role.PREFILL
_DECODE: Final = Role.DECODE
_MOST_HARMED: Final = 0.25
"""Requests whose promise may be expected to be broken for one that is deflected: who is let in was promised something,
and who comes can still be turned away."""
_SOONEST_SECONDS: Final = 0.05
_UNBOUNDED: Final = float("inf")
_STEPS_LEVEL: Final = 0.99
"""A late first token is late for one request, a batch with too long steps for all that are in it."""
_HOPELESS: Final = 3.0
"""After so many promised TTFTs a first token is of little use."""
_FAR: Final = 0.5
"""Share of the TTFT promise below which it does not matter by how much a request is held up."""
_STAYING_LEVEL: Final = 0.6
"""Share of those that stay on a prefill worker at the very limit which must keep their TPOT: anywhere else all of them
would be late."""


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
        self.outputs = OutputLengths(self.classes.names)
        self.mean_outputs = MeanOutputs(len(self.classes))
        self.ttft_margin = Margin(attainment)
        self.tpot_margin = Margin(max(attainment, _STEPS_LEVEL))
        self.neighbours = NeighbourSlowdown()
        self.staying_margin = Margin(_STAYING_LEVEL)
        """Of TPOT on prefill workers, where prompts may come in bursts."""
        self.admitted = [0] * len(self.classes)
        """Admitted requests, by class."""
        self.admitted_late = [0] * len(self.classes)
        """Of these, those that were predicted to be late (`late.LateRoom`, `postpone.PostponeRoom`)."""
        self.postponed = [0] * len(self.classes)
        """Requests that had to wait for their decision, by class."""
        self.rejected: dict[tuple[str, Reason], Tally] = {}
        """Rejected (and preempted) requests, by class and reason."""
        self._limits = limits or ThresholdLimits()
        self._shares = Shares(self.classes, gateways=gateways)
        self._late = LateRoom()
        self._postpone = PostponeRoom(gateways)
        self._turns = Turns(max(self.classes.ranks) + 1, gateways)
        self._staying_seconds = self.staying_margin.allowed_seconds(tpot_seconds)
        self._steps: defaultdict[str, Peaks] = defaultdict(Peaks)
        """Decode steps with which requests were let in, by pool."""

    def share(self, gateways: int) -> None:
        """So many gateways share the traffic evenly from now on."""
        self._shares.gateways = self._postpone.gateways = self._turns.gateways = gateways

    def new_view(self, affinity: AffinityMemory | None = None, units_per_token: float = 4.0) -> ClusterView:
        """A view that speaks of the same classes and promises."""
        view = ClusterView(
            class_names=self.classes.names,
            ranks=self.classes.ranks,
            ttft_seconds=self.ttft_seconds,
            tpot_seconds=self.tpot_seconds,
            affinity=affinity,
            units_per_token=units_per_token,
        )
        if self.policy is _PREDICTIVE:
            view.most_harmed = _MOST_HARMED
        return view

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

    def decide(self, incoming: Incoming, view: ClusterView, now_seconds: float) -> Admit | Preempt | Reject | Postponed:
        """Whether, and where, to serve a request: `view.start` is the caller's.

        One that is postponed is to be asked about again (`again`), or to be taken back (`leave`).

        Changes only counters, demand, and what those may expect who wait where it is to go.
        """
        view.staying_tpot_seconds = self._staying_seconds
        found = route(incoming, view, now_seconds)
        if view.stay_refused:
            view.stay_refused = False
            self.staying_margin.rejected()
            self._staying_seconds = self.staying_margin.allowed_seconds(self.tpot_seconds)
        if not isinstance(found, Route):
            return self._turn_away(incoming, _unserved(found))
        if self.policy is _OFF:
            return self._let_in(incoming, found, view, now_seconds)
        self._shares.offered(incoming, found, view, now_seconds)
        alone = self._slower(found, view, now_seconds) == 1.0
        if found.idle and alone and self._helps(found, view) and not self._behind(incoming, view):
            return self._let_in(incoming, found, view, now_seconds)
        over = self._judge(incoming, found, view, now_seconds, first=True)
        if not isinstance(over, list):
            return over
        # What its neighbours make late is late wherever it waits.
        kept = self._keep(incoming, found, view, now_seconds, over) if alone or found.wait_seconds > 0 else None
        if kept is not None:
            self.postponed[incoming.qos] += 1
            return kept
        worst = max(over, key=lambda one: one.after_seconds)
        if worst.reason is Reason.TTFT_UNREACHABLE:
            self.ttft_margin.rejected()
        elif worst.reason is Reason.TPOT_UNREACHABLE:
            self.tpot_margin.rejected()
        after_seconds = max(worst.after_seconds, _SOONEST_SECONDS)
        return self._turn_away(incoming, Reject(worst.reason, after_seconds, found))

    def again(self, postponed: Postponed, view: ClusterView, now_seconds: float) -> Admit | Preempt | Reject | None:
        """Decide again about a postponed request, which is then to be started as `postponed.incoming`; None: not yet.

        It is turned away only when nobody is there who could serve it; or when it waited for its turn, which has not
        come in time.
        """
        view.staying_tpot_seconds = self._staying_seconds
        if isinstance(postponed, InLine):
            return self._in_line(postponed, view, now_seconds)
        found = self._route_again(postponed, view, now_seconds)
        if isinstance(found, Reject):
            return found
        incoming = postponed.incoming
        decided = self._judge(incoming, found, view, now_seconds, first=False)
        if not isinstance(decided, list):
            self._postpone.leave(postponed, view)
            return decided
        if not self._postpone.late(postponed, found, view, now_seconds):
            return None
        self._postpone.leave(postponed, view, late=True)
        self.admitted_late[incoming.qos] += 1
        return self._let_in(incoming, found, view, now_seconds)

    def leave(self, postponed: Postponed, view: ClusterView) -> None:
        """Nobody waits for a postponed request any more; a second time does nothing."""
        self._postpone.leave(postponed, view)
        self._turns.leave(postponed)

    @property
    def waiting(self) -> int:
        """Postponed requests that have not been decided."""
        return len(self._postpone.waiting) + self._turns.waiting

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
            self.outputs.learn(flight.qos, flight.prompt_tokens, output_tokens)
            self.mean_outputs.learn(flight.qos, flight.prompt_tokens, output_tokens)
        if not found.known:
            return
        # A worker that flipped meanwhile did two things at once; that says nothing about the next request.
        if ttft_seconds is not None and (found.whole or flight.prefill.role is not _DECODE):
            # Where it had to wait, those before it may have been mispredicted, and not its worker.
            if found.wait_seconds <= 0 and found.hand_over.slot_seconds <= 0:
                small = SMALL_SHARE * self.ttft_seconds
                ratio = (ttft_seconds + small) / (flight.ttft_seconds + small)
                self.neighbours.learn(ratio, flight.busy_neighbours, flight.started_at)
            # Far from the limit a small error is a large factor, and decides nothing.
            self.ttft_margin.learn(
                flight.ttft_seconds, ttft_seconds, self.ttft_seconds, limiting_seconds=flight.ttft_seconds
            )
        if tpot_seconds is not None and found.whole and flight.decode.role is _PREFILL:
            self.staying_margin.learn(found.tpot_seconds, tpot_seconds, self.tpot_seconds)
            self._staying_seconds = self.staying_margin.allowed_seconds(self.tpot_seconds)
        elif tpot_seconds is not None and (found.whole or flight.decode.role is not _PREFILL):
            # What it had to bear is what the batch was allowed to become while it was in it.
            highest = self._steps[found.decode.pool].since(flight.started_at)
            self.tpot_margin.learn(found.tpot_seconds, tpot_seconds, self.tpot_seconds, limiting_seconds=highest)

    def _helps(self, found: Route, view: ClusterView) -> bool:
        """Whether to serve it on workers that have nothing to do, whatever is predicted.

        Nobody is helped by turning it away, unless it kept them from others for long, for an answer that comes too late
        to be of use.
        """
        return not found.known or found.ttft_seconds <= _HOPELESS * self.ttft_seconds or view.idle

    def _slower(self, found: Route, view: ClusterView, now_seconds: float) -> float:
        """How many times longer than predicted it takes, because workers that share its hardware are busy."""
        if not self.neighbours.per_neighbour:
            return 1.0
        return self.neighbours.factor(view.busy_neighbours(found.prefill), now_seconds)

    def _keep(
        self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float, over: Sequence[Over]
    ) -> Postponed | None:
        """Whether a request that is over these limits may wait at the gateway."""
        if over[0].prefill_is_kept:
            above = self._shares.asked_above(incoming.qos, view, now_seconds)
            return self._turns.take(incoming, found, view, now_seconds, above=above, until=self._allowed(incoming))
        if all(one.reason is Reason.TTFT_UNREACHABLE for one in over):
            return self._postpone.take(incoming, found, view, now_seconds)
        return None

    def _in_line(self, one: InLine, view: ClusterView, now_seconds: float) -> Admit | Preempt | Reject | None:
        if self._turns.has_come(one, view):
            found = self._route_again(one, view, now_seconds)
            if isinstance(found, Reject):
                return found
            decided = self._judge(one.incoming, found, view, now_seconds, first=False)
            if not isinstance(decided, list):
                self._turns.leave(one, in_vain=False)
                return decided
        waited_seconds = now_seconds - one.asked_at
        if waited_seconds + one.own_seconds <= self._allowed(one.incoming):
            return None
        self._turns.leave(one, in_vain=True)
        return self._turn_away(one.incoming, Reject(Reason.PREEMPTED, max(waited_seconds, _SOONEST_SECONDS)))

    def _route_again(self, postponed: Postponed, view: ClusterView, now_seconds: float) -> Route | Reject:
        """Its best path with what is left of its promise; without one it is turned away."""
        waited_seconds = now_seconds - postponed.asked_at
        postponed.incoming = replace(postponed.incoming, waited_seconds=waited_seconds)
        found = route(postponed.incoming, view, now_seconds)
        if isinstance(found, Route):
            return found
        self.leave(postponed, view)
        return self._turn_away(postponed.incoming, _unserved(found))

    def _behind(self, incoming: Incoming, view: ClusterView) -> bool:
        """Whether others wait for their turn before it; what is reserved for its class need not wait."""
        return self._turns.anybody(view.ranks[incoming.qos]) and self._shares.above_reserve(incoming.qos, view, 0.0)

    def _allowed(self, incoming: Incoming) -> float:
        """TTFT with which a request that waits may be let in."""
        return self.ttft_margin.allowed_seconds(min(self.ttft_seconds, incoming.ttft_seconds))

    def _judge(
        self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float, *, first: bool
    ) -> Admit | Preempt | list[Over]:
        """Let it in, on this path, or say what it is over; `first`: it has just come."""
        rooms = self._shares.room(incoming.qos, found, view, now_seconds)
        near = min(_FAR * self.ttft_seconds, self.ttft_margin.allowed_seconds(self.ttft_seconds))
        held = held_up(incoming, found, view, now_seconds, near)
        slower = self._slower(found, view, now_seconds)
        over = self._over(incoming, found, view, rooms, held, slower=slower)
        behind = first and not over and self._behind(incoming, view)
        if first and found.ttft_seconds - found.wait_seconds <= min(view.ttft_seconds, incoming.ttft_seconds):
            self._postpone.asked(view, now_seconds, room=not over and not behind)
        if behind:
            wait_seconds = self._turns.wait_seconds(found, view, view.ranks[incoming.qos])
            return [Over(Reason.CLASS_SHARE, wait_seconds, prefill_is_kept=True)]
        late = first and [one.reason for one in over] == [Reason.TTFT_UNREACHABLE]
        if late and self._late.take(incoming, found, view):
            self.admitted_late[incoming.qos] += 1
            over = []
        if not over:
            return self._serve(incoming, found, view, held, now_seconds)
        if rooms != (1.0, 1.0) and not self._over(incoming, found, view, (1.0, 1.0), held, slower=slower):
            queue = all(one.reason is Reason.TTFT_UNREACHABLE for one in over)
            after_seconds = max(one.after_seconds for one in over)
            return [Over(Reason.CLASS_SHARE, after_seconds, prefill_is_kept=queue)]
        return over

    def _over(
        self,
        incoming: Incoming,
        found: Route,
        view: ClusterView,
        rooms: tuple[float, float],
        held: Sequence[tuple[Flight, float]],
        *,
        slower: float,
    ) -> list[Over]:
        """Limits that the path is over, when others keep all but `rooms`; `held` are those whom it holds up.

        `slower`: how many times longer than predicted its first token takes, because of busy neighbours.
        """
        if self.policy is _THRESHOLD or not found.known:
            return over_threshold(incoming, found, view, self._limits, rooms)
        checks = (
            over_ttft(incoming, found, view, self.ttft_margin, rooms[0], slower=slower),
            over_others(found, view, self.ttft_margin, held),
            over_tpot(incoming, found, view, self.tpot_margin, rooms[1]),
            over_kv(incoming, found, rooms[1]),
        )
        return [one for one in checks if one is not None]

    def _serve(
        self,
        incoming: Incoming,
        found: Route,
        view: ClusterView,
        held: Sequence[tuple[Flight, float]],
        now_seconds: float,
    ) -> Admit | Preempt | list[Over]:
        """Within all limits of its path: let it in, if those of lower classes can bear it."""
        overtaken = self._overtaken(incoming, found, view)
        if overtaken is None:
            return [Over(Reason.CLASS_SHARE, found.prefill.backlog_seconds(now_seconds))]
        later, victims = overtaken
        for leg, ttft_seconds in (*held, *later):
            leg.ttft_seconds = ttft_seconds
        if victims:
            return self._preempt(incoming, found, victims, view, now_seconds)
        return self._let_in(incoming, found, view, now_seconds)

    def _overtaken(
        self, incoming: Incoming, found: Route, view: ClusterView
    ) -> tuple[list[tuple[Flight, float]], list[Flight]] | None:
        """Return who of the lower classes is served later for it, and what its TTFT would then be; and who makes way.

        Who would be late makes way, and so room for those behind it. None: somebody would be late whose class would
        then have less than what is reserved for it.
        """
        later: list[tuple[Flight, float]] = []
        victims: list[Flight] = []
        rank = view.ranks[incoming.qos]
        worker = found.prefill
        if self.policy is _THRESHOLD or not found.known or worker.lower_seconds(rank) <= 0:
            return later, victims
        promise = self.ttft_seconds
        allowed = self.ttft_margin.allowed_seconds(promise)
        more_seconds = found.work_seconds
        less_seconds = [0.0] * len(self.classes)
        for leg in worker.overtaken(rank):
            qos = leg.qos
            ttft_seconds = leg.ttft_seconds + more_seconds
            less = less_seconds[qos] + leg.work_seconds
            if leg.ttft_seconds <= allowed < ttft_seconds and self._shares.above_reserve(qos, view, less):
                less_seconds[qos] = less
                more_seconds = max(more_seconds - leg.work_seconds, 0.0)
                victims.append(leg)
            elif leg.ttft_seconds <= promise < ttft_seconds:
                return None
            else:
                later.append((leg, ttft_seconds))
        return later, victims

    def _let_in(self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float) -> Admit:
        self._late.earn(found)
        self._postpone.let_in(found, view)
        self._steps[found.decode.pool].add(found.hand_over.step_seconds, now_seconds)
        self.admitted[incoming.qos] += 1
        return Admit(found)

    def _preempt(
        self, incoming: Incoming, found: Route, victims: list[Flight], view: ClusterView, now_seconds: float
    ) -> Preempt:
        self._let_in(incoming, found, view, now_seconds)
        after_seconds = found.prefill.backlog_seconds(now_seconds)
        for victim in victims:
            self._count(victim.qos, Reason.PREEMPTED, victim.prompt_tokens, victim.output_tokens)
        return Preempt(found, tuple(victims), max(after_seconds + found.work_seconds, _SOONEST_SECONDS))

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


def _unserved(found: NobodyThere | NobodyFits | NoPool) -> Reject:
    return Reject(Reason.NEVER_FITS if isinstance(found, NoPool) else Reason.NO_WORKER)
