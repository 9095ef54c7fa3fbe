"""Back-off, probes, Pod phase and conditions: tables without processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum_local.kubelet.addresses import AddressPool
from fulcrum_local.kubelet.backoff import Backoff
from fulcrum_local.kubelet.probes import ProbeKind, ProbeSpec, ProbeState
from fulcrum_local.kubelet.statuses import ContainerView, Exited, Running, Waiting, pod_phase, pod_status, restarts

Json = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:01:00Z"


def view(state: Waiting | Running | Exited, *, last: Exited | None = None, ready: bool = False) -> ContainerView:
    return ContainerView(name="c", image="i", state=state, last=last, ready=ready, started=ready)


def ended(code: int) -> Exited:
    return Exited(exit_code=code, reason="x", started_at=NOW, finished_at=NOW, container_id="process://1")


WAITING = Waiting(reason="ContainerCreating")
RUNNING = Running(started_at=NOW, container_id="process://1")


def test_first_restart_at_once_then_doubling_to_five_minutes() -> None:
    backoff = Backoff()
    delays = []
    for _ in range(8):
        backoff = backoff.ended(ran_seconds=1)
        delays.append(backoff.delay_seconds)
        backoff = backoff.restarted()
    assert delays == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.ended(ran_seconds=600).delay_seconds == 0


def test_probe_defaults() -> None:
    spec = ProbeSpec.of({"readinessProbe": {"tcpSocket": {"port": 1}}}, ProbeKind.READINESS)
    assert spec == ProbeSpec(kind=ProbeKind.READINESS, handler={"tcpSocket": {"port": 1}})
    assert ProbeSpec.of({"readinessProbe": {}}, ProbeKind.LIVENESS) is None


@pytest.mark.parametrize(
    ("results", "verdicts"),
    [
        ("+", [True]),
        ("--", [None, False]),
        ("+-+--", [True, True, True, True, False]),
        ("--+", [None, False, True]),
    ],
)
def test_a_verdict_needs_its_threshold(results: str, verdicts: list[bool | None]) -> None:
    spec = ProbeSpec(kind=ProbeKind.READINESS, handler={}, failure_threshold=2)
    state, seen = ProbeState(), []
    for result in results:
        state = state.after(result == "+", spec)
        seen.append(state.verdict)
    assert seen == verdicts


@given(st.lists(st.booleans()), st.integers(1, 4), st.integers(1, 4))
def test_a_verdict_changes_only_after_enough_equal_results(results: list[bool], successes: int, failures: int) -> None:
    spec = ProbeSpec(kind=ProbeKind.READINESS, handler={}, success_threshold=successes, failure_threshold=failures)
    state = ProbeState()
    for index, ok in enumerate(results):
        before = state.verdict
        state = state.after(ok, spec)
        if state.verdict is not before:
            needed = successes if ok else failures
            assert state.verdict is ok
            assert results[index + 1 - needed : index + 1] == [ok] * needed


@pytest.mark.parametrize(
    ("policy", "inits", "containers", "phase"),
    [
        ("Always", [], [view(WAITING)], "Pending"),
        ("Always", [], [view(RUNNING)], "Running"),
        ("Always", [], [view(Waiting(reason="CrashLoopBackOff"), last=ended(1))], "Running"),
        ("Always", [], [view(ended(0))], "Running"),
        ("OnFailure", [], [view(ended(0))], "Succeeded"),
        ("OnFailure", [], [view(ended(1))], "Running"),
        ("Never", [], [view(ended(0)), view(ended(2))], "Failed"),
        ("Never", [], [view(ended(0)), view(RUNNING)], "Running"),
        ("Never", [], [view(ended(0)), view(ended(0))], "Succeeded"),
        ("Always", [view(RUNNING)], [view(WAITING)], "Pending"),
        ("Never", [view(ended(1))], [view(WAITING)], "Failed"),
        ("Always", [view(ended(1))], [view(WAITING)], "Pending"),
        ("Always", [view(ended(0))], [view(RUNNING)], "Running"),
    ],
)
def test_phase(policy: str, inits: list[ContainerView], containers: list[ContainerView], phase: str) -> None:
    assert pod_phase(policy, inits, containers) == phase


@pytest.mark.parametrize(("codes", "phase"), [([0, 0], "Succeeded"), ([0, 143], "Failed")])
def test_phase_of_a_pod_that_was_ended(codes: list[int], phase: str) -> None:
    assert pod_phase("Always", [], [view(ended(code)) for code in codes], stopped=True) == phase


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_restart_policy(policy: str, code: int, again: bool) -> None:
    assert restarts(policy, code) is again


def status(pod: Json, *containers: ContainerView, now: str = NOW, terminating: bool = False) -> Json:
    return pod_status(
        pod, [], containers, pod_ip="127.77.1.1", host_ip="127.77.0.1", start_time=NOW, now=now, terminating=terminating
    )


def ready(found: Json) -> Json:
    condition: Json = next(item for item in found["conditions"] if item["type"] == "Ready")
    return condition


def test_an_unchanged_condition_keeps_its_time_and_a_changed_one_does_not() -> None:
    pod: Json = {"spec": {}}
    first = status(pod, view(RUNNING, ready=True))
    pod = {"spec": {}, "status": first}
    assert status(pod, view(RUNNING, ready=True), now=LATER) == first
    changed = ready(status(pod, view(RUNNING), now=LATER))
    assert (changed["status"], changed["lastTransitionTime"]) == ("False", LATER)
    assert changed["message"] == "containers with unready status: [c]"


def test_not_ready_as_soon_as_it_is_being_ended() -> None:
    assert ready(status({"spec": {}}, view(RUNNING, ready=True), terminating=True))["reason"] == "PodTerminating"


def test_readiness_gates_count() -> None:
    pod: Json = {"spec": {"readinessGates": [{"conditionType": "x/y"}]}}
    assert ready(status(pod, view(RUNNING, ready=True)))["reason"] == "ReadinessGatesNotReady"
    pod["status"] = {"conditions": [{"type": "x/y", "status": "True"}]}
    assert ready(status(pod, view(RUNNING, ready=True)))["status"] == "True"


def test_addresses_go_round_and_survive_a_restart(tmp_path: Path) -> None:
    pool = AddressPool("127.77.0.0/16", tmp_path / "addresses.json")
    assert pool.node_address == "127.77.0.1"
    first, second = pool.allocate(), pool.allocate()
    assert (first, second) == ("127.77.1.1", "127.77.1.2")
    pool.release(first)
    assert pool.allocate() == "127.77.1.3"  # not the one that was just given back
    again = AddressPool("127.77.0.0/16", tmp_path / "addresses.json")
    again.keep("127.77.1.4")
    assert again.allocate() == "127.77.1.5"


def test_all_addresses_taken(tmp_path: Path) -> None:
    pool = AddressPool("127.77.0.0/22", tmp_path / "addresses.json")
    taken = {pool.allocate() for _ in range(3 * 254)}
    assert len(taken) == 3 * 254
    with pytest.raises(RuntimeError, match="no Pod address is left"):
        pool.allocate()
