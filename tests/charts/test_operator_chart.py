"""`charts/fulcrum`: what it renders over its values, and what it refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/fulcrum"
CRD = ("CustomResourceDefinition", "inferenceclusters.fulcrum.dev")
SCALE_CRD = ("CustomResourceDefinition", "inferencescales.fulcrum.dev")
OPERATOR = ("Deployment", "release-operator")

Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., dict[tuple[str, str], dict[str, Any]]]


def test_lint_finds_nothing(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_it_installs_what_the_manifests_install(render: Render) -> None:
    """The same CRDs and the same rights as `kubectl apply -k manifests/`."""
    objects = render("fulcrum")
    for key in (CRD, SCALE_CRD):
        crd = yaml.safe_load((ROOT / f"crds/fulcrum.dev_{key[1].partition('.')[0]}.yaml").read_text())
        assert objects[key]["spec"] == crd["spec"]
        assert objects[key]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for name in ("edit", "view"):
        user_roles = yaml.safe_load_all((ROOT / "manifests/rbac/user_roles.yaml").read_text())
        by_hand = next(role for role in user_roles if role["metadata"]["name"] == f"fulcrum-{name}")
        assert objects["ClusterRole", f"release-{name}"]["rules"] == by_hand["rules"]
    roles = {
        document["kind"]: document
        for document in yaml.safe_load_all((ROOT / "manifests/rbac/operator_role.yaml").read_text())
    }
    assert objects["ClusterRole", "release-operator"]["rules"] == roles["ClusterRole"]["rules"]
    by_hand = yaml.safe_load((ROOT / "manifests/operator/deployment.yaml").read_text())["spec"]["template"]["spec"]
    (charted,) = objects[OPERATOR]["spec"]["template"]["spec"]["containers"]
    (plain,) = by_hand["containers"]
    for field in ("image", "command", "env", "ports", "livenessProbe", "resources", "securityContext"):
        assert charted[field] == plain[field], field


def test_few_namespaces_take_no_cluster_role_for_the_operator(render: Render) -> None:
    objects = render("fulcrum", "watchNamespaces={team-a,team-b}")
    assert ("ClusterRole", "release-operator") not in objects
    roles = {name for kind, name in objects if kind == "Role"}
    assert roles == {"release-operator", "release-operator-clusters"}
    (container,) = objects[OPERATOR]["spec"]["template"]["spec"]["containers"]
    assert {"--namespace=team-a", "--namespace=team-b"} <= set(container["args"])


@pytest.mark.parametrize(
    ("settings", "there", "absent"),
    [
        (("crds.install=false",), (OPERATOR,), (CRD, SCALE_CRD)),
        (("rbac.create=false",), (OPERATOR,), (("ClusterRole", "release-operator"), ("Role", "release-operator"))),
        (
            ("serviceAccount.create=false", "serviceAccount.name=mine"),
            (OPERATOR,),
            (("ServiceAccount", "release-operator"),),
        ),
        (
            ("operator.replicas=2", "podDisruptionBudget.enabled=true"),
            (("PodDisruptionBudget", "release-operator"),),
            (),
        ),
        (("networkPolicy.enabled=true",), (("NetworkPolicy", "release-operator"),), ()),
        (("fullnameOverride=own",), (("Deployment", "own-operator"),), (OPERATOR,)),
    ],
)
def test_values_say_what_is_made(
    render: Render, settings: tuple[str, ...], there: tuple[tuple[str, str], ...], absent: tuple[tuple[str, str], ...]
) -> None:
    objects = render("fulcrum", *settings)
    assert set(there) <= set(objects)
    assert not set(absent) & set(objects)


def test_a_crd_that_is_not_kept_goes_with_the_release(render: Render) -> None:
    metadata = render("fulcrum", "crds.keep=false")[CRD]["metadata"]
    assert "helm.sh/resource-policy" not in (metadata.get("annotations") or {})


def test_a_digest_wins_over_the_tag(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    objects = render("fulcrum", "image.tag=1.2", f"image.digest={digest}")
    (container,) = objects[OPERATOR]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"ghcr.io/fulcrum/fulcrum@{digest}"


def test_the_dashboard_is_off_and_brings_its_service_and_its_right(render: Render) -> None:
    reads_events = {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]}
    for settings, roles in (
        ((), [("ClusterRole", "release-operator")]),
        (("watchNamespaces={team-a}",), [("Role", "release-operator-clusters")]),
    ):
        off, on = render("fulcrum", *settings), render("fulcrum", "dashboard.enabled=true", *settings)
        for objects, is_on in ((off, False), (on, True)):
            (container,) = objects[OPERATOR]["spec"]["template"]["spec"]["containers"]
            assert ("--dashboard" in container["args"]) == is_on
            assert (("Service", "release-operator-dashboard") in objects) == is_on
            for role in roles:
                assert (reads_events in objects[role]["rules"]) == is_on
    service = on["Service", "release-operator-dashboard"]["spec"]
    assert service["selector"] == on[OPERATOR]["spec"]["selector"]["matchLabels"]
    assert service["ports"] == [{"name": "http", "port": 8081, "targetPort": "health"}]
    assert service.get("type", "ClusterIP") == "ClusterIP"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("operator.replicas=0", "/operator/replicas"),
        ("nonsense=1", "additional properties 'nonsense' not allowed"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("image.digest=sha256:short", "/image/digest"),
        ("watchNamespaces={Team_A}", "/watchNamespaces/0"),
        ("podDisruptionBudget.enabled=true", "set operator.replicas to 2 or more"),
        ("serviceAccount.create=false", "serviceAccount.name: name the account to use"),
    ],
)
def test_wrong_values_are_refused_with_a_message(helm: Helm, setting: str, message: str) -> None:
    done = helm("template", "release", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert message in done.stderr
