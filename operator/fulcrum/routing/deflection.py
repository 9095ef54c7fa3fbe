"""The whole request on one worker of a pair: when that is better than two legs. Pure.

Prefill belongs to prefill workers, and decoding to decode workers. A request goes to a decode worker as a whole
(deflection) where little of its prompt is not cached there, or where the prefill workers are late; and it stays on its
prefill worker where it is in time only without the transfer. All of the checks in a list must hold.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import Final, NamedTuple

from fulcrum.routing import filters
from fulcrum.routing.candidates import emptiest_of
from fulcrum.routing.filters import left
from fulcrum.routing.path import Prefill, Route
from fulcrum.routing.pools import RevisionGroup
from fulcrum.routing.search import Search
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.worker import WorkerView


class Deflection(NamedTuple):
    """A prefill on a decode worker."""

    worker: WorkerView
    stall_seconds: float
    """Its answers stand still for so long."""
    longest_seconds: float
    """It is worth it up to here: the TTFT of two legs, or the promise."""
    late: bool
    """Two legs would be late."""
    tpot_seconds: float
    """The tightest promise of the requests that decode there."""


DeflectionCheck = Callable[[Search, Deflection], bool]


def is_sooner(_search: Search, deflection: Deflection) -> bool:
    """The prompt is prefilled sooner than two legs would give the first token."""
    return deflection.stall_seconds <= deflection.longest_seconds


def has_slack(_search: Search, deflection: Deflection) -> bool:
    """The answers there are faster than they must be."""
    return deflection.worker.step_seconds() <= TUNING.pace * deflection.tpot_seconds


def harms_few(_search: Search, deflection: Deflection) -> bool:
    """Few of the requests that decode there, or will soon, end before they have made good for the stall.

    TPOT is an average: a long answer hardly feels it, one that ends after a few more tokens misses its promise. How
    long answers are is not known beforehand, so what is left of them is taken for exponential.
    """
    worker, stall_seconds = deflection.worker, deflection.stall_seconds
    running, pending = worker.running, worker.pending
    many = running + pending + worker.foreign_running + worker.join_rate * stall_seconds
    left_tokens = 1.0
    if running + pending:
        left_tokens = max((running * worker.left_tokens + worker.pending_output) / (running + pending), 1.0)
    gain_seconds = deflection.tpot_seconds - worker.step_seconds()  # above 0, as it has slack
    return many * (1 - exp(-stall_seconds / (gain_seconds * left_tokens))) <= TUNING.most_harmed


def makes_none_late(search: Search, deflection: Deflection) -> bool:
    """No request that is handed over meanwhile gets its first token too late for it."""
    worker = deflection.worker
    if not (deflection.late and worker.pending):
        return True
    done_at = search.now_seconds + deflection.stall_seconds
    promise_seconds = search.view.ttft_seconds
    for other in search.view.workers.values():
        for leg in other.legs:
            if leg.decode is worker and other is not worker:
                first_at = leg.asked_at + leg.ttft_seconds
                if first_at < done_at and leg.ttft_seconds <= promise_seconds < done_at - leg.asked_at:
                    return False
    return True


CHECKS: Final[tuple[DeflectionCheck, ...]] = (is_sooner, has_slack, harms_few, makes_none_late)
"""What must hold for a deflection, in this order."""


def deflected(search: Search, revision: RevisionGroup, pair: Route) -> Route | None:
    """Return the whole request on a decode worker, where all checks hold."""
    late = pair.ttft_seconds > search.ttft_seconds
    worker = emptiest_of(search, revision.decode, holders=True)
    if worker is None or (late and worker.decode_load > pair.decode.decode_load + TUNING.fuller):
        worker = pair.decode if late else None
    if worker is None:
        return None
    prefill = search.prefill_on(worker)
    longest_seconds = min(pair.ttft_seconds, search.ttft_seconds)
    tpot_seconds = min(search.view.tpot_seconds, worker.tight_tpot_seconds)
    deflection = Deflection(worker, prefill.wait_seconds + prefill.work_seconds, longest_seconds, late, tpot_seconds)
    for check in CHECKS:
        if not check(search, deflection):
            return None
    path = search.one_leg(prefill)
    slow = path.hand_over.step_seconds > TUNING.pace * tpot_seconds
    return None if slow or path.ttft_seconds > longest_seconds else path


def staying(search: Search, revision: RevisionGroup, prefill: Prefill) -> Route | None:
    """Return the whole request on its prefill worker, where it is in time and keeps its pace between the prompts.

    Prompts leave that worker alone meanwhile, as far as the other prefill workers can take them.
    """
    if prefill.wait_seconds + prefill.own_seconds > search.ttft_seconds:
        return None
    share, others = 0.0, -1
    for pool in revision.prefill:
        for worker in left(filters.WHOLE, search, pool, pool.workers):
            share += worker.prefill_share(search.now_seconds)
            others += 1
    path = search.one_leg(prefill, max(share - TUNING.most_prefill * others, 0.0))
    slow = path.slowest_seconds > TUNING.staying * search.tpot_seconds
    return None if slow or path.ttft_seconds > search.ttft_seconds else path
