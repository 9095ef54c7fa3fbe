"""Labels of counters that are known before anything is counted.

`increase()` and `rate()` of Prometheus begin with the second sample of a series. A counter that appears with its first
rejection hides that rejection, so what can be known is there with 0 from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from itertools import permutations
from typing import Final

from fulcrum.api.names import Role
from fulcrum.gateway.errors import STATUSES
from fulcrum.gateway.http.upstream_answer import Failure
from fulcrum.gateway.metrics.counts import Metrics

_LEGS: Final = ("prefill", "decode", "whole", "resume", "tokenize")
_FAILURES: Final = tuple(failure.value for failure in Failure)
_ROLES: Final = tuple(role.value for role in Role)
_RESUMES: Final = ("resumed", "failed", "impossible")
_SPARED: Final = ("two_crashed",)
_PREWARMS: Final = (
    "warm", "no_kv", "unverified", "recomputed", "decode_timeout", "decode_error", "slow", "dropped", *_FAILURES,
)  # fmt: skip
_WATCH_RESTARTS: Final = ("gone", "config", "connection")
"""Others are named after the status that the API server answered."""
_LOAD_REPORTS: Final = ("answered", "unanswered", "unreadable")
_PREFIX_BATCHES: Final = ("learned", "unreadable", "skipped", "told", "refused", "failed")


def count_from_zero(metrics: Metrics, rest: str, routes: Iterable[str]) -> None:
    """Put 0 at all labels that can be known. `rest`: the class of requests that were not read; `routes` are served."""
    metrics.requests.update(dict.fromkeys(_requests(metrics.classes, rest, tuple(routes)), 0))
    metrics.legs.update(dict.fromkeys(_legs(), 0))
    metrics.role_changes.update(dict.fromkeys(permutations(_ROLES, 2), 0))
    for counter, labels in (
        (metrics.retries, _LEGS),
        (metrics.resumes, _RESUMES),
        (metrics.spared, _SPARED),
        (metrics.ejections, _ROLES),
        (metrics.prewarms, _PREWARMS),
        (metrics.watch_restarts, _WATCH_RESTARTS),
        (metrics.load_reports, _LOAD_REPORTS),
        (metrics.prefix_batches, _PREFIX_BATCHES),
    ):
        counter.update(dict.fromkeys(labels, 0))


def _requests(class_names: Iterable[str], rest: str, routes: tuple[str, ...]) -> Iterator[tuple[str, int, str, str]]:
    """Route, code, reason and class: what is served, and every refusal."""
    refusals = [(status.value, reason.value) for reason, status in STATUSES.items()]
    for name in class_names:
        for route in routes:
            for code, reason in ((HTTPStatus.OK.value, ""), *refusals):
                yield route, code, reason, name
    for code, reason in refusals:
        yield "", code, reason, rest


def _legs() -> Iterator[tuple[str, str]]:
    """Leg and outcome."""
    for leg in _LEGS:
        for outcome in ("answered", *_FAILURES):
            yield leg, outcome
    yield "prefill", "held"
    yield "prefill", "no_kv"
