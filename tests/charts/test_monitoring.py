"""Alerts, monitors and dashboards of the chart."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.machine import deadline_seconds

HERE = Path(__file__).resolve().parent
CHART = HERE.parents[1] / "charts/fulcrum"
RULES = CHART / "files/rules.yaml"
ON = tuple(f"metrics.{part}.enabled=true" for part in ("serviceMonitor", "podMonitor", "rules", "dashboards"))

Render = Callable[..., dict[tuple[str, str], dict[str, Any]]]


@pytest.fixture(scope="module")
def promtool() -> Callable[..., subprocess.CompletedProcess[str]]:
    beside = Path(sys.executable).with_name("promtool")
    found = str(beside) if beside.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (requirements/promtool.sh says how it comes)")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [found, *arguments], capture_output=True, text=True, timeout=deadline_seconds(60), check=False
        )

    return run


def test_promtool_accepts_the_rules_and_their_tests(promtool: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    checked = promtool("check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", str(HERE / "alerts.yaml"))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_fires_in_a_test_and_says_what_to_do() -> None:
    rules = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule
    ]
    fired = {
        expected["alertname"]
        for test in yaml.safe_load((HERE / "alerts.yaml").read_text())["tests"]
        for expected in test["alert_rule_test"]
        if expected["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules}
    for rule in rules:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_the_chart_wraps_the_very_rules(render: Render) -> None:
    objects = render("fulcrum", *ON)
    assert objects["PrometheusRule", "release"]["spec"] == yaml.safe_load(RULES.read_text())


def test_monitors_find_operator_gateways_and_workers(render: Render) -> None:
    objects = render("fulcrum", *ON)
    service = objects["Service", "release-operator-metrics"]
    monitor = objects["ServiceMonitor", "release-operator"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert {name for kind, name in objects if kind == "PodMonitor"} == {
        "release-fronts",
        "release-gateways",
        "release-workers",
    }


def test_dashboards_are_json_that_grafana_finds_by_label(render: Render) -> None:
    objects = render("fulcrum", *ON, "metrics.dashboards.label=found_by")
    boards = {name: each for (kind, name), each in objects.items() if kind == "ConfigMap"}
    assert set(boards) == {f"release-dashboard-{name}" for name in ("fleet", "cluster", "requests", "decisions")}
    for each in boards.values():
        assert each["metadata"]["labels"]["found_by"] == "1"
        (text,) = each["data"].values()
        board = json.loads(text)
        assert board["panels"]
        assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])


AGGREGATED = re.compile(r"\b(sum|count|avg) ?(?:by \(([^)]*)\))? ?\(\s*(?:(?:rate|increase) ?\(\s*)?fulcrum_\w+")
"""An aggregation over series as they are scraped, and its labels."""


def published_queries() -> dict[str, str]:
    """Queries of rules, dashboards and samples, and of the documentation of autoscaling, by where they are."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    found = {f"rule {rule.get('alert') or rule['record']}": rule["expr"] for rule in rules}
    for path in (CHART / "files/dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            found |= {f"{path.stem}: {panel['title']} {each['refId']}": each["expr"] for each in panel["targets"]}
    root = HERE.parents[1]
    for path in (*(root / "manifests/samples").glob("*.yaml"), root / "docs/operations/autoscaling.md"):
        for number, line in enumerate(path.read_text().splitlines()):
            if "fulcrum_gateway_" in line:
                found[f"{path.name}:{number + 1}"] = line
    return found


def test_what_two_scrape_jobs_see_counts_once() -> None:
    """Series of one target are summed before anything else is."""
    queries = published_queries()
    assert sum(bool(AGGREGATED.search(query)) for query in queries.values()) > 15
    doubled = {
        where: found[0]
        for where, query in queries.items()
        for found in AGGREGATED.finditer(query)
        if not {"job", "instance"} <= {label.strip() for label in (found[2] or "").split(",")}
    }
    assert doubled == {}
