"""What the status and events say of LoRA adapters."""

from __future__ import annotations

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import AdapterStatus
from fulcrum.api.worker import AdapterReport, AdapterSource, LoadReport
from fulcrum.controller.agent_adapters import adapter_events, adapter_statuses

SQL, TONE = (AdapterSource(name=name, source=f"/{name}") for name in ("sql", "tone"))


def load(**states: str) -> LoadReport:
    adapters = tuple(
        AdapterReport(name=name, source=f"/{name}", state=state, message="put it there" if state == "failed" else "")
        for name, state in states.items()
    )
    return LoadReport(role=Role.MIXED, role_epoch=0, ready=True, draining=False, adapters=adapters)


def test_each_adapter_is_counted_over_the_workers() -> None:
    loads = [load(sql="loaded", tone="loading"), load(sql="loaded", tone="failed"), load(old="leaving")]
    assert adapter_statuses([SQL, TONE], loads) == (
        AdapterStatus(name="sql", loaded=2, workers=3),
        AdapterStatus(name="tone", loaded=0, workers=3, message="put it there"),
    )


def test_other_weights_do_not_count() -> None:
    (found,) = adapter_statuses([AdapterSource(name="sql", source="/new")], [load(sql="loaded")])
    assert (found.loaded, found.workers) == (0, 1)


def test_an_event_comes_once_for_each_reason() -> None:
    now = adapter_statuses([SQL, TONE], [load(sql="loaded", tone="failed")])
    (event,) = adapter_events(now, None)
    assert (event.reason, event.warning, event.subject) == (Reason.ADAPTER_NOT_LOADED, True, "tone")
    assert event.message == "Adapter tone is loaded on 0 of 1 ready workers: put it there."
    assert adapter_events(now, now) == []
