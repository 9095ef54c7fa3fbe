"""Requests that are kept for a moment, because the queues will suit them better in the next one.

An engine takes all that waits into one step, and answers it at the end of the step. Who joins it last may be late, or
make those late that came before; once that step has begun, the same request goes behind it and holds up nobody. So it
is decided again, every few milliseconds, with what is left of its promise. Nobody is turned away after that: the time
to serve it late, should it come to that, is set aside when it begins to wait.

After a burst workers have nothing to do. So where there is time to spare, those wait, too, that will hardly make it.
"""

from __future__ import annotations

from math import exp
from typing import Final

from fulcrum.admission.spare import SpareTime
from fulcrum.api.names import Role
from fulcrum.routing import ClusterView, Incoming, Route

# Looking up a member of an enum costs half a microsecond.
_MIXED: Final = Role.MIXED

AGAIN_SECONDS: Final = 0.02
"""After so long it is decided again."""
_MOST: Final = 64
"""So many wait at once, at most: each decision takes time."""
_SET_ASIDE: Final = 0.005
"""Share of the prefill time, of all that are let in, that may be set aside."""
_SAVED: Final = 4.0
"""So many promised TTFTs of prefill time can be saved up."""
_MEMORY_SECONDS: Final = 30.0
_SCARCE: Final = 0.08
"""Share of the requests that find no room, from which on whoever is served takes the place of others in full."""
_EARLY: Final = 0.97
"""Share of the TTFT promise in which it would be served if it went now: time goes by until its gap comes."""
_WORTH: Final = 1.5
"""A request is worth the place of so many others."""
_SLACK: Final = 0.9
"""One that is late anyway joins a decode batch only where its step stays below this share of the TPOT promise."""
_LONGEST: Final = 2.0
"""After so many promised TTFTs it is served, whatever stands before it ..."""
_PATIENT: Final = 10.0
"""... or so many, if it waits for time to spare."""
_MIDDLE: Final = 0.74
"""Share of the TTFT promise that a prompt's prefill may take of time to spare: longer ones turn away as few, and cost
more."""


class Postponed:
    """A request that waits, without having been sent anywhere."""

    __slots__ = ("asked_at", "incoming", "spare", "work_seconds")

    def __init__(self, incoming: Incoming, found: Route, now_seconds: float, *, spare: bool) -> None:
        self.incoming = incoming
        """As of the last decision."""
        self.spare = spare
        """Time to spare was set aside for it."""
        self.asked_at = now_seconds
        self.work_seconds = found.work_seconds
        """Prefill time that is set aside for it."""


class PostponeRoom:
    """Who may wait, and what is set aside for those who do."""

    __slots__ = (
        "_asked", "_faded_at", "_let_in", "_saved_seconds", "_short", "_spare", "_work_seconds", "gateways", "waiting",
    )  # fmt: skip

    def __init__(self, gateways: int = 1) -> None:
        """`gateways`: replicas that share the traffic evenly."""
        self.waiting: dict[Postponed, None] = {}
        self.gateways = gateways
        self._spare = SpareTime()
        self._saved_seconds = 0.0
        # Of late: requests that could be in time on an idle worker, those of them that could not be let in, and those
        # that were, with their prefill time.
        self._asked = 0.0
        self._short = 0.0
        self._let_in = 0.0
        self._work_seconds = 0.0
        self._faded_at = 0.0

    def asked(self, view: ClusterView, now_seconds: float, *, room: bool) -> None:
        """A request came that an idle worker would serve in time; whether there was room for it."""
        self._spare.passed(view.prefill_workers / self.gateways, view.ttft_seconds, now_seconds)
        if now_seconds > self._faded_at:
            fade = exp((self._faded_at - now_seconds) / _MEMORY_SECONDS)
            self._asked *= fade
            self._short *= fade
            self._let_in *= fade
            self._work_seconds *= fade
            self._faded_at = now_seconds
        self._asked += 1.0
        if not room:
            self._short += 1.0

    def let_in(self, found: Route, view: ClusterView) -> None:
        """A request was let in."""
        self._let_in += 1.0
        self._work_seconds += found.work_seconds
        self._spare.let_in(found.work_seconds)
        self._save(_SET_ASIDE * found.work_seconds, view)

    def take(self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float) -> Postponed | None:
        """Let a request wait that would be in time where it stands now, or has time to spare; None: it may not."""
        if len(self.waiting) >= _MOST:
            return None
        promise_seconds = min(view.ttft_seconds, incoming.ttft_seconds)
        seconds = found.work_seconds
        in_time = found.ttft_seconds <= _EARLY * promise_seconds
        soon = in_time and seconds <= self._saved_seconds and self._worth(found)
        if soon:
            self._saved_seconds -= seconds
        elif not self._take_spare(found, promise_seconds):
            return None
        postponed = Postponed(incoming, found, now_seconds, spare=not soon)
        self.waiting[postponed] = None
        return postponed

    def _take_spare(self, found: Route, promise_seconds: float) -> bool:
        if found.ttft_seconds - found.wait_seconds > promise_seconds or found.work_seconds > _MIDDLE * promise_seconds:
            return False
        return self._spare.take(found.work_seconds)

    def _worth(self, found: Route) -> bool:
        """Whether it takes less than the place of `_WORTH` others, so far as somebody wants their place."""
        if not self._asked or not self._let_in:
            return False
        wanted = min(self._short / self._asked / _SCARCE, 1.0)
        return wanted * found.work_seconds * self._let_in <= _WORTH * self._work_seconds

    def late(self, postponed: Postponed, found: Route, view: ClusterView, now_seconds: float) -> bool:
        """Whether one that cannot be in time any more goes now: where it is nobody's turn, or has waited for long."""
        longest = _PATIENT if postponed.spare else _LONGEST
        if now_seconds - postponed.asked_at > longest * view.ttft_seconds:
            return True
        worker = found.prefill
        # A mixed worker has nearly always something to decode, for which prompts are cut into chunks: that is no queue.
        turn = found.wait_seconds <= 0 or (worker.role is _MIXED and worker.backlog_seconds(now_seconds) <= 0)
        return turn and found.hand_over.step_seconds <= _SLACK * view.tpot_seconds

    def leave(self, postponed: Postponed, view: ClusterView, *, late: bool = False) -> None:
        """One waits no longer. Unless it is served late, what was set aside for it is there for others."""
        if postponed in self.waiting:
            del self.waiting[postponed]
            if late:
                return
            if postponed.spare:
                self._spare.give_back(postponed.work_seconds)
            else:
                self._save(postponed.work_seconds, view)

    def _save(self, seconds: float, view: ClusterView) -> None:
        self._saved_seconds = min(self._saved_seconds + seconds, _SAVED * view.ttft_seconds)
