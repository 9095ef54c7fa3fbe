"""Helm's charts with real engines: install, `helm test`, upgrades under load that lose nothing, uninstall."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from answers import questions_of
from lanes import state_folder
from local_cluster import BIN, QUICKSTART, Cluster
from tests.charts.release import OPERATOR_NAMESPACE, Release, left_over, local_release
from this_machine import TINY, suited

from load import SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def cluster_values(folder: Path) -> dict[str, Any]:
    """The quickstart example with the tiny model and one engine for each role, as values of the chart."""
    subprocess.run([BIN / "fulcrum", "model", TINY], check=True)
    spec: dict[str, Any] = yaml.safe_load(suited(QUICKSTART, folder, model=TINY).read_text())["spec"]
    spec["pools"][0]["workers"] = {"min": 2, "max": 2}
    spec["balance"]["ratio"] = {"prefill": 1, "decode": 1}
    spec["admission"] = {"policy": "Off"}
    return {**spec, "test": {"timeoutSeconds": 120}}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    folder = state_folder(tmp_path_factory, "helm", "home")
    with local_release(folder, cluster_values(folder)) as release:
        yield release


def test_a_release_from_install_to_nothing_left(release: Release) -> None:
    release.helm_operator("install")
    release.helm_cluster("install")
    release.wait_available(seconds=170)
    assert "Phase:          Succeeded" in release.run(
        "helm", "test", "chat", "-n", "default", "--timeout", release.kubernetes_duration(150)
    )

    cluster = Cluster(kubeconfig=release.kubeconfig, name="chat")
    prefill, decode = sorted(cluster.workers(), key=lambda worker: worker.role, reverse=True)
    assert (prefill.role, decode.role) == ("prefill", "decode")
    known = questions_of(cluster, of=decode)
    moved = cluster.kv_bytes_moved()
    with SteadyLoad(f"http://{release.address()}:8080", known, rate=2) as load:
        gateways = {pod["metadata"]["name"] for pod in cluster.pods("gateway")}
        release.helm_operator("upgrade", "operator.resources.requests.memory=260Mi")
        release.helm_cluster("upgrade", "slo.ttft=3s")

        def replaced() -> bool:
            now = {pod["metadata"]["name"] for pod in cluster.pods("gateway")}
            return len(now) == len(gateways) and not now & gateways

        release.until("new gateways", replaced)
        answered = len(load.answered)
        release.until("answers go on", lambda: load.has(answered + 10))
    assert all(each.right for each in load.answered), load.summary()
    after = cluster.workers()
    assert {worker.uid: worker.restarts for worker in after} == {prefill.uid: 0, decode.uid: 0}, cluster.described()
    assert cluster.kv_bytes_moved() > moved, cluster.described()

    release.run("helm", "uninstall", "chat", "-n", "default", "--wait", "--timeout", release.kubernetes_duration(60))
    release.run(
        "helm", "uninstall", "fulcrum", "-n", OPERATOR_NAMESPACE, "--wait", "--timeout", release.kubernetes_duration(60)
    )
    release.until("nothing is left", lambda: not left_over(release, "default") + left_over(release, OPERATOR_NAMESPACE))
