"""Auto at a constant load: what is measured is never the same twice, and yet no Pod comes or goes."""

from __future__ import annotations

import msgspec
import pytest
from tests.simulation.worlds import SLO, make_cluster, make_speed

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.rollout import CreateWorker, DeleteWorker
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import phased
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.traffic import Phase
from fulcrum.simulation.view import View

SETTLED_SECONDS = 900.0
SLOW = make_speed(prefill=(0.02, 1e-4, 2e-9), decode=(0.02, 5e-4, 2e-7))
"""So that an hour takes few requests."""


class Watched(Ours):
    """Our planner, and when Pods came and went since it has settled."""

    changes: list[float]

    def on_tick(self, view: View) -> TickResult:
        turn = super().on_tick(view)
        changed = any(isinstance(action, CreateWorker | DeleteWorker) for action in turn.actions)
        self.changes += [view.now] if changed and view.now > SETTLED_SECONDS else []
        return turn


def changes(rate: float) -> list[float]:
    """Simulate an hour of chat."""
    document = {
        "model": {"name": "m"},
        "slo": {"ttft": "500ms", "tpot": "50ms"},
        "pools": [{"name": "p", "accelerator": "H100", "workers": {"min": 1, "max": 12}}],
        "balance": {"mode": "Auto"},
    }
    phase = Phase(seconds=3600, requests_per_second=rate, prompt_tokens_mean=800, output_tokens_mean=100, spread=1.0)
    policy = Watched(msgspec.convert(document, InferenceClusterSpec), least_turn_seconds=5.0)
    policy.changes = []
    simulate(phased([phase], seed=5), make_cluster(SLOW, start_seconds=60.0), policy, slo=SLO)
    return policy.changes


@pytest.mark.parametrize("rate", [1.5, 3.0])
def test_workers_are_still(rate: float) -> None:
    assert len(changes(rate)) <= 2
