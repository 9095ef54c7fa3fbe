"""What `fulcrum explain` prints of the production planner: after a flip, after a rehearsal that changes nothing, and
after workers were added.

The clusters are simulated; status and text are those of live ones.

    python benchmarks/explain.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fulcrum.api.status import InferenceClusterStatus
from fulcrum.api.types import InferenceCluster, InferenceClusterSpec, ObjectMeta
from fulcrum.cli.explain import lines
from fulcrum.load.demand import promised
from fulcrum.rehearsal.simulated import Rehearsals
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.from_spec import cluster_model
from fulcrum.simulation.generate import phased
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.traffic import Phase
from fulcrum.simulation.view import View


def document(least: int, most: int) -> Mapping[str, Any]:
    """A spec of so many workers of two H100."""
    return {
        "model": {"name": "meta-llama/Llama-3.1-70B-Instruct"},
        "slo": {"ttft": "2s", "tpot": "40ms", "attainment": 0.95},
        "pools": [
            {
                "name": "h100",
                "accelerator": "H100-SXM-80GB",
                "parallelism": {"tensor": 2},
                "workers": {"min": least, "max": most},
            }
        ],
        "balance": {"mode": "Auto"},
    }


PROMPTS = Phase(seconds=120, requests_per_second=3, prompt_tokens_mean=4000, output_tokens_mean=60)
ANSWERS = Phase(seconds=180, requests_per_second=9, prompt_tokens_mean=400, output_tokens_mean=600)


class Explaining(Ours):
    """Ours, which keeps the status after each kind of decision."""

    def __init__(self, spec: InferenceClusterSpec) -> None:
        super().__init__(spec, least_turn_seconds=2.0, rehearsals=Rehearsals(spec))
        self.explained: dict[str, InferenceClusterStatus] = {}
        """The first status after a decision of a kind, by its verb; `Hold`: the last after a rehearsal that keeps what
        stands."""

    def on_tick(self, view: View) -> TickResult:
        turn = super().on_tick(view)
        status = self._status
        if (last := status.last_decision) is not None and last.explanation is not None:
            self.explained.setdefault(last.action.split()[0], status)
        if (played := status.rehearsal) is not None and played.chosen == played.stood == status.ratio:
            self.explained["Hold"] = status
        return turn


def explained(least: int, most: int, phases: Sequence[Phase]) -> Mapping[str, str]:
    """Return what is printed after each kind of decision about a cluster of so many workers."""
    spec = msgspec.convert(document(least, most), InferenceClusterSpec)
    policy = Explaining(spec)
    result = simulate(
        phased(phases, seed=1), cluster_model(spec, profiles={}, start_seconds=30.0), policy, slo=promised(spec)
    )
    roles = [(sample.seconds, sample.prefill, sample.decode, sample.mixed) for sample in result.fleet]
    print(
        f"{least} to {most} workers: {len(roles)} changes; it ends with {roles[-1][1]}P:{roles[-1][2]}D:{roles[-1][3]}M"
    )
    found = ObjectMeta(name="chat", namespace="serving")
    return {
        verb: "\n".join(_without_conditions(lines(InferenceCluster(metadata=found, spec=spec, status=status))))
        for verb, status in policy.explained.items()
    }


def _without_conditions(text: Sequence[str]) -> Sequence[str]:
    return text[: next(place for place, line in enumerate(text) if line.lstrip().startswith("Available"))]


def main() -> int:
    """Run the benchmark; 0 when a flip, a rehearsal without one, and new workers were explained."""
    fixed, growing = explained(6, 6, (PROMPTS, ANSWERS)), explained(4, 12, (PROMPTS, ANSWERS))
    shown = {"Flip": fixed.get("Flip"), "Hold": fixed.get("Hold"), "Create": growing.get("Create")}
    for text in shown.values():
        print("$ fulcrum explain ic/chat -n serving")
        print(text)
    return 0 if all(shown.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
