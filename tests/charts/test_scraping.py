"""What is rendered fits together: monitors select Pods, name ports that these have, and policies let Prometheus in."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.machine import deadline_seconds

from fulcrum.api.front_types import InferenceGatewaySpec
from fulcrum.api.names import LABEL_CLUSTER, LABEL_COMPONENT, LABEL_FRONT, Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.children import Owner, children, worker_pod
from fulcrum.controller.children.front import front_children
from fulcrum.controller.children.worker_group import worker_group
from fulcrum.controller.installation import Installation

ROOT = Path(__file__).resolve().parents[2]
OWNER = Owner(name="chat", namespace="ml", uid="u")
ON = (
    *(f"metrics.{part}.enabled=true" for part in ("serviceMonitor", "podMonitor")),
    "networkPolicy.enabled=true",
)
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
Json = dict[str, Any]


def pods() -> dict[str, Json]:
    """Metadata and spec of each Pod that is to be scraped, by what it is."""
    pools = [{"name": "p", "accelerator": "H100-SXM-80GB", "workers": {"max": 2}}]
    spec = msgspec.convert({"model": {"name": "m"}, "pools": pools}, InferenceClusterSpec)
    pod = worker_pod(OWNER, spec, spec.pools[0], ordinal=0, role=Role.MIXED, image="i", token_fingerprint="f")
    deployment = next(each for each in made() if each["kind"] == "Deployment")
    leader = worker_group(pod, spec.pools[0])["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    return {"worker": pod, "leader": leader, "gateway": deployment["spec"]["template"], "front": front_pod()}


def front_pod() -> Json:
    return next(each["spec"]["template"] for each in made_of_front() if each["kind"] == "Deployment")


def made_of_front() -> list[Json]:
    models = [{"name": "m", "backends": [{"cluster": "chat"}]}]
    owner = Owner(name="front", namespace="ml", uid="u", kind="InferenceGateway")
    spec = msgspec.convert({"models": models}, InferenceGatewaySpec)
    return list(front_children(owner, spec, Installation(), live_replicas=None))


def policies_made() -> list[Json]:
    return of_kind([*made(), *made_of_front()], "NetworkPolicy")


def made() -> list[Json]:
    pools = [{"name": "p", "accelerator": "H100-SXM-80GB", "workers": {"max": 2}}]
    spec = msgspec.convert({"model": {"name": "m"}, "pools": pools}, InferenceClusterSpec)
    return list(children(OWNER, spec, Installation(), token_fingerprint="f"))


def selects(selector: Json, labels: dict[str, str]) -> bool:
    """Whether a label selector of Kubernetes selects."""
    kinds: dict[str, Callable[[str, list[str]], bool]] = {
        "Exists": lambda key, _: key in labels,
        "DoesNotExist": lambda key, _: key not in labels,
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
    }
    return (selector.get("matchLabels") or {}).items() <= labels.items() and all(
        kinds[each["operator"]](each["key"], each.get("values") or [])
        for each in selector.get("matchExpressions") or ()
    )


def is_open(policies: list[Json], pod: Json, port: int) -> bool:
    """Whether Prometheus, in another namespace, may connect to a port of a Pod."""
    about = [each["spec"] for each in policies if selects(each["spec"]["podSelector"], pod["metadata"]["labels"])]
    return not about or any(
        any(entry["port"] == port for entry in rule.get("ports") or [{"port": port}])
        and any(
            selects(peer.get("podSelector") or {}, PROMETHEUS) and "namespaceSelector" in peer
            for peer in rule.get("from") or [{"podSelector": {}, "namespaceSelector": {}}]
        )
        for policy in about
        for rule in policy["ingress"]
    )


def ports_of(pod: Json) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"] for each in pod["spec"]["containers"] for port in each.get("ports") or ()
    }


def problems(monitors: list[Json], found: dict[str, Json], policies: list[Json]) -> Iterator[str]:
    """Yield what keeps a Pod from being scraped."""
    for what, pod in found.items():
        selecting = [each for each in monitors if selects(each["spec"]["selector"], pod["metadata"]["labels"])]
        if not selecting:
            yield f"no monitor selects a {what}"
        for monitor in selecting:
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                port = ports_of(pod).get(endpoint["port"])
                if port is None:
                    yield f"a {what} has no port {endpoint['port']}"
                elif not is_open(policies, pod, port):
                    yield f"no policy lets Prometheus reach port {port} of a {what}"
    for monitor in monitors:
        if not any(selects(monitor["spec"]["selector"], pod["metadata"]["labels"]) for pod in found.values()):
            yield f"{monitor['metadata']['name']} selects nothing"


def of_kind(documents: list[Json], kind: str) -> list[Json]:
    return [each for each in documents if each["kind"] == kind]


@pytest.fixture(scope="module", params=["chart", "overlay"])
def rendered(request: pytest.FixtureRequest) -> list[Json]:
    """Everything that the chart, or the overlay, makes with monitoring on."""
    if request.param == "chart":
        return list(request.getfixturevalue("render")("fulcrum", *ON).values())
    kubectl = Path(sys.executable).with_name("kubectl")
    command = [kubectl, "kustomize", str(ROOT / "manifests" / "overlays" / "monitoring")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_seconds(60), check=True)
    return list(yaml.safe_load_all(done.stdout))


def test_every_pod_is_scraped(rendered: list[Json]) -> None:
    monitors = of_kind(rendered, "PodMonitor")
    assert len(monitors) == 3
    assert list(problems(monitors, pods(), policies_made())) == []


def test_the_operator_is_scraped(rendered: list[Json]) -> None:
    (monitor,), (deployment,) = of_kind(rendered, "ServiceMonitor"), of_kind(rendered, "Deployment")
    pod = deployment["spec"]["template"]
    (service,) = [
        each
        for each in of_kind(rendered, "Service")
        if selects(monitor["spec"]["selector"], each["metadata"]["labels"])
    ]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    (port,) = [each for each in service["spec"]["ports"] if each["name"] == endpoint["port"]]
    assert port["targetPort"] in ports_of(pod)
    policies = of_kind(rendered, "NetworkPolicy")
    assert policies
    numbered = {port["targetPort"], ports_of(pod)[port["targetPort"]]}
    assert any(is_open(policies, pod, number) for number in numbered)


def test_what_is_taken_away_is_noticed(rendered: list[Json]) -> None:
    monitors, policies = of_kind(rendered, "PodMonitor"), policies_made()
    for what, pod in pods().items():
        owner = LABEL_FRONT if what == "front" else LABEL_CLUSTER
        for label in (owner, LABEL_COMPONENT):
            changed = copy.deepcopy(pod)
            del changed["metadata"]["labels"][label]
            assert list(problems(monitors, {what: changed}, policies)), (what, label)
        for endpoint in {e["port"] for m in monitors for e in m["spec"]["podMetricsEndpoints"]} & ports_of(pod).keys():
            changed = copy.deepcopy(pod)
            for container in changed["spec"]["containers"]:
                container["ports"] = [each for each in container.get("ports") or () if each["name"] != endpoint]
            assert list(problems(monitors, {what: changed}, policies)), (what, endpoint)
    for policy in policies:
        for number in range(len(policy["spec"]["ingress"])):
            closed = copy.deepcopy(policies)
            target = next(each for each in closed if each["metadata"]["name"] == policy["metadata"]["name"])
            rule = target["spec"]["ingress"].pop(number)
            is_for_prometheus = any(
                peer.get("podSelector", {}).get("matchLabels") == PROMETHEUS for peer in rule.get("from", ())
            )
            assert bool(list(problems(monitors, pods(), closed))) == is_for_prometheus
