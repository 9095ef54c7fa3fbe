"""What the page is told of a cluster, and what it is never told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.dashboard.facts import condition, document, event, load, pod

from fulcrum.api.reasons import Reason
from fulcrum.dashboard import ClusterFacts
from fulcrum.dashboard.public import message_of
from fulcrum.dashboard.view import DECISIONS, detail, point, row, status_of, workers
from fulcrum.dashboard.wire import Detail, Row
from fulcrum.load.traffic import Traffic


def shown(facts: ClusterFacts) -> Detail:
    status = status_of(facts.document)
    return detail(facts, status, row(facts, status))


def row_of(facts: ClusterFacts) -> Row:
    return row(facts, status_of(facts.document))


AVAILABLE, WORKING = condition("Available", "True", "Ready"), condition("Progressing", "True", "WorkersStarting")
FAILED = condition("Degraded", "True", "EngineFailed")


@pytest.mark.parametrize(
    ("conditions", "state", "reason"),
    [
        ([], "unknown", ""),
        ([AVAILABLE], "ok", ""),
        ([AVAILABLE, WORKING], "busy", "WorkersStarting"),
        ([AVAILABLE, FAILED], "warn", "EngineFailed"),
        ([condition("Available", "False", "NoReadyWorkers"), FAILED], "bad", "EngineFailed"),
        ([condition("Available", "False", "NoReadyWorkers"), WORKING], "bad", "NoReadyWorkers"),
        ([condition("Available", "Unknown", "Ready")], "bad", "Ready"),
    ],
)
def test_the_state_is_that_of_the_worst_condition(conditions: list[Any], state: str, reason: str) -> None:
    found = row_of(ClusterFacts(document=document(conditions=conditions)))
    assert (found.state, found.reason) == (state, reason)


def test_what_is_unknown_is_absent_and_never_zero() -> None:
    facts = ClusterFacts(document=document(), pods=[pod("chat-p-0")], loads={"chat-p-0": load(None, None, None)})
    assert msgspec.to_builtins(row_of(facts)) == {
        "key": "ml/chat",
        "name": "chat",
        "namespace": "ml",
        "state": "unknown",
        "model": "model",
        "mode": "Auto",
        "workers": 1,
        "promise": 0.95,
    }
    assert shown(facts).rejections is None
    assert set(point(status_of(facts.document), row_of(facts)).values()) == {None}


def test_figures_are_those_of_status_workers_and_gateways() -> None:
    facts = ClusterFacts(
        document=document(
            ratio="1P:2D",
            ready="3/4",
            roles={
                "decode": {"desired": 3, "ready": 2, "draining": 0},
                "prefill": {"desired": 1, "ready": 1, "draining": 1},
            },
            attainment=0.912,
            rejectedRatio=0.04,
            ttft={"p50": "120ms", "p90": "501ms", "p99": "2s"},
            tpot={"p50": "20ms", "p90": "50ms"},
            forecast={"method": "arima", "rate": 12.5, "upperRate": 15.0, "horizon": "90s", "error": 0.1},
            batches={"waiting": 1, "running": 2, "requests": 400, "completed": 120, "failed": 3},
        ),
        pods=[pod("chat-p-0", "prefill"), pod("chat-p-1")],
        loads={"chat-p-0": load(2, 3, 0.25), "chat-p-1": load(4, 0, 0.75)},
        traffic=Traffic(window_seconds=30, rate=10.04, rejections={Reason.OVERLOADED: 0.1}),
    )
    found = row_of(facts)
    assert (found.ratio, found.target, found.ready) == ("1P:2D", "1P:3D", "3/4")
    assert (found.running, found.waiting, found.kv, found.rate, found.forecast) == (6, 3, 0.75, 10.0, 12.5)
    all_of_it = shown(facts)
    assert [role.role for role in all_of_it.roles] == ["prefill", "decode"]
    assert (all_of_it.ttft.late, all_of_it.tpot.late) == (True, False)
    assert all_of_it.rejections == {"Overloaded": 1.0}
    assert all_of_it.batches is not None
    assert (all_of_it.batches.completed, all_of_it.batches.requests) == (120, 400)
    figures = point(status_of(facts.document), found)
    assert (figures["prefill"], figures["decode_target"], figures["mixed"]) == (1, 3, None)
    assert (figures["rate"], figures["upper"], figures["attainment"]) == (10.0, 15.0, 0.912)


def test_workers_come_by_role_then_by_number() -> None:
    pods = [pod("chat-p-10"), pod("chat-p-9"), pod("chat-p-1", "draining"), pod("chat-p-2", "prefill"), pod("x", "")]
    found = workers(ClusterFacts(document=document(), pods=pods))
    assert [worker.name for worker in found] == ["chat-p-2", "chat-p-9", "chat-p-10", "chat-p-1", "x"]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "ready"),
        ({"ready": False}, "Running"),
        ({"ready": False, "phase": "Pending", "conditions": []}, "Pending"),
        (
            {
                "ready": False,
                "containerStatuses": [
                    {
                        "name": "worker",
                        "restartCount": 3,
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "SECRET"}},
                        "lastState": {"terminated": {"exitCode": 70, "message": "SECRET"}},
                    }
                ],
            },
            "CrashLoopBackOff",
        ),
    ],
)
def test_a_workers_state_never_quotes_its_engine(changes: dict[str, Any], state: str) -> None:
    (found,) = workers(ClusterFacts(document=document(), pods=[pod("chat-p-0", **changes)]))
    assert found.state == state
    assert b"SECRET" not in msgspec.json.encode(found)


def test_a_worker_that_is_deleted_terminates() -> None:
    going = pod("chat-p-0")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    (found,) = workers(ClusterFacts(document=document(), pods=[going]))
    assert found.state == "Terminating"


def test_decisions_are_events_of_this_object_newest_first() -> None:
    events = [
        event("LoadShifted", "Older.", at="2026-01-01T00:00:01Z"),
        event("LoadForecast", "Newer.", at="2026-01-01T00:00:09Z"),
        event("LoadShifted", "Of an earlier object of this name.", uid="another"),
    ]
    found = shown(ClusterFacts(document=document(), events=events)).decisions
    assert [decision.message for decision in found] == ["Newer.", "Older."]
    many = [event("LoadShifted", f"{n}", at=f"2026-01-01T00:{n:02}:00Z") for n in range(59)]
    assert len(shown(ClusterFacts(document=document(), events=many)).decisions) == DECISIONS


def test_the_last_decision_outlives_its_event() -> None:
    last = {
        "action": "SetRole",
        "reason": "LoadShifted",
        "from": "1P:3D",
        "to": "2P:2D",
        "time": "2026-01-01T00:00:05Z",
    }
    facts = ClusterFacts(document=document(lastDecision=last))
    assert [decision.message for decision in shown(facts).decisions] == ["SetRole, from 1P:3D to 2P:2D."]
    with_event = ClusterFacts(document=document(lastDecision=last), events=[event("LoadShifted", "Worker chat-p-0.")])
    assert [decision.message for decision in shown(with_event).decisions] == ["Worker chat-p-0."]


def test_a_status_of_another_version_is_unknown() -> None:
    assert status_of({"status": {"roles": "many"}}).ratio is None


@pytest.mark.parametrize(
    "reason",
    [
        Reason.ENGINE_FAILED, Reason.ENGINE_STALLED, Reason.INVALID_SPEC, Reason.TEMPLATE_REFUSED, Reason.PLAN_FAILED,
        Reason.RECONCILE_FAILED, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_NOT_CREATED, Reason.ENGINE_ERROR,
    ],
)  # fmt: skip
def test_a_message_that_can_quote_an_engine_or_a_spec_is_not_repeated(reason: Reason) -> None:
    said = message_of(reason.value, "prompt: my bank PIN is 1234", key="ml/chat")
    assert "1234" not in said
    assert "kubectl describe ic chat -n ml" in said


def test_a_message_of_a_later_release_is_not_repeated() -> None:
    assert "1234" not in message_of("SomethingNew", "1234", key="ml/chat")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("http://user:word@prom:9090/api?token=abc did not answer", "http://prom:9090/api did not answer"),
        ("First line.\nEngine said: secret", "First line."),
        ("x" * 500, "x" * 399 + "…"),
    ],
)
def test_messages_lose_passwords_of_urls_and_further_lines(message: str, said: str) -> None:
    assert message_of("MetricsUnknown", message, key="ml/chat") == said


def test_nothing_of_a_spec_is_shown_but_names_and_promises() -> None:
    facts = ClusterFacts(document=document(ratio="1P:1D"), pods=[pod("chat-p-0")])
    whole = msgspec.json.encode([shown(facts), workers(facts)])
    assert b"hf-token" not in whole
