"""A real Prometheus finds gateways and workers through the rendered monitors' own selectors, and the load in it."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.charts.release import Release, local_release
from tests.charts.test_release import CLUSTER, Load
from tests.machine import deadline_seconds
from tests.prometheus_server import PrometheusServer, prometheus_server

from fulcrum.load.traffic import Traffic
from fulcrum.telemetry import ClusterRef, PrometheusSource
from fulcrum.telemetry.prometheus_calls import PrometheusCalls

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
Json = dict[str, Any]


def jobs(monitors: list[Json], targets: Path) -> list[Json]:
    """The scrape configurations that the Prometheus operator makes of PodMonitors; Pods come out of a file.

    Debian's Prometheus is built without discovery by Kubernetes: `discover` writes what that would find.
    """
    return [
        {
            "job_name": f"{monitor['metadata']['name']}/{number}",
            "metrics_path": endpoint["path"],
            "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
            "relabel_configs": [*selecting(monitor["spec"]["selector"]), *reaching(endpoint["port"])],
        }
        for monitor in monitors
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]


def discover(release: Release, targets: Path) -> None:
    """Write every port of every Pod with the labels that Prometheus' discovery by Kubernetes gives it."""
    found = []
    for pod in release.read("pods", "-A")["items"]:
        labels = {"__meta_kubernetes_pod_name": pod["metadata"]["name"]}
        for key, value in (pod["metadata"].get("labels") or {}).items():
            labels |= {label(key): value, label(key, present=True): "true"}
        for port in (port for each in pod["spec"]["containers"] for port in each.get("ports") or ()):
            number = str(port["containerPort"])
            named = {
                "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
                "__meta_kubernetes_pod_container_port_number": number,
            }
            if address := pod["status"].get("podIP"):
                found.append({"targets": [f"{address}:{number}"], "labels": labels | named})
    draft = targets.with_suffix(".new")
    draft.write_text(json.dumps(found))
    draft.rename(targets)


def selecting(selector: Json) -> list[Json]:
    keep = [
        {"source_labels": [label(key)], "regex": value, "action": "keep"}
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for each in selector.get("matchExpressions") or ():
        assert each["operator"] == "Exists", each
        keep.append({"source_labels": [label(each["key"], present=True)], "regex": "true", "action": "keep"})
    return keep


def label(key: str, *, present: bool = False) -> str:
    plain = "".join(letter if letter.isalnum() else "_" for letter in key)
    return f"__meta_kubernetes_pod_label{'present' if present else ''}_{plain}"


def reaching(port: str) -> list[Json]:
    return [
        {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": port, "action": "keep"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"source_labels": ["__meta_kubernetes_pod_container_port_number"], "target_label": "port"},
    ]


def asked(server: PrometheusServer, query: str) -> list[Json]:
    url = f"{server.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=deadline_seconds(30)) as answer:
        found: list[Json] = json.load(answer)["data"]["result"]
    return found


def up(server: PrometheusServer) -> set[tuple[str, str]]:
    """Pods and ports that are up."""
    return {(row["metric"]["pod"], row["metric"]["port"]) for row in asked(server, "up == 1")}


def expected(release: Release) -> set[tuple[str, str]]:
    ports = {"gateway": ("8082",), "worker": ("8000", "8001")}
    return {
        (pod["metadata"]["name"], port)
        for pod in release.read("pods", "-n", "default", "-l", "fulcrum.dev/cluster=chat")["items"]
        for port in ports[pod["metadata"]["labels"]["app.kubernetes.io/component"]]
    }


async def seen(wanted: Callable[[], bool]) -> None:
    async with asyncio.timeout(deadline_seconds(120)):
        while not await asyncio.to_thread(wanted):  # noqa: ASYNC110 - polls what has no event
            await asyncio.sleep(0.2)


async def load_of(source: PrometheusSource) -> Traffic:
    """The load, once Prometheus knows it."""
    cluster = ClusterRef(namespace="default", name="chat", gateways=1)
    async with asyncio.timeout(deadline_seconds(120)):
        while True:
            traffic = await source.traffic(cluster, window_seconds=10, now=time.time())
            if isinstance(traffic, Traffic) and traffic.rate > 0:
                return traffic
            await asyncio.sleep(0.5)


async def test_every_gateway_and_worker_is_found_through_the_monitors_and_gives_the_load(
    tmp_path: Path, render: Callable[..., dict[tuple[str, str], Json]]
) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    rendered = render("fulcrum", "metrics.podMonitor.enabled=true").values()
    with local_release(folder, CLUSTER) as release:
        await asyncio.to_thread(release.helm_operator, "install")
        await asyncio.to_thread(release.helm_cluster, "install")
        await asyncio.to_thread(release.wait_available)
        targets = tmp_path / "pods.json"
        found = jobs([each for each in rendered if each["kind"] == "PodMonitor"], targets)
        discover(release, targets)
        async with prometheus_server(tmp_path, jobs=found) as server, PrometheusCalls() as calls:
            await seen(lambda: up(server) == expected(release) != set())
            with Load(release.address()):
                traffic = await load_of(PrometheusSource(server.url, calls=calls))
            assert traffic.rate > 0
            # Without the label that its monitor selects by, a worker is found no more, and the others are.
            before = up(server)
            name = next(name for name, port in before if port == "8001")
            release.kubectl("label", "pod", name, "-n", "default", "app.kubernetes.io/component-")
            discover(release, targets)
            gone = {(name, port) for port in ("8000", "8001")}
            await seen(lambda: before - gone <= up(server) and not gone & up(server))
