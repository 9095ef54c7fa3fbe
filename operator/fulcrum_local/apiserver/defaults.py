"""Defaults of built-in kinds: what a real server fills in before it stores an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fulcrum_local.apiserver.errors import Json

Defaulter = Callable[[Json], None]


def default_builtin(storage: str, obj: Json) -> None:
    """Fill in `obj` (of a built-in kind) in place."""
    defaulter = _DEFAULTERS.get(storage)
    if defaulter is not None:
        defaulter(obj)


def _fill(obj: Json, **defaults: Any) -> None:
    for name, default in defaults.items():
        if obj.get(name) is None:
            obj[name] = default


def pod_spec(spec: Json) -> None:
    """Defaults of a Pod's spec, also inside templates."""
    _fill(
        spec,
        restartPolicy="Always",
        terminationGracePeriodSeconds=30,
        dnsPolicy="ClusterFirst",
        securityContext={},
        schedulerName="default-scheduler",
    )
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        _container(container)
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _container(container: Json) -> None:
    image = container.get("image", "")
    latest = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
    _fill(
        container,
        resources={},
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy="Always" if latest and "@" not in image else "IfNotPresent",
    )
    for port in container.get("ports") or ():
        _fill(port, protocol="TCP")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name):
            _probe(container[name])
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict) and hook.get("httpGet"):
            _fill(hook["httpGet"], scheme="HTTP", path="/")
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference:
            _fill(reference, apiVersion="v1")
    requests = container["resources"].get("limits")
    if requests:
        container["resources"]["requests"] = {**requests, **(container["resources"].get("requests") or {})}


def _probe(probe: Json) -> None:
    _fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    if probe.get("httpGet"):
        _fill(probe["httpGet"], scheme="HTTP", path="/")
    if probe.get("grpc"):
        _fill(probe["grpc"], service="")


def _volume(volume: Json) -> None:
    if not any(name != "name" for name in volume):
        volume["emptyDir"] = {}
    for name in ("configMap", "secret", "downwardAPI", "projected"):
        if volume.get(name) is not None:
            _fill(volume[name], defaultMode=0o644)
    if volume.get("hostPath") is not None:
        _fill(volume["hostPath"], type="")


def _pod(pod: Json) -> None:
    spec = pod.setdefault("spec", {})
    pod_spec(spec)
    _fill(spec, enableServiceLinks=True, preemptionPolicy="PreemptLowerPriority", priority=0)


def _template(obj: Json) -> None:
    template = obj["spec"].get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        pod_spec(template.setdefault("spec", {}))


def _deployment(deployment: Json) -> None:
    spec = deployment.setdefault("spec", {})
    _fill(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = spec.setdefault("strategy", {})
    _fill(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _fill(strategy, rollingUpdate={})
        _fill(strategy["rollingUpdate"], maxSurge="25%", maxUnavailable="25%")
    _template(deployment)


def _replica_set(replica_set: Json) -> None:
    spec = replica_set.setdefault("spec", {})
    _fill(spec, replicas=1)
    template_labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if template_labels and not spec.get("selector"):
        spec["selector"] = {"matchLabels": dict(template_labels)}
    _template(replica_set)


def _service(service: Json) -> None:
    spec = service.setdefault("spec", {})
    _fill(spec, type="ClusterIP", sessionAffinity="None")
    if spec["type"] != "ExternalName":
        _fill(spec, ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack", internalTrafficPolicy="Cluster")
    for port in spec.get("ports") or ():
        _fill(port, protocol="TCP")
        if port.get("targetPort") in (None, 0, "") and spec.get("clusterIP") != "None":
            port["targetPort"] = port.get("port")


def _secret(secret: Json) -> None:
    import base64

    _fill(secret, type="Opaque")
    for key, text in (secret.pop("stringData", None) or {}).items():
        secret.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _claim(claim: Json) -> None:
    _fill(claim.setdefault("spec", {}), volumeMode="Filesystem")


def _binding(binding: Json) -> None:
    reference = binding.get("roleRef")
    if isinstance(reference, dict):
        _fill(reference, apiGroup="rbac.authorization.k8s.io")
    for subject in binding.get("subjects") or ():
        if subject.get("kind") != "ServiceAccount":
            _fill(subject, apiGroup="rbac.authorization.k8s.io")


def _role(role: Json) -> None:
    role.setdefault("rules", [])


def _namespace(namespace: Json) -> None:
    namespace.setdefault("metadata", {}).setdefault("labels", {})["kubernetes.io/metadata.name"] = namespace[
        "metadata"
    ].get("name", "")
    _fill(namespace.setdefault("spec", {}), finalizers=["kubernetes"])
    _fill(namespace.setdefault("status", {}), phase="Active")


def _definition(crd: Json) -> None:
    spec = crd.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if isinstance(names.get("kind"), str):
        _fill(names, singular=names["kind"].lower(), listKind=f"{names['kind']}List")
    _fill(spec, conversion={"strategy": "None"})


def _event(event: Json) -> None:
    _fill(event, type="Normal") if "type" not in event else None
    _fill(event, reportingComponent="", reportingInstance="")


def _node(node: Json) -> None:
    node.setdefault("spec", {})


_DEFAULTERS: Final[dict[str, Defaulter]] = {
    "pods": _pod,
    "deployments.apps": _deployment,
    "replicasets.apps": _replica_set,
    "services": _service,
    "secrets": _secret,
    "persistentvolumeclaims": _claim,
    "rolebindings.rbac.authorization.k8s.io": _binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _binding,
    "roles.rbac.authorization.k8s.io": _role,
    "namespaces": _namespace,
    "nodes": _node,
    "events": _event,
    "customresourcedefinitions.apiextensions.k8s.io": _definition,
}
