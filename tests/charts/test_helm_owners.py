"""Helm 4 applies on the server: who has which field, and the flags that the charts' pages name for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.api.server.cluster import Kubectl, local_api_server
from tests.charts.release import BIN, CHARTS
from tests.machine import deadline_seconds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

VALUES: dict[str, Any] = {
    "model": {"name": "m"},
    "pools": [{"name": "p", "accelerator": "cpu", "workers": {"min": 4, "max": 4}}],
}
RATIO = {"balance": {"mode": "Manual", "ratio": {"prefill": 2, "decode": 2}}}
PATCH = '{"spec":{"balance":{"ratio":{"prefill":3,"decode":1}}}}'
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with local_api_server(tmp_path_factory.mktemp("cluster")) as file:
        yield file


@pytest.fixture(scope="module")
def kubectl(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    return Kubectl(kubeconfig=kubeconfig, cache=tmp_path_factory.mktemp("cache"), namespace="default")


@pytest.fixture(scope="module")
def helm(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    if not (BIN / "helm").exists():
        pytest.skip("helm is not installed")
    folder = tmp_path_factory.mktemp("helm")
    homes = {f"HELM_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}

    def run(*arguments: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [BIN / "helm", *arguments], env={**os.environ, **homes, "KUBECONFIG": str(kubeconfig)},
            capture_output=True, text=True, check=False, timeout=deadline_seconds(120),
        )  # fmt: skip
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done

    run("install", "fulcrum", str(CHARTS / "fulcrum"), "-n", "fulcrum-system", "--create-namespace")
    return run


def cluster(helm: Run, folder: Path, verb: str, name: str, *flags: str, fails: bool = False, **values: Any) -> str:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(VALUES | values))
    done = helm(verb, name, str(CHARTS / "fulcrum-cluster"), "-n", "default", "-f", str(file), *flags, fails=fails)
    return done.stdout + done.stderr


def test_what_was_patched_stays_where_the_values_do_not_name_it(helm: Run, kubectl: Kubectl, tmp_path: Path) -> None:
    cluster(helm, tmp_path, "install", "plain", balance={"mode": "Manual"})
    kubectl("patch", "ic", "plain", "--type", "merge", "-p", PATCH)
    cluster(helm, tmp_path, "upgrade", "plain", balance={"mode": "Manual"}, slo={"ttft": "3s"})
    spec = kubectl.get("ic", "plain")["spec"]
    assert spec["slo"]["ttft"] == "3s"
    assert spec["balance"]["ratio"] == {"prefill": 3, "decode": 1}


def test_a_value_that_was_patched_conflicts_and_is_taken_back_with_the_flag(
    helm: Run, kubectl: Kubectl, tmp_path: Path
) -> None:
    cluster(helm, tmp_path, "install", "named", **RATIO)
    kubectl("patch", "ic", "named", "--type", "merge", "-p", PATCH)
    said = cluster(helm, tmp_path, "upgrade", "named", fails=True, **RATIO)
    assert "conflict" in said
    assert ".spec.balance.ratio" in said
    cluster(helm, tmp_path, "upgrade", "named", "--force-conflicts", **RATIO)
    assert kubectl.get("ic", "named")["spec"]["balance"]["ratio"] == {"prefill": 2, "decode": 2}


def test_a_release_of_another_name_takes_the_kept_definitions_over_with_the_flag(helm: Run, kubectl: Kubectl) -> None:
    chart = (str(CHARTS / "fulcrum"), "-n", "fulcrum-system")
    helm("uninstall", "fulcrum", "-n", "fulcrum-system")
    assert "inferenceclusters" in kubectl("get", "crd", "-o", "name")
    said = helm("install", "other", *chart, fails=True).stderr
    assert "cannot be imported into the current release" in said
    helm("install", "other", *chart, "--take-ownership")
    labels = kubectl.get("crd", "inferenceclusters.fulcrum.dev")["metadata"]["annotations"]
    assert labels["meta.helm.sh/release-name"] == "other"
