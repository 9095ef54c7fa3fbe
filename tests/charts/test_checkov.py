"""checkov on what we ship and on what the operator makes: docs/operations/security.md says why a failed check stays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.conftest import CHARTS
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.controller.children import Owner, children, worker_pod
from fulcrum.controller.installation import Installation

ROOT = CHARTS.parent
CHECKOV = Path(sys.executable).parents[1] / "checkov/bin/checkov"
SECURITY = ROOT / "docs/operations/security.md"
pytestmark = pytest.mark.skipif(not CHECKOV.exists(), reason="checkov is not installed: make scan")

CLUSTER = (
    "gatewayAutoscaling.enabled=true",
    "model.name=m",
    "pools[0].name=p",
    "pools[0].accelerator=H100-SXM-80GB",
    "pools[0].workers.max=2",
)
OPERATOR = (
    "operator.replicas=2", "podDisruptionBudget.enabled=true", "networkPolicy.enabled=true",
    "metrics.serviceMonitor.enabled=true",
)  # fmt: skip


def render(*command: str | Path) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name(str(command[0])), *command[1:]],
        capture_output=True, text=True, check=True, timeout=deadline_seconds(120),
    )  # fmt: skip
    return done.stdout


def settings(values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def made_by_the_operator() -> str:
    """Children and a worker of a sample, in a namespace."""
    cluster = load_inference_cluster(yaml.safe_load((ROOT / "manifests/samples/h100_pair.yaml").read_text()))
    owner = Owner(name="chat", namespace="ml", uid="u")
    objects = list(children(owner, cluster.spec, Installation(), token_fingerprint="f"))
    image = Installation().worker_image
    objects.append(worker_pod(owner, cluster.spec, cluster.spec.pools[0], ordinal=0, role=Role.MIXED, image=image))
    return yaml.safe_dump_all([{**each, "metadata": {**each["metadata"], "namespace": "ml"}} for each in objects])


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """(check, what it is about) -> checkov's words."""
    folder = tmp_path_factory.mktemp("scanned")
    chart, cluster = str(CHARTS / "fulcrum"), str(CHARTS / "fulcrum-cluster")
    texts = {
        "operator.yaml": render("helm", "template", "fulcrum", chart, "-n", "fulcrum-system", *settings(OPERATOR)),
        "cluster.yaml": render("helm", "template", "chat", cluster, "-n", "ml", *settings(CLUSTER)),
        "manifests.yaml": render("kubectl", "kustomize", ROOT / "manifests"),
        "made.yaml": made_by_the_operator(),
        "Dockerfile": (ROOT / "Dockerfile").read_text(),
        "worker/Dockerfile": (ROOT / "worker_image/Dockerfile").read_text(),
        "rocm/Dockerfile": (ROOT / "worker_image/Dockerfile.rocm").read_text(),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    done = subprocess.run(
        [CHECKOV, "-d", folder, "--framework", "kubernetes", "dockerfile", "-o", "json", "--skip-download"],
        capture_output=True, text=True, check=False, timeout=deadline_seconds(300),
        env={**os.environ, "LOG_LEVEL": "ERROR"},
    )  # fmt: skip
    reports: list[dict[str, Any]] = json.loads(done.stdout)
    assert {report["check_type"] for report in reports} == {"kubernetes", "dockerfile"}
    assert sum(report["summary"]["passed"] for report in reports) > 300
    assert all(report["summary"]["parsing_errors"] == 0 for report in reports)
    return {
        (check["check_id"], _subject(check["resource"])): check["check_name"]
        for report in reports
        for check in report["results"]["failed_checks"]
    }


def _subject(resource: str) -> str:
    """`Deployment.ml.chat-gateway` -> `gateway`: who reads the table knows parts, not names."""
    if resource.startswith("/"):
        return "images"
    parts = {"fulcrum-operator": "operator", "chat-gateway": "gateway", "chat-h100-0": "worker", "chat-test": "test"}
    return parts.get(resource.rpartition(".")[2], resource)


def accepted() -> dict[tuple[str, str], str]:
    """(check, part) -> reason, from the table in the docs."""
    found = {}
    for line in SECURITY.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for check in re.findall(r"`(CKV2?_\w+)`", cells[0]) if line.startswith("| `CKV") else ():
            found |= {(check, part.strip()): cells[2] for part in cells[1].split(",")}
    return found


def test_what_fails_has_a_reason_and_nothing_else_has(failed: dict[tuple[str, str], str]) -> None:
    told = accepted()
    assert {key: name for key, name in failed.items() if key not in told} == {}
    assert set(told) - set(failed) == set()
    assert all(len(reason) > 20 for reason in told.values())
