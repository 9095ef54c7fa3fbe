"""One play: the last seconds under the layout that stands, then what is expected to come under a candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.admission_state import AdmissionState
from fulcrum.api.names import Role
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.api.serving_types import AdmissionPolicy, AdmissionQueue, QosClass
from fulcrum.decide.split import Move, moves_between
from fulcrum.decide.tuning import TUNING
from fulcrum.load.demand import LatencyTargets
from fulcrum.performance.layout import ROLES, Layout
from fulcrum.rehearsal.future import Future
from fulcrum.rollout import SetRole
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies.fixed import Fixed
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.simulated_gateway import SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest
from fulcrum.simulation.view import View

_TAIL_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """What the admission of one gateway has learnt: actual over predicted latency."""

    ttft: Mapping[str, float]
    """By class; of others nothing is known."""
    tpot: float

    @classmethod
    def of(cls, gateway: SimulatedGateway) -> Margins:
        """Read them."""
        admission = gateway.admission
        factors = (one.factor for one in admission.learnt.ttft_margins)
        return cls(
            ttft=dict(zip(admission.classes.names, factors, strict=True)), tpot=admission.learnt.tpot_margin.factor
        )

    @classmethod
    def of_state(cls, state: AdmissionState, classes: Sequence[str]) -> Margins:
        """Read them of what a gateway told of its classes."""
        factors = (one.factor for one in state.ttft_margins)
        return cls(ttft=dict(zip(classes, factors, strict=False)), tpot=state.tpot_margin.factor)

    def put(self, gateway: SimulatedGateway) -> None:
        """Have a gateway go on with them."""
        admission = gateway.admission
        for name, margin in zip(admission.classes.names, admission.learnt.ttft_margins, strict=True):
            margin.factor = self.ttft.get(name, 1.0)
        admission.learnt.tpot_margin.factor = self.tpot


class Stood(NamedTuple):
    """A layout that stood before."""

    layout: Layout
    until_seconds: float
    """When it became another one: so long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all plays are played on."""

    cluster: ClusterModel
    """As it is believed to be."""
    slo: LatencyTargets
    admission: AdmissionPolicy
    classes: Sequence[QosClass]
    queue: AdmissionQueue | None
    admits: Mapping[str, PoolAdmits | None] | None = None
    """Requests that pools take, of every pool; None: all take all."""
    margins: Sequence[Margins]
    """Of each gateway; fewer where they are not known: those begin anew."""
    standing: Layout
    stood: Sequence[Stood] = ()
    """What stood before, the oldest first: the past is played under it."""


def play(stage: Stage, future: Future, layout: Layout, *, spare: float) -> NDArray[np.bool_] | None:
    """Return which requests are inside the promise; None: given up, because more than `spare` scored ones missed it.

    A scored request that has not ended when the play ends is not inside either, but gives nothing up.
    """
    played = _Played(stage, future, layout, spare=spare)
    try:
        result = simulate(future.load, stage.cluster, played, slo=stage.slo, tail_seconds=_TAIL_SECONDS)
    except _CannotWinError:
        return None
    return result.within(stage.slo)


class _CannotWinError(Exception):
    """More requests are late than may be."""


class _Played(Fixed):
    """The layouts of the past, and then another one."""

    def __init__(self, stage: Stage, future: Future, layout: Layout, *, spare: float) -> None:
        now = future.changes_at
        # Margins are put now; an answer is acted on at the next tick.
        self._coming = [*_turns(stage, now), (now, stage.standing), (now + TUNING.tick_seconds, layout)]
        _, first = self._coming.pop(0)
        super().__init__(_workers(first), admission=stage.admission, classes=stage.classes, queue=stage.queue)
        self._stage, self._now = stage, now
        self._scored, self._spare = future.scored.tolist(), spare
        self._gateways: list[SimulatedGateway] = []

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway | None:
        gateway = super().make_gateway(cluster, slo)
        if gateway is not None:
            if self._stage.admits is not None:
                gateway.view.workers.set_pools(self._stage.admits)
            self._gateways.append(gateway)
        return gateway

    def on_tick(self, view: View) -> TickResult:
        actions: list[SetRole] = []
        if self._coming and view.now >= self._coming[0][0]:
            at, layout = self._coming.pop(0)
            actions = flips(view, layout)
            if at == self._now:
                for gateway, margins in zip(self._gateways, self._stage.margins, strict=False):
                    margins.put(gateway)
        return TickResult(actions=actions, again_seconds=self._coming[0][0] - view.now if self._coming else None)

    def on_end(self, request: SimulatedRequest, view: View) -> None:
        if not self._scored[request.index]:
            return
        slo, first = self._stage.slo, request.first_token_seconds
        inside = 0 <= first <= view.now and first - request.arrival_seconds <= slo.ttft_seconds
        if inside and request.output > 1:
            inside = (view.now - first) / (request.output - 1) <= slo.tpot_seconds
        if not inside:
            self._spare -= 1
            if self._spare < 0:
                raise _CannotWinError


def _turns(stage: Stage, changes_at: float) -> list[tuple[float, Layout]]:
    """Return what stands from when on, on the clock of a play whose past ends at `changes_at`.

    Layouts of other numbers of workers are left out, and what was before them.
    """
    turns: list[tuple[float, Layout]] = [(0.0, stage.standing)]
    for layout, until_seconds in reversed(stage.stood):
        until = changes_at - until_seconds
        if until <= 0.0 or not _same_workers(layout, stage.standing):
            break
        turns[0] = (until, turns[0][1])
        turns.insert(0, (0.0, layout))
    return turns


def _same_workers(one: Layout, other: Layout) -> bool:
    return one.pools == other.pools and all(
        sum(one.in_pool(pool).values()) == sum(other.in_pool(pool).values()) for pool in one.pools
    )


def flips(view: View, layout: Layout) -> list[SetRole]:
    """Return the fewest changes of role that make `layout`, of the workers that a plan takes: the last ones first."""
    stands = Layout().plus((pod.pool.name, pod.role, 1) for pod in view.pods)
    left = Counter(moves_between(sorted(layout.pools), stands, layout))
    actions: list[SetRole] = []
    for pod in sorted(view.pods, key=lambda pod: (pod.pool.name, -pod.ordinal)):
        moves = (Move(pod.pool.name, pod.role, role) for role in ROLES)
        move = next((each for each in moves if left[each] > 0), None)
        if move is not None:
            left[move] -= 1
            epoch = pod.epoch + 1
            actions.append(SetRole(name=pod.name, uid=pod.uid, from_role=pod.role, role=move.role, epoch=epoch))
    return actions


def _workers(layout: Layout) -> list[tuple[str, Role]]:
    return [(pool, role) for role in ROLES for pool, count in layout.of_role(role) for _ in range(count)]
