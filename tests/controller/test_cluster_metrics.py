"""The status of each cluster as metrics."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.decide.world import make_spec

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.status import Condition, ConditionStatus, ConditionType, ForecastStatus, RoleCounts
from fulcrum.api.types import InferenceClusterStatus
from fulcrum.controller.metrics import Metrics
from fulcrum.report import stopped_status

KEY = ("team", "chat")
LABELS = 'fulcrum_cluster="chat",fulcrum_namespace="team"'


def page(status: InferenceClusterStatus) -> str:
    metrics = Metrics()
    metrics.cluster_states.say(KEY, make_spec(), status)
    return metrics.page().decode()


def test_what_the_status_says_is_exported() -> None:
    shown = page(
        InferenceClusterStatus(
            attainment=0.97,
            rejected_ratio=0.01,
            roles={Role.PREFILL: RoleCounts(desired=3, ready=2, draining=1)},
            forecast=ForecastStatus(method="arima", rate=4.0, upper_rate=5.0),
            conditions=(
                Condition(
                    type=ConditionType.AVAILABLE,
                    status=ConditionStatus.TRUE,
                    reason=Reason.READY,
                    message="",
                    observed_generation=1,
                    last_transition_time="2026-01-01T00:00:00Z",
                ),
            ),
        )
    )
    for line in (
        f"fulcrum_operator_cluster_attainment_ratio{{{LABELS}}} 0.97",
        f"fulcrum_operator_cluster_slo_objective_ratio{{{LABELS}}} 0.95",
        f'fulcrum_operator_cluster_slo_seconds{{{LABELS},metric="ttft"}} 2.0',
        f'fulcrum_operator_cluster_workers{{{LABELS},role="prefill",state="ready"}} 2.0',
        f'fulcrum_operator_cluster_forecast_requests_per_second{{bound="upper",{LABELS}}} 5.0',
        f'fulcrum_operator_cluster_condition{{condition="Available",{LABELS},reason="Ready"}} 1.0',
    ):
        assert line in shown


def stopped() -> InferenceClusterStatus:
    return stopped_status(
        Reason.INVALID_SPEC, "why", status=InferenceClusterStatus(), generation=2, now=datetime(2026, 1, 1, tzinfo=UTC)
    )


def test_a_cluster_that_cannot_be_decided_says_so_and_keeps_its_promise() -> None:
    metrics = Metrics()
    metrics.cluster_states.say(KEY, make_spec(), InferenceClusterStatus())
    metrics.cluster_states.say_stopped(KEY, stopped())
    shown = metrics.page().decode()
    assert f'fulcrum_operator_cluster_condition{{condition="Degraded",{LABELS},reason="InvalidSpec"}} 1.0' in shown
    assert f"fulcrum_operator_cluster_slo_objective_ratio{{{LABELS}}} 0.95" in shown


def test_a_cluster_whose_spec_was_never_read_has_conditions_alone() -> None:
    metrics = Metrics()
    metrics.cluster_states.say_stopped(KEY, stopped())
    shown = metrics.page().decode()
    assert f'fulcrum_operator_cluster_condition{{condition="Degraded",{LABELS},reason="InvalidSpec"}} 1.0' in shown
    assert "\nfulcrum_operator_cluster_slo_objective_ratio{" not in shown


def test_what_is_not_known_has_no_sample() -> None:
    shown = page(InferenceClusterStatus())
    assert "\nfulcrum_operator_cluster_attainment_ratio{" not in shown
    assert "\nfulcrum_operator_cluster_rejected_ratio{" not in shown


def test_a_cluster_that_is_gone_takes_its_series_along() -> None:
    metrics = Metrics()
    metrics.cluster_states.say(KEY, make_spec(), InferenceClusterStatus())
    metrics.cluster_states.forget(KEY)
    assert b'"chat"' not in metrics.page()
