"""A run of the simulator, recorded turn by turn and replayed in a loop: what `fulcrum dashboard --demo` shows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from fulcrum.api.names import LABEL_POOL, LABEL_ROLE
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import LoadReport
from fulcrum.cli.shipped import DEMO_TURN_SECONDS
from fulcrum.dashboard import ClusterFacts, Reading
from fulcrum.load.demand import promised
from fulcrum.load.traffic import Traffic
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.load_report import load_report
from fulcrum.simulation.policies.ours import START, Ours
from fulcrum.simulation.policy import TickResult
from fulcrum.simulation.view import View
from fulcrum.simulation.workload import Workload

Json = dict[str, Any]

ORIGIN: Final = "a simulated run, recorded and replayed in a loop: no cluster"
"""What the page says of its figures."""
_NAMESPACE: Final = "demo"
_RATE_SECONDS: Final = 20.0
"""What the rate of requests is measured over, as `fulcrum dashboard` measures it."""
_TIMES: Final = frozenset({"time", "lastTransitionTime"})
"""Fields of a status that hold a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The cluster after one turn of the planner."""

    seconds: float
    """Since the begin of the run."""
    status: Json
    """As the operator writes it; its times count from START."""
    pods: Sequence[Json]
    loads: Mapping[str, LoadReport]
    traffic: Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All turns of one run, in order of time."""

    spec: InferenceClusterSpec
    frames: Sequence[Frame]
    seconds: float
    """How long the run takes."""


def record(spec: InferenceClusterSpec, cluster: ClusterModel, load: Workload) -> Recording:
    """Simulate the load on the cluster under the production planner, and keep what each turn saw and decided."""
    recorder = _Recorder(spec, least_turn_seconds=DEMO_TURN_SECONDS)
    simulate(load, cluster, recorder, slo=promised(spec))
    frames = [frame for frame in recorder.frames if frame.seconds <= load.duration_seconds]
    return Recording(spec=spec, frames=frames, seconds=load.duration_seconds)


class _Recorder(Ours):
    """The production planner, which writes down each of its turns."""

    def __init__(self, spec: InferenceClusterSpec, *, least_turn_seconds: float) -> None:
        super().__init__(spec, least_turn_seconds=least_turn_seconds)
        self.frames: list[Frame] = []

    def on_tick(self, view: View) -> TickResult:
        turn = super().on_tick(view)
        pods = [pod for pod in view.pods if pod.ranks]
        self.frames.append(
            Frame(
                seconds=view.now,
                status=msgspec.to_builtins(self._status),
                pods=[_pod(pod.name, pod.role.value, pod.pool.name) for pod in pods],
                loads={pod.name: load_report(pod) for pod in pods},
                traffic=view.traffic(_RATE_SECONDS),
            )
        )
        return turn


class Replayed:
    """A source of the dashboard: the recording again and again, with the times of decisions moved to today's."""

    def __init__(self, recording: Recording, *, now: Callable[[], float]) -> None:
        """`now` is Unix time in seconds."""
        self._recording = recording
        self._now = now
        self._began = now()
        self._version = 0
        self._spec: Json = msgspec.to_builtins(recording.spec)

    async def read(self, watched: frozenset[str]) -> Reading:
        """As `fulcrum.dashboard.Source`."""
        self._version += 1
        frames, now = self._recording.frames, self._now()
        loop_began = now - (now - self._began) % self._recording.seconds
        last = max(1, bisect_right(frames, now - loop_began, key=lambda frame: frame.seconds))
        return Reading(clusters=[self._facts(frames[:last], loop_began)])

    def _facts(self, frames: Sequence[Frame], loop_began: float) -> ClusterFacts:
        frame, shift = frames[-1], timedelta(seconds=loop_began - START.timestamp())
        metadata = {"name": "chat", "namespace": _NAMESPACE, "uid": "chat", "resourceVersion": str(self._version)}
        document = {"metadata": metadata, "spec": self._spec, "status": _moved(frame.status, shift)}
        decisions = {
            decision["time"]: decision for each in frames if (decision := each.status.get("lastDecision")) is not None
        }
        return ClusterFacts(
            document=document,
            pods=frame.pods,
            loads=frame.loads,
            traffic=frame.traffic,
            events=[_event(_moved(decision, shift)) for decision in decisions.values()],
        )


def _pod(name: str, role: str, pool: str) -> Json:
    created = START.strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {LABEL_ROLE: role, LABEL_POOL: pool}
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": created},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _event(decision: Json) -> Json:
    return {
        "involvedObject": {"uid": "chat"},
        "type": "Normal",
        "reason": decision["reason"],
        "message": f"{decision['action']}, from {decision['from']} to {decision['to']}.",
        "lastTimestamp": decision["time"],
    }


def _moved(document: Json, shift: timedelta) -> Json:
    """Return the document with its moments moved by `shift`."""

    def moved(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _moved(value, shift)
        if isinstance(value, list | tuple):
            return [moved("", each) for each in value]
        if name in _TIMES and isinstance(value, str):
            at = datetime.fromisoformat(value) + shift
            return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return value

    return {name: moved(name, value) for name, value in document.items()}
