"""Requests that the gateway keeps for a moment go on in virtual time, and none of them is lost."""

from __future__ import annotations

from tests.simulation.worlds import SLO, make_cluster, make_speed, poisson

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.load.demand import Slo
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.front_door import FrontDoor
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies.schedule import Schedule, Split


class Open(Schedule):
    """Lets the test look at its gateway."""

    door: FrontDoor

    def front_door(self, cluster: ClusterModel, slo: Slo) -> FrontDoor:
        self.door = super().front_door(cluster, slo)
        return self.door


def test_whoever_is_kept_is_served() -> None:
    policy = Open(pool="p", splits=[(0.0, Split(2, 2))], admission=AdmissionPolicy.PREDICTIVE)
    load = poisson(rate=45, count=6000, prompt=1000, output=10, seed=1)
    result = simulate(load, make_cluster(make_speed()), policy, slo=SLO)
    admission = policy.door.admission
    assert admission.postponed[0] > 20
    assert admission.waiting == 0
    rejected = result.count(Outcome.REJECTED)
    assert rejected > 0
    assert rejected == sum(tally.requests for tally in admission.rejected.values())
    assert result.count(Outcome.SERVED) == admission.admitted[0] == 6000 - rejected
    assert result.summary(SLO).attainment > 0.9 * (1 - rejected / 6000)
