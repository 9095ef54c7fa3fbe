"""A bad minute under one layout must not turn requests away under the next one."""

from __future__ import annotations

import pytest
from contests.rivals.schedule import Schedule
from contests.scenarios import Scenario, draw

from fulcrum.admission.layout_memory import LayoutMemory
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.policies import Split


def attained_after(scenario: Scenario, bad: Split, good: Split) -> float:
    """Share inside the SLO of what came 30 s after the flips to `good`, half-way through the load."""
    load = scenario.workload()
    flips_at = float(load.arrival_seconds[-1]) / 2
    policy = Schedule(
        pool=scenario.pools[0].name,
        splits=[(0.0, bad), (flips_at, good)],
        admission=AdmissionPolicy.PREDICTIVE,
        classes=scenario.spec().admission.classes,
    )
    result = simulate(load, scenario.cluster(), policy, slo=scenario.slo())
    return float(result.within(scenario.slo())[load.arrival_seconds > flips_at + 30].mean())


def test_margins_of_a_layout_that_is_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, bad, good = draw(5, 33), Split(1, 7), Split(7, 1)
    forgetting = attained_after(scenario, bad, good)
    monkeypatch.setattr(LayoutMemory, "kept", lambda *_: 1.0)
    burnt = attained_after(scenario, bad, good)
    assert forgetting > burnt + 0.1
