"""Fulcrum's Grafana dashboards: what each panel asks Prometheus. `charts/generate.py` writes them as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CLUSTER = 'fulcrum_namespace=~"$namespace",fulcrum_cluster=~"$cluster"'
BY_CLUSTER = "by (fulcrum_namespace, fulcrum_cluster)"
CLUSTER_NAME = "{{fulcrum_namespace}}/{{fulcrum_cluster}}"
OPERATOR = "fulcrum_operator_cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: title, Grafana's unit, and queries by their legends."""

    title: str
    unit: str
    queries: dict[str, str]
    about: str = ""
    kind: str = "timeseries"


def each_once(query: str, by: str) -> str:
    """Return the sum over gateways of what each one counts, however many scrape jobs see it."""
    return f"sum by ({by}) (max by (fulcrum_gateway, {by}) (sum by (fulcrum_gateway, job, instance, {by}) ({query})))"


def leading(query: str, by: str) -> str:
    """Return what the operator that leads counts, however many scrape jobs see it."""
    return f"max by ({by}) (sum by (job, instance, {by}) ({query}))"


def quantile(share: float, histogram: str, by: str = "") -> str:
    """Return the query for a quantile of one of the gateway's histograms."""
    buckets = each_once(f"rate({histogram}_bucket{{{CLUSTER}}}[$__rate_interval])", ", ".join(filter(None, ("le", by))))
    return f"histogram_quantile({share}, {buckets})"


def gateway_rate(metric: str, by: str, extra: str = "") -> str:
    """Return the query for the rate of one of the gateway's counters."""
    return each_once(f"rate(fulcrum_gateway_{metric}{{{CLUSTER}{extra}}}[$__rate_interval])", by)


def front_rate(metric: str, by: str) -> str:
    """Return the query for the rate of one of the fronts' counters, by front."""
    counted = f'rate(fulcrum_front_{metric}{{fulcrum_namespace=~"$namespace"}}[$__rate_interval])'
    return each_once(counted, f"fulcrum_front, {by}")


DASHBOARDS: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "fleet": (
        "Fulcrum / Fleet",
        (
            Panel(title="Clusters", unit="short", kind="stat", queries={"": "max(fulcrum_operator_clusters)"}),
            Panel(
                title="Clusters that do not serve",
                unit="short",
                kind="stat",
                queries={
                    "": f'count(max {BY_CLUSTER} ({OPERATOR}_condition{{condition="Available"}}) == 0) or vector(0)'
                },
            ),
            Panel(
                title="SLO attainment",
                unit="percentunit",
                queries={CLUSTER_NAME: f"{OPERATOR}_attainment_ratio{{{CLUSTER}}}"},
            ),
            Panel(
                title="Requests turned away",
                unit="percentunit",
                queries={CLUSTER_NAME: f"{OPERATOR}_rejected_ratio{{{CLUSTER}}}"},
            ),
            Panel(
                title="Ready workers",
                unit="short",
                queries={
                    CLUSTER_NAME: leading(
                        f'{OPERATOR}_workers{{{CLUSTER},state="ready"}}', "fulcrum_namespace, fulcrum_cluster"
                    )
                },
            ),
            Panel(
                title="Conditions",
                unit="short",
                about="Degraded, by reason; docs/reference/reasons.md says what to do about each.",
                queries={CLUSTER_NAME + " {{reason}}": f'{OPERATOR}_condition{{{CLUSTER},condition="Degraded"}} == 1'},
            ),
            Panel(
                title="Requests of InferenceGateways, by model and cluster",
                unit="reqps",
                about="Where each front sent its requests; no cluster: the front answered itself.",
                queries={"{{fulcrum_front}} {{model}} {{cluster}}": front_rate("requests_total", "model, cluster")},
            ),
            Panel(
                title="Requests that a cluster of an InferenceGateway did not serve",
                unit="reqps",
                about="By why: the cluster's status, how the connection failed, silent, or full.",
                queries={
                    "{{fulcrum_front}} {{model}} {{cluster}} {{why}}": front_rate(
                        "fallbacks_total", "model, cluster, why"
                    )
                },
            ),
        ),
    ),
    "cluster": (
        "Fulcrum / Cluster",
        (
            Panel(
                title="Requests",
                unit="reqps",
                queries={
                    "arrived {{class}}": gateway_rate("arrivals_total", "class"),
                    "forecast {{bound}}": f"{OPERATOR}_forecast_requests_per_second{{{CLUSTER}}}",
                },
            ),
            Panel(
                title="Outcomes against the SLO",
                unit="reqps",
                queries={"{{outcome}}": gateway_rate("slo_total", "outcome")},
            ),
            Panel(
                title="Time to first token",
                unit="s",
                queries={
                    "p50": quantile(0.5, "fulcrum_gateway_time_to_first_token_seconds"),
                    "p90": quantile(0.9, "fulcrum_gateway_time_to_first_token_seconds"),
                    "promised": f'{OPERATOR}_slo_seconds{{{CLUSTER},metric="ttft"}}',
                },
            ),
            Panel(
                title="Time per output token",
                unit="s",
                queries={
                    "p50": quantile(0.5, "fulcrum_gateway_time_per_output_token_seconds"),
                    "p90": quantile(0.9, "fulcrum_gateway_time_per_output_token_seconds"),
                    "promised": f'{OPERATOR}_slo_seconds{{{CLUSTER},metric="tpot"}}',
                },
            ),
            Panel(
                title="Workers by role",
                unit="short",
                queries={"{{role}} {{state}}": f"{OPERATOR}_workers{{{CLUSTER}}}"},
            ),
            Panel(
                title="Legs under way",
                unit="short",
                queries={
                    "{{worker}} {{role}}": each_once(f"fulcrum_gateway_worker_in_flight{{{CLUSTER}}}", "worker, role")
                },
            ),
        ),
    ),
    "requests": (
        "Fulcrum / Requests",
        (
            Panel(title="Answers by code", unit="reqps", queries={"{{code}}": gateway_rate("requests_total", "code")}),
            Panel(
                title="Turned away, by reason",
                unit="reqps",
                queries={"{{reason}} {{class}}": gateway_rate("requests_total", "reason, class", ',reason!=""')},
            ),
            Panel(
                title="Time to first token by class, p90",
                unit="s",
                queries={"{{class}}": quantile(0.9, "fulcrum_gateway_time_to_first_token_seconds", "class")},
            ),
            Panel(
                title="Prompt and output tokens, median",
                unit="short",
                queries={
                    "prompt": quantile(0.5, "fulcrum_gateway_prompt_tokens"),
                    "output": quantile(0.5, "fulcrum_gateway_output_tokens"),
                },
            ),
            Panel(
                title="Legs that failed",
                unit="reqps",
                queries={
                    "{{leg}} {{outcome}}": gateway_rate("legs_total", "leg, outcome", ',outcome!="answered"'),
                    "resumed {{outcome}}": gateway_rate("resumes_total", "outcome"),
                },
            ),
            Panel(
                title="Workers left alone",
                unit="short",
                queries={"{{worker}}": f"max by (worker) (fulcrum_gateway_worker_breaker_open{{{CLUSTER}}}) == 1"},
            ),
            Panel(
                title="Pairs between which no KV moves",
                unit="short",
                about="Canaries in a row that failed; requests are routed around the pair.",
                queries={
                    "{{prefill}} -> {{decode}}": "max by (prefill, decode) "
                    f"(fulcrum_gateway_kv_pair_failures{{{CLUSTER}}})"
                },
            ),
        ),
    ),
    "decisions": (
        "Fulcrum / Decisions",
        (
            Panel(
                title="Decisions",
                unit="ops",
                queries={
                    "{{mode}} {{reason}}": leading(
                        "rate(fulcrum_operator_decisions_total[$__rate_interval])", "mode, reason"
                    )
                },
            ),
            Panel(
                title="Actions",
                unit="ops",
                queries={"{{action}}": leading("rate(fulcrum_operator_actions_total[$__rate_interval])", "action")},
            ),
            Panel(
                title="Forecast error",
                unit="percentunit",
                queries={"{{namespace}}/{{cluster}} {{method}}": "fulcrum_operator_forecast_error_ratio"},
            ),
            Panel(
                title="Questions without an answer",
                unit="ops",
                queries={
                    "{{source}} {{asked}}": leading(
                        "rate(fulcrum_operator_telemetry_unknown_total[$__rate_interval])", "source, asked"
                    )
                },
            ),
            Panel(
                title="Time of one plan, p99",
                unit="s",
                queries={
                    "": "histogram_quantile(0.99, "
                    + leading("rate(fulcrum_operator_plan_seconds_bucket[$__rate_interval])", "le")
                    + ")"
                },
            ),
            Panel(
                title="Calls to the API server",
                unit="ops",
                queries={
                    "{{verb}} {{result}}": leading(
                        "rate(fulcrum_operator_api_calls_total[$__rate_interval])", "verb, result"
                    )
                },
            ),
        ),
    ),
}


def dashboard(name: str) -> dict[str, Any]:
    """Return one dashboard as Grafana reads it."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"fulcrum-{name}",
        "title": title,
        "tags": ["fulcrum"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                _variable("namespace", f"label_values({OPERATOR}_slo_objective_ratio, fulcrum_namespace)"),
                _variable(
                    "cluster",
                    f'label_values({OPERATOR}_slo_objective_ratio{{fulcrum_namespace=~"$namespace"}}, fulcrum_cluster)',
                ),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "name": name,
        "type": "query",
        "query": query,
        "datasource": source,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend or "__auto"}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number + 1,
        "title": panel.title,
        "description": panel.about,
        "type": panel.kind,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
