"""The requests of the last minutes as gateways know them: what came and what has become of it, not what will."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.outcome import Ledger, Outcome
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """Requests by arrival; all columns have one element per request."""

    load: Workload
    """`output_tokens` are those that were made so far, and at least one."""
    made_tokens: NDArray[np.int64]
    """Of the answer, so far or in all."""
    ended: NDArray[np.bool_]
    """Served to the end: `made_tokens` is the length of the answer."""
    refused: NDArray[np.bool_]
    """Turned away, failed, or not counted: it is over, and nothing is known of the length of its answer."""
    missed: NDArray[np.bool_]
    """Not, or no longer, inside the promise."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.load)

    @property
    def arrival_seconds(self) -> NDArray[np.float64]:
        """When they came, ascending."""
        return self.load.arrival_seconds

    def at(self, chosen: NDArray[np.bool_]) -> Seen:
        """Return those that the mask picks."""
        columns = {each.name: getattr(self, each.name)[chosen] for each in fields(self) if each.name != "load"}
        return Seen(load=self.load.at(chosen), **columns)

    def since(self, seconds: float) -> Seen:
        """Return those that came from then on."""
        return self.at(self.load.arrival_seconds >= seconds)


def seen(
    index: NDArray[np.int64],
    now: float,
    *,
    load: Workload,
    ledger: Ledger,
    live: Mapping[int, SimulatedRequest],
    slo: LatencyTargets,
) -> Seen:
    """Return what is known of requests of `load` that have come; `live` are those that have not ended."""
    part, outcome = load.at(index), ledger.outcome[index]
    ended, refused = outcome == Outcome.SERVED, (outcome == Outcome.REJECTED) | (outcome == Outcome.FAILED)
    made = np.where(ended, part.output_tokens, 0).astype(np.int64)
    ttft = ledger.ttft_seconds[index].copy()
    for place in np.flatnonzero(outcome == Outcome.PENDING).tolist():
        request = live[int(index[place])]
        begun = 0 <= request.first_token_seconds <= now
        ttft[place] = (request.first_token_seconds if begun else now) - request.arrival_seconds
        if begun:
            made[place] = request.made_tokens(now)
    tpot = ledger.tpot_seconds(load.arrival_seconds, load.output_tokens, index)
    return Seen(
        load=replace(part, output_tokens=np.maximum(made, 1).astype(np.int32)),
        made_tokens=made,
        ended=ended,
        refused=refused,
        missed=refused | (ttft > slo.ttft_seconds) | (tpot > slo.tpot_seconds),
    )
