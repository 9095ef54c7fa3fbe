"""What `fulcrum explain` prints after decisions of the production planner: a flip, and workers that are added.

The cluster is simulated (prompts of 4,000 tokens, then answers of 600, then twice as many); status and text are those
of a live one.

    python benchmarks/explain.py
"""

from __future__ import annotations

import sys

import msgspec

from fulcrum.api.status import Decision
from fulcrum.api.types import InferenceCluster, InferenceClusterSpec, ObjectMeta
from fulcrum.cli.explain import lines
from fulcrum.load.demand import promised
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.from_spec import cluster_model
from fulcrum.simulation.generate import phased
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.traffic import Phase
from fulcrum.simulation.view import View

SPEC = {
    "model": {"name": "meta-llama/Llama-3.1-70B-Instruct"},
    "slo": {"ttft": "1s", "tpot": "40ms", "attainment": 0.95},
    "pools": [
        {
            "name": "h100",
            "accelerator": "H100-SXM-80GB",
            "parallelism": {"tensor": 2},
            "workers": {"min": 8, "max": 12},
        }
    ],
    "balance": {"mode": "Auto"},
}
PHASES = (
    Phase(seconds=120, requests_per_second=9, prompt_tokens_mean=4000, output_tokens_mean=60),
    Phase(seconds=150, requests_per_second=9, prompt_tokens_mean=400, output_tokens_mean=600),
    Phase(seconds=120, requests_per_second=24, prompt_tokens_mean=400, output_tokens_mean=600),
)


class Explaining(Ours):
    """Ours, which keeps the status after each kind of decision."""

    def __init__(self, spec: InferenceClusterSpec) -> None:
        super().__init__(spec, least_turn_seconds=2.0)
        self.explained: dict[str, Decision] = {}
        """The last decision that was explained, by its verb."""

    def on_tick(self, view: View) -> TickResult:
        turn = super().on_tick(view)
        last = self._status.last_decision
        if last is not None and last.explanation is not None:
            self.explained[last.action.split()[0]] = last
        return turn


def main() -> int:
    """Run the benchmark; 0 when a flip and a scale-up were explained."""
    spec = msgspec.convert(SPEC, InferenceClusterSpec)
    policy = Explaining(spec)
    cluster = cluster_model(spec, profiles={}, start_seconds=30.0)
    result = simulate(phased(PHASES, seed=1), cluster, policy, slo=promised(spec))
    for decision in policy.explained.values():
        status = msgspec.structs.replace(policy._status, last_decision=decision)  # noqa: SLF001
        shown = lines(InferenceCluster(metadata=ObjectMeta(name="chat", namespace="serving"), spec=spec, status=status))
        print("$ fulcrum explain ic/chat -n serving")
        # What stands now is that of the simulation's end.
        print("\n".join(shown[: next(place for place, line in enumerate(shown) if line.startswith("now"))]))
    roles = [(sample.seconds, sample.prefill, sample.decode, sample.mixed) for sample in result.fleet]
    print(f"{len(roles)} changes of the fleet; it ends with {roles[-1][1]}P:{roles[-1][2]}D:{roles[-1][3]}M")
    return 0 if {"Flip", "Create"} <= set(policy.explained) else 1


if __name__ == "__main__":
    sys.exit(main())
