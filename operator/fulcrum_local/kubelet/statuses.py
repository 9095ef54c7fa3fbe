"""A Pod's status from what its containers do. No I/O; times are RFC 3339 strings that the caller passes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

OWNED_CONDITIONS: Final = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """One ended run of a container."""

    exit_code: int
    signal: int = 0
    reason: str
    message: str = ""
    started_at: str
    finished_at: str
    container_id: str

    def as_json(self) -> Json:
        """As `state.terminated`."""
        state: Json = {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
            "containerID": self.container_id,
        }
        if self.signal:
            state["signal"] = self.signal
        if self.message:
            state["message"] = self.message
        return {"terminated": state}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why a container does not run (yet)."""

    reason: str
    message: str = ""

    def as_json(self) -> Json:
        """As `state.waiting`."""
        return {"waiting": {"reason": self.reason, **({"message": self.message} if self.message else {})}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A container that runs."""

    started_at: str
    container_id: str

    def as_json(self) -> Json:
        """As `state.running`."""
        return {"running": {"startedAt": self.started_at}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """What one container does right now."""

    name: str
    image: str
    state: Waiting | Running | Exited
    last: Exited | None = None
    """The run before the present one (or the last one, while it waits for its restart)."""
    restart_count: int = 0
    ready: bool = False
    started: bool = False

    def as_json(self) -> Json:
        """As one entry of `containerStatuses`."""
        result: Json = {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restart_count,
            "state": self.state.as_json(),
            "lastState": self.last.as_json() if self.last else {},
        }
        current = self.last if isinstance(self.state, Waiting) else self.state
        if current is not None:
            result["containerID"] = current.container_id
        return result


def restarts(policy: str, exit_code: int) -> bool:
    """Whether a container that ended so is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def init_done(view: ContainerView) -> bool:
    """Whether an init container has done its part."""
    return isinstance(view.state, Exited) and view.state.exit_code == 0


def pod_phase(
    policy: str, inits: Sequence[ContainerView], containers: Sequence[ContainerView], *, stopped: bool = False
) -> str:
    """Pending, Running, Succeeded or Failed; `stopped` means the Pod was terminated and nothing will start again."""
    ended = [view.state for view in containers if isinstance(view.state, Exited)]
    if stopped:
        failed = any(state.exit_code for state in ended) or len(ended) < len(containers)
        return "Failed" if failed else "Succeeded"
    for view in inits:
        if isinstance(view.state, Exited) and view.state.exit_code != 0 and policy == "Never":
            return "Failed"
        if not init_done(view):
            return "Pending"
    if len(ended) == len(containers) and not any(restarts(policy, state.exit_code) for state in ended):
        return "Failed" if any(state.exit_code for state in ended) else "Succeeded"
    begun = any(not isinstance(view.state, Waiting) or view.last is not None for view in containers)
    return "Running" if begun else "Pending"


def pod_status(
    pod: Json,
    inits: Sequence[ContainerView],
    containers: Sequence[ContainerView],
    *,
    pod_ip: str,
    host_ip: str,
    start_time: str,
    now: str,
    terminating: bool = False,
    stopped: bool = False,
) -> Json:
    """The status that the kubelet owns; unchanged conditions keep their transition time, so no change is no write."""
    phase = pod_phase(pod["spec"].get("restartPolicy") or "Always", inits, containers, stopped=stopped)
    previous = {item["type"]: item for item in (pod.get("status") or {}).get("conditions") or []}
    conditions = [
        _condition(kind, verdict, previous.get(kind), now)
        for kind, verdict in _verdicts(pod, inits, containers, phase, previous, terminating=terminating).items()
    ]
    status: Json = {
        "phase": phase,
        "conditions": conditions,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "startTime": start_time,
        "containerStatuses": [view.as_json() for view in containers],
    }
    if inits:
        status["initContainerStatuses"] = [view.as_json() for view in inits]
    return status


_Verdict = tuple[bool, str, str]
"""(status, reason, message)"""


def _verdicts(
    pod: Json,
    inits: Sequence[ContainerView],
    containers: Sequence[ContainerView],
    phase: str,
    previous: dict[str, Json],
    *,
    terminating: bool,
) -> dict[str, _Verdict]:
    waiting_inits = [view.name for view in inits if not init_done(view)]
    initialized = (
        (False, "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(waiting_inits)}]")
        if waiting_inits
        else (True, "", "")
    )
    if phase in {"Succeeded", "Failed"}:
        ready = containers_ready = (False, "PodCompleted" if phase == "Succeeded" else "PodFailed", "")
    else:
        unready = [view.name for view in containers if not view.ready]
        containers_ready = (
            (False, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
            if unready
            else (True, "", "")
        )
        ready = containers_ready
        gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or []]
        closed = [gate for gate in gates if previous.get(gate, {}).get("status") != "True"]
        if ready[0] and closed:
            ready = (False, "ReadinessGatesNotReady", f"readiness gates not true: [{' '.join(closed)}]")
        if terminating:
            ready = (False, "PodTerminating", "the Pod is being terminated")
    verdicts = ((True, "", ""), initialized, containers_ready, ready)
    return dict(zip(OWNED_CONDITIONS, verdicts, strict=True))


def _condition(kind: str, verdict: _Verdict, previous: Json | None, now: str) -> Json:
    status, reason, message = verdict
    text = "True" if status else "False"
    unchanged = previous is not None and previous.get("status") == text and previous.get("lastTransitionTime")
    condition: Json = {"type": kind, "status": text, "lastTransitionTime": unchanged or now}
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition
