"""The whole request on one worker of a pair: when that is better than two legs. Pure.

Prefill belongs to prefill workers, and decoding to decode workers. A request goes to a decode worker as a whole
(deflection) where little of its prompt is not cached there, or where the prefill workers are late; and it stays on its
prefill worker where it is in time only without the transfer.
"""

from __future__ import annotations

from math import exp

from fulcrum.routing.path import Prefill, Route
from fulcrum.routing.pools import RevisionGroup
from fulcrum.routing.search import Search
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.whole import emptiest_holder
from fulcrum.routing.worker import WorkerView


def deflected(search: Search, revision: RevisionGroup, pair: Route) -> Route | None:
    """Return the whole request on a decode worker, where that is sooner than `pair` and makes less than one other late.

    It saves one request itself.
    """
    late = pair.ttft_seconds > search.ttft_seconds
    worker = emptiest_holder(search, revision.decode)
    if worker is None or (late and TUNING.clearly_fuller(worker.answers.load, pair.decode.answers.load)):
        worker = pair.decode if late else None
    if worker is None:
        return None
    path = search.one_leg(search.prefill_on(worker))
    tpot_seconds = min(search.view.tpot_seconds, worker.answers.tight_tpot_seconds)
    if path.ttft_seconds > min(pair.ttft_seconds, search.ttft_seconds):
        return None
    if path.hand_over.step_seconds > TUNING.estimate_share * tpot_seconds:
        return None
    stall_seconds = path.wait_seconds + path.work_seconds
    return path if harmed(worker, stall_seconds, tpot_seconds) < 1.0 else None


def harmed(worker: WorkerView, stall_seconds: float, tpot_seconds: float) -> float:
    """Return how many requests that decode on `worker`, or will soon, end before they have made good for a stall.

    TPOT is an average: a long answer hardly feels a stall, one that ends after a few more tokens misses its promise.
    How long answers are is not known beforehand, so what is left of them is taken for exponential.
    """
    answers = worker.answers
    many = answers.requests + answers.join_rate * stall_seconds
    left_tokens, own = 1.0, answers.running + answers.pending
    if own:
        left_tokens = max((answers.running * answers.left_tokens + answers.pending_output) / own, 1.0)
    gain_seconds = tpot_seconds - answers.step_seconds()
    return many * (1 - exp(-stall_seconds / (gain_seconds * left_tokens))) if gain_seconds > 0 else many


def staying(search: Search, prefill: Prefill) -> Route | None:
    """Return the whole request on its prefill worker, where it is in time and keeps its pace between the prompts."""
    path = search.one_leg(prefill)
    in_time = path.ttft_seconds <= search.ttft_seconds and path.slowest_seconds <= search.tpot_seconds
    return path if in_time else None
