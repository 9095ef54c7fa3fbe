"""What keeps a worker from serving: which Pod, what was said about it, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from fulcrum.api.durations import seconds
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import EXIT_BAD_CONFIG, EXIT_ENGINE_DIED, EXIT_ENGINE_NOT_STARTED, EXIT_ENGINE_STALLED
from fulcrum.balance.snapshot import Worker

ENGINE_LINES_BYTES: Final = 1024
"""How much of the engine's last output a condition repeats."""
NAMED_WORKERS: Final = 8
"""How many workers a message lists by name."""

EXIT_MEANINGS: Final = {
    EXIT_BAD_CONFIG: "its configuration cannot be used",
    EXIT_ENGINE_NOT_STARTED: "vLLM did not come up",
    EXIT_ENGINE_DIED: "vLLM died while serving",
    EXIT_ENGINE_STALLED: "vLLM had work and made no progress, so the agent restarted it",
}
IMAGE_PULL_REASONS: Final = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
CONTAINER_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
"""Why the kubelet could not make the container: a Secret or a key that is absent, a volume, a command."""
DEADLINE_MARGIN: Final = timedelta(seconds=180)
"""Beyond `engine.startTimeout`: the agent and the kubelet give up first, and what they say is more precise."""


def worker_fault(workers: Iterable[Worker], spec: InferenceClusterSpec, now: datetime) -> tuple[Reason, str] | None:
    """Return the fault of workers that most needs a human, with a message; None where there is none."""
    found: dict[Reason, list[Worker]] = {}
    for worker in sorted(workers, key=lambda worker: worker.name):
        reason = fault_of(worker, spec, now)
        if reason is not None:
            found.setdefault(reason, []).append(worker)
    for reason, message in _MESSAGES.items():
        if reason in found:
            return reason, message(found[reason], spec)
    return None


def fault_of(worker: Worker, spec: InferenceClusterSpec, now: datetime) -> Reason | None:
    """Return why the worker will not serve before an operator does something about it; None where it may."""
    ended, since = worker.termination, None if worker.ready else worker.unready_since
    stalled = ended is not None and ended.exit_code == EXIT_ENGINE_STALLED
    longest = timedelta(seconds=seconds(spec.engine.start_timeout)) + DEADLINE_MARGIN
    holds = {
        Reason.ENGINE_FAILED: worker.engine_failed and not stalled,
        Reason.ENGINE_STALLED: worker.engine_failed and stalled,
        Reason.IMAGE_PULL_FAILED: worker.live and worker.waiting_reason in IMAGE_PULL_REASONS,
        Reason.CONTAINER_NOT_CREATED: worker.live and worker.waiting_reason in CONTAINER_REASONS,
        Reason.NODE_LOST: worker.lost,
        Reason.WORKER_UNSCHEDULABLE: worker.live and worker.unschedulable is not None,
        Reason.PROGRESS_DEADLINE_EXCEEDED: worker.live and since is not None and now - since > longest,
    }
    return next((reason for reason, applies in holds.items() if applies), None)


def _engine_message(failed: list[Worker], _: InferenceClusterSpec) -> str:
    first = failed[0]
    others = f" (and {names_of([w.name for w in failed[1:]])})" if len(failed) > 1 else ""
    if first.termination is None:
        return f"The engine of Pod {first.name}{others} keeps ending ({first.waiting_reason})."
    code = first.termination.exit_code
    meaning = EXIT_MEANINGS.get(code, "the worker ended")
    lines = last_bytes(first.termination.message.strip(), ENGINE_LINES_BYTES)
    said = f" Last lines:\n{lines}" if lines else ""
    return f"The engine of Pod {first.name}{others} failed: {meaning} (exit code {code}).{said}"


def _lost_message(lost: list[Worker], _: InferenceClusterSpec) -> str:
    nodes = ", ".join(sorted({worker.node for worker in lost if worker.node}))
    return (
        f"Node {nodes} does not answer any more or is gone: {_pods(lost)} {_is_or_are(lost)} removed, and replaced "
        "where another node has room. If the node comes back, nothing is to be done."
    )


def _image_message(waiting: list[Worker], _: InferenceClusterSpec) -> str:
    return (
        f"The image of {_pods(waiting)} cannot be pulled: {_said(waiting[0])} Check that engine.image exists in its "
        "registry, that nodes reach it, and imagePullSecrets in pools[].template.spec."
    )


def _container_message(waiting: list[Worker], _: InferenceClusterSpec) -> str:
    return (
        f"The container of {_pods(waiting)} cannot be made: {_said(waiting[0])} Most often a Secret, ConfigMap or "
        "claim that the spec names is absent, or has no such key: create it, or correct model.credentials, "
        "model.cache or pools[].template."
    )


def _homeless_message(homeless: list[Worker], _: InferenceClusterSpec) -> str:
    said = (homeless[0].unschedulable or "").rstrip(".")
    return (
        f"{names_of([w.name for w in homeless])} cannot be scheduled: {said}. Add nodes with the label and the "
        "resources that the pool asks for, or lower workers.max."
    )


def _late_message(late: list[Worker], spec: InferenceClusterSpec) -> str:
    return (
        f"{_pods(late)} {_is_or_are(late)} not ready and engine.startTimeout ({spec.engine.start_timeout}) is over: "
        f"see `kubectl describe pod {late[0].name}` and `kubectl logs {late[0].name}`; where weights take "
        "longer to load, raise engine.startTimeout."
    )


_MESSAGES: Final[Mapping[Reason, Callable[[list[Worker], InferenceClusterSpec], str]]] = {
    Reason.ENGINE_FAILED: _engine_message,
    Reason.ENGINE_STALLED: _engine_message,
    Reason.IMAGE_PULL_FAILED: _image_message,
    Reason.CONTAINER_NOT_CREATED: _container_message,
    Reason.NODE_LOST: _lost_message,
    Reason.WORKER_UNSCHEDULABLE: _homeless_message,
    Reason.PROGRESS_DEADLINE_EXCEEDED: _late_message,
}
"""The most urgent first: faults that time alone does not mend."""


def _pods(workers: list[Worker]) -> str:
    return f"{'Pod' if len(workers) == 1 else 'Pods'} {names_of([w.name for w in workers])}"


def _is_or_are(workers: list[Worker]) -> str:
    return "is" if len(workers) == 1 else "are"


def _said(worker: Worker) -> str:
    said = first_bytes(worker.waiting_message.strip(), ENGINE_LINES_BYTES)
    return f"{worker.waiting_reason}: {said}." if said else f"{worker.waiting_reason}."


def last_bytes(text: str, limit_bytes: int) -> str:
    """Return the end of `text` in at most `limit_bytes` of UTF-8, starting at a whole line where there is one."""
    encoded = text.encode()
    if len(encoded) <= limit_bytes:
        return text
    tail = encoded[-limit_bytes:].decode(errors="ignore")
    _, newline, rest = tail.partition("\n")
    return rest if newline and rest else tail


def first_bytes(text: str, limit_bytes: int) -> str:
    """Return the beginning of `text` in at most `limit_bytes` of UTF-8."""
    return text.encode()[:limit_bytes].decode(errors="ignore")


def names_of(names: list[str]) -> str:
    """Return names for a message, at most `NAMED_WORKERS` of them."""
    listed = ", ".join(names[:NAMED_WORKERS])
    return listed if len(names) <= NAMED_WORKERS else f"{listed} and {len(names) - NAMED_WORKERS} more"
