"""Fixed workers, whose roles are chosen by rehearsal alone: a policy to judge rehearsals by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fulcrum.api.gateway import PairsReport
from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.balance.measurements import learnt_transfers
from fulcrum.balance.pools import flippable
from fulcrum.load.demand import LatencyTargets
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.memory import Memory, remembered
from fulcrum.rehearsal.play import Margins, Stage, flips
from fulcrum.rehearsal.rehearse import Answer, Question, rehearse
from fulcrum.rehearsal.stretch import newest_stretch
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.policy import Policy, TickResult
from fulcrum.simulation.simulated_gateway import SimulatedGateway
from fulcrum.simulation.view import View

TICK_SECONDS: Final = 5.0
REST_SECONDS: Final = 30.0
"""Between two changes."""


class Rehearsed(Policy):
    """What stands is left when another layout serves the same requests better by more than chance."""

    def __init__(self, spec: InferenceClusterSpec, *, seed: int = 0, name: str = "rehearsed") -> None:
        self.name = name
        self._spec, self._seed = spec, seed
        self._like_ours = Ours(spec)
        self._gateways: list[SimulatedGateway] = []
        self._memory = Memory()
        self._rests_until = TICK_SECONDS
        self.answers: list[tuple[float, Answer]] = []
        """Of all rehearsals, with their times."""

    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        return self._like_ours.initial(cluster)

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway:
        gateway = self._like_ours.make_gateway(cluster, slo)
        self._gateways.append(gateway)
        return gateway

    def on_tick(self, view: View) -> TickResult:
        chosen = self._chosen(view) if view.now >= self._rests_until else None
        if chosen is None:
            return TickResult(again_seconds=TICK_SECONDS)
        self._rests_until = view.now + REST_SECONDS
        return TickResult(actions=flips(view, chosen), again_seconds=TICK_SECONDS)

    def _chosen(self, view: View) -> Layout | None:
        seen = view.seen(view.now - TUNING.memory_seconds)
        if len(seen) < TUNING.least_requests:
            return None
        since = newest_stretch(seen, view.now)
        if not self._memory.asks(seen, since, view.now, view.slo.attainment):
            return None
        standing = Layout().plus((pod.pool.name, pod.role, 1) for pod in view.pods)
        question = Question(
            stage=self._stage(view, standing),
            seen=seen,
            since=since,
            now=view.now,
            flexible=flippable(self._spec.pools),
            offsets=self._memory.known_offsets(since, view.now),
            stands_since=max((pod.role_since or 0.0 for pod in view.pods), default=0.0),
            seed=self._seed,
        )
        answer = rehearse(question)
        if answer is None:
            return None
        self.answers.append((view.now, answer))
        self._memory = remembered(answer, standing, since, view.now)
        return answer.chosen if answer.chosen != standing else None

    def _stage(self, view: View, standing: Layout) -> Stage:
        admission = self._spec.admission
        return Stage(
            cluster=self._believed(view.cluster),
            slo=view.slo,
            admission=admission.policy,
            classes=admission.classes,
            queue=admission.queue,
            margins=tuple(Margins.of(gateway) for gateway in self._gateways),
            standing=standing,
        )

    def _believed(self, cluster: ClusterModel) -> ClusterModel:
        """Return the cluster as it is known: of links, what gateways have learnt of transfers, for both ways alike."""
        learnt = learnt_transfers(PairsReport(rates=gateway.view.transfers.report()) for gateway in self._gateways)
        back = {(target, source): cost for (source, target), cost in learnt.items()}
        return replace(cluster, links=replace(cluster.links, pairs=back | learnt))
