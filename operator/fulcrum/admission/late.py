"""Room for prompts that are too long for the promise on any worker, however idle: who waits does not help them.

To turn one away is to turn it away for ever: no retry is sooner. So it is served late, where that takes little, and
from nobody.
"""

from __future__ import annotations

from typing import Final

from fulcrum.routing import ClusterView, Incoming, Route

_LATE: Final = 1.2
"""So many times the hand-over (transfer, and the steps at its end) such a request may be late: its prefill alone is in
time, or late by a fifth of it. The shortest of them cost least."""
_PREFILL: Final = 0.1
"""Share of the prefill time that they may take, of all that are let in."""
_SAVED: Final = 4.0
"""So many promised TTFTs of prefill time can be saved up for them."""
_SLACK: Final = 0.9
"""They join a decode batch only where its step stays below this share of the TPOT promise."""


class LateRoom:
    """How much prefill time there is for them."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds = 0.0

    def earn(self, found: Route) -> None:
        """A request was let in."""
        self._seconds += _PREFILL * found.work_seconds

    def take(self, incoming: Incoming, found: Route, view: ClusterView) -> bool:
        """Whether a request that is late only because of its own length may be served; if so, its room is taken."""
        promise_seconds = min(view.ttft_seconds, incoming.ttft_seconds)
        self._seconds = min(self._seconds, _SAVED * view.ttft_seconds)
        alone_seconds = found.ttft_seconds - found.wait_seconds
        hand_over_seconds = alone_seconds - found.own_seconds
        if alone_seconds <= promise_seconds or found.ttft_seconds > promise_seconds + _LATE * hand_over_seconds:
            return False
        if found.prefill.lower_seconds(view.ranks[incoming.qos]) > 0:
            return False  # it would be served before them
        if found.hand_over.step_seconds > _SLACK * view.tpot_seconds or found.work_seconds > self._seconds:
            return False
        self._seconds -= found.work_seconds
        return True
