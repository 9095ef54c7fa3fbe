"""`kubectl apply` of manifests, overlays and samples against an API server that refuses unknown fields."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.foreign_kinds import foreign_crds
from tests.controller.cluster import ApiServer, running_api_server
from tests.machine import deadline_seconds

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
SAMPLES = sorted((MANIFESTS / "samples").glob("*.yaml"))
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the kinds of the projects that samples and overlays speak to."""
    folder = tmp_path_factory.mktemp("applied")
    with running_api_server(folder) as server:
        crds = folder / "crds.yaml"
        crds.write_text(yaml.safe_dump_all(foreign_crds()))
        server.kubectl("apply", "-f", str(crds))
        server.kubectl("apply", "-k", str(ROOT / "crds"))
        server.kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={deadline_seconds(60):.0f}s")
        yield server


def applied(server: ApiServer, *what: str) -> list[str]:
    """Apply twice: the second time nothing changes. Names of what is there."""
    first = server.kubectl("apply", *what, check=False)
    assert first.returncode == 0, first.stderr
    assert "Warning" not in first.stderr, first.stderr
    before = versions(server, *what)
    server.kubectl("apply", *what)
    assert versions(server, *what) == before
    return [line.rsplit(" ", 1)[0] for line in first.stdout.splitlines()]


def versions(server: ApiServer, *what: str) -> list[str]:
    """Resource versions of what was applied: kubectl says "configured" also of a patch that changes nothing."""
    found = json.loads(server.kubectl("get", *what, "-o", "json").stdout)
    return [each["metadata"]["resourceVersion"] for each in found.get("items", [found])]


def test_the_base_installs_and_goes(server: ApiServer) -> None:
    names = applied(server, "-k", str(MANIFESTS))
    assert "deployment.apps/fulcrum-operator" in names
    allowed = server.kubectl(
        "auth", "can-i", "create", "pods", "--as=system:serviceaccount:fulcrum-system:fulcrum-operator", "-n", "default"
    )
    assert allowed.stdout.strip() == "yes"
    # Those who may view a namespace may view its InferenceClusters, and no more.
    server.kubectl("create", "rolebinding", "viewer", "--clusterrole=view", "--user=eve", "-n", "default")
    asked = ("auth", "can-i", "--as=eve", "-n", "default")
    answers = [
        server.kubectl(*asked, verb, "inferenceclusters.fulcrum.dev", check=False) for verb in ("list", "create")
    ]
    assert [answer.stdout.strip() for answer in answers] == ["yes", "no"]
    server.kubectl("delete", "-k", str(MANIFESTS / "rbac"), "--wait=false")


def test_the_namespaced_overlay_needs_nothing_but_its_namespace(server: ApiServer) -> None:
    for namespace in ("inference", "fulcrum-system"):
        server.kubectl("create", "namespace", namespace, check=False)
    names = applied(server, "-k", str(MANIFESTS / "overlays/namespaced"))
    assert {name.partition("/")[0].partition(".")[0] for name in names} == {
        "deployment", "lease", "networkpolicy", "role", "rolebinding", "serviceaccount",
    }  # fmt: skip

    def may(account: str, namespace: str) -> str:
        subject = f"--as=system:serviceaccount:{account}:fulcrum-operator"
        return server.kubectl("auth", "can-i", "create", "pods", subject, "-n", namespace, check=False).stdout.strip()

    assert may("fulcrum-system", "inference") == "yes"
    assert may("fulcrum-system", "default") == "no"
    assert may("inference", "inference") == "no", "who makes Pods there does not become the operator"


def test_the_monitoring_overlay(server: ApiServer) -> None:
    names = applied(server, "-k", str(MANIFESTS / "overlays/monitoring"))
    kinds = [name.partition("/")[0] for name in names]
    assert kinds.count("podmonitor.monitoring.coreos.com") == 3
    assert kinds.count("configmap") == 4
    assert "prometheusrule.monitoring.coreos.com/fulcrum" in names


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_is_taken(server: ApiServer, sample: Path) -> None:
    namespace = f"sample-{sample.stem.replace('_', '-')}"
    server.kubectl("create", "namespace", namespace)
    assert applied(server, "-n", namespace, "-f", str(sample))
    for document in yaml.safe_load_all(sample.read_text()):
        if document["kind"] == "InferenceCluster":
            stored = server.kubectl("get", "ic", document["metadata"]["name"], "-n", namespace, "-o", "yaml")
            assert _within(document["spec"], yaml.safe_load(stored.stdout)["spec"])


def test_an_unknown_field_would_be_refused(server: ApiServer, tmp_path: Path) -> None:
    """So that the tests above can fail."""
    for document in _documents():
        wrong = tmp_path / "wrong.yaml"
        document["spec"]["colour"] = "blue"
        wrong.write_text(yaml.safe_dump(document))
        done: subprocess.CompletedProcess[str] = server.kubectl("apply", "-f", str(wrong), check=False)
        assert done.returncode != 0
        assert 'unknown field "spec.colour"' in done.stderr


def _documents() -> Iterator[Any]:
    for path in (
        *SAMPLES,
        MANIFESTS / "overlays/monitoring/monitors.yaml",
        MANIFESTS / "overlays/monitoring/rules.yaml",
    ):
        for document in yaml.safe_load_all(path.read_text()):
            if "spec" in document:
                document["metadata"].pop("namespace", None)
                yield document


def _within(asked: Any, stored: Any) -> bool:
    """Whether what was asked for is in what is stored, which has defaults beside it."""
    if isinstance(asked, dict):
        return all(name in stored and _within(value, stored[name]) for name, value in asked.items())
    if isinstance(asked, list):
        return len(asked) == len(stored) and all(map(_within, asked, stored))
    return bool(asked == stored)
