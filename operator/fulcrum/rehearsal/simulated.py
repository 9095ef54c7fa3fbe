"""Rehearsals of a simulated cluster: they know what an operator would know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from fulcrum.api.gateway import PairsReport
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.decide.rehearsed import Rehearsed, Wanted
from fulcrum.rehearsal.believed import both_ways
from fulcrum.rehearsal.memory import Memory, question_of, rehearsed, remembered
from fulcrum.rehearsal.play import Margins, Stage
from fulcrum.rehearsal.rehearse import Answer, rehearse
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.policies.ours import START
from fulcrum.simulation.simulated_gateway import SimulatedGateway
from fulcrum.simulation.view import View


class Rehearsals:
    """What `Ours` asks. An answer is there at the next turn, as in production."""

    def __init__(self, spec: InferenceClusterSpec, *, seed: int = 0) -> None:
        self._spec, self._seed = spec, seed
        self._memory = Memory()
        self.answer: Rehearsed | None = None
        """The last one."""
        self.answers: list[tuple[float, Answer]] = []
        """All, with their times."""

    def distrusts(self, now: float) -> bool:
        """Report whether nothing is done by plays, at second `now`."""
        return self._memory.distrusts(now)

    def ask(self, wanted: Wanted, view: View, gateways: Sequence[SimulatedGateway]) -> None:
        """Rehearse what a plan wants, unless it is not worth it yet."""
        since = wanted.stands_since
        question = question_of(
            wanted,
            self._stage(wanted, view, gateways),
            view.seen(view.now - TUNING.memory_seconds),
            view.now,
            memory=self._memory,
            stands_since=(since - START).total_seconds() if since is not None else 0.0,
            known_from=None,
            seed=self._seed,
        )
        answer = rehearse(question) if question is not None else None
        if question is None or answer is None:
            return
        self.answers.append((view.now, answer))
        self._memory = remembered(answer, wanted, question, self._memory)
        self.answer = rehearsed(wanted, answer, question, START + timedelta(seconds=view.now))

    def _stage(self, wanted: Wanted, view: View, gateways: Sequence[SimulatedGateway]) -> Stage:
        admission = self._spec.admission
        return Stage(
            cluster=_believed(view.cluster, gateways),
            slo=view.slo,
            admission=admission.policy,
            classes=admission.classes,
            queue=admission.queue,
            admits={pool.name: pool.admits for pool in self._spec.pools},
            margins=tuple(Margins.of(gateway) for gateway in gateways),
            standing=wanted.standing,
        )


def _believed(cluster: ClusterModel, gateways: Sequence[SimulatedGateway]) -> ClusterModel:
    """Return the cluster as it is known: of links, what gateways have learnt of transfers, for both ways alike."""
    pairs = both_ways(PairsReport(rates=gateway.view.transfers.report()) for gateway in gateways)
    return replace(cluster, links=replace(cluster.links, pairs=pairs))
