"""Where lost requests went, against a count by hand."""

from __future__ import annotations

from contests.explain import lost
from contests.rivals.schedule import Schedule
from tests.simulation.worlds import SLO, make_cluster, make_speed, poisson

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.outcome import Outcome
from fulcrum.simulation.policies import Split


def test_every_lost_request_has_one_cause() -> None:
    speed = make_speed()
    load = poisson(rate=30, count=1500, prompt=900, output=120, seed=4)

    def played(*splits: tuple[float, Split], admission: AdmissionPolicy) -> Schedule:
        return Schedule(pool="p", splits=splits, admission=admission)

    runs = {
        "other": played((0.0, Split(2, 2)), admission=AdmissionPolicy.PREDICTIVE),
        "open": played((0.0, Split(1, 3)), (20.0, Split(2, 2)), admission=AdmissionPolicy.OFF),
        "closed": played((0.0, Split(1, 3)), (20.0, Split(2, 2)), admission=AdmissionPolicy.PREDICTIVE),
    }
    results = {name: simulate(load, make_cluster(speed), policy, slo=SLO) for name, policy in runs.items()}
    other = results.pop("other")
    for name, ours in results.items():
        causes = lost(ours, other, SLO)
        gained = causes.pop("gained")
        difference = int(other.within(SLO).sum()) - int(ours.within(SLO).sum())
        assert sum(causes.values()) - gained == difference
        assert any(cause.endswith("other split") for cause in causes)
        turned_away = sum(count for cause, count in causes.items() if cause.startswith("turned away"))
        assert (turned_away > 0) == (name == "closed")
        assert turned_away <= ours.count(Outcome.REJECTED)
    assert lost(other, other, SLO) == {"gained": 0}
