"""The policies of `fulcrum simulate` by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.simulation.comparison import Comparison, NamedPolicy, Played, PolicyTable
from fulcrum.simulation.policies import Aggregated


def _ours(comparison: Comparison) -> Played:
    return comparison.play(comparison.inputs.ours())


def _ours_open(comparison: Comparison) -> Played:
    return comparison.play(comparison.inputs.ours(name="ours-open", admission=AdmissionPolicy.OFF))


def _static(comparison: Comparison) -> Played:
    admission, best = comparison.best_static()
    result = replace(comparison.statics(admission)[best], policy=f"best static {best}")
    return comparison.static(best, admission), result


def _aggregated(comparison: Comparison) -> Played:
    return comparison.play(Aggregated(pool=comparison.inputs.pool, workers=comparison.inputs.most_workers))


POLICIES: Final = PolicyTable(
    policies={
        "ours": NamedPolicy(
            says="the planner, router and admission of the cluster's spec, with its rehearsals",
            run=_ours,
            several_pools=True,
            least_workers=1,
        ),
        "ours-open": NamedPolicy(
            says="the same planner and router, turning no request away",
            run=_ours_open,
            several_pools=True,
            least_workers=1,
        ),
        "static": NamedPolicy(
            says="the best static split, by trying them all; static-3:5 is that one",
            run=_static,
            runs=lambda _: 0,
            uses_statics=True,
        ),
        "aggregated": NamedPolicy(says="all workers mixed, with chunked prefill", run=_aggregated, least_workers=1),
    }
)
