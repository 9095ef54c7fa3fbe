"""Columns of the built-in kinds, as `kubectl get` shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.times import age


@dataclass(frozen=True, slots=True)
class Column:
    """One column; priority 1 shows with `-o wide` only."""

    name: str
    cell: Callable[[Json], Any]
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""


_AGE: Final = Column("Age", lambda obj: age(obj["metadata"].get("creationTimestamp")))


def _labels_text(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"


def selector_text(selector: Json | None) -> str:
    """A LabelSelector as kubectl prints it."""
    if not selector:
        return "<none>"
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for expression in selector.get("matchExpressions") or ():
        key, values = expression["key"], ",".join(sorted(expression.get("values") or ()))
        texts = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        parts.append(texts.get(expression["operator"], f"!{key}"))
    return ",".join(parts) or "<none>"


def _containers(spec: Json) -> str:
    return ",".join(container["name"] for container in spec.get("containers") or ())


def _images(spec: Json) -> str:
    return ",".join(container.get("image", "") for container in spec.get("containers") or ())


def _pod_statuses(pod: Json) -> list[Json]:
    return list(pod.get("status", {}).get("containerStatuses") or ())


def _pod_ready(pod: Json) -> str:
    ready = sum(1 for status in _pod_statuses(pod) if status.get("ready"))
    return f"{ready}/{len(pod['spec'].get('containers') or ())}"


def pod_status_text(pod: Json) -> str:
    """STATUS of a Pod: the phase, or why its containers do not run."""
    status = pod.get("status", {})
    text: str = status.get("reason") or status.get("phase") or "Unknown"
    running = False
    for container in reversed(_pod_statuses(pod)):
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            text = waiting["reason"]
        elif terminated is not None:
            signal = terminated.get("signal")
            default = f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode')}"
            text = terminated.get("reason") or default
        elif container.get("ready") and "running" in state:
            running = True
    if text == "Completed" and running:
        text = "Running" if _condition(pod, "Ready") == "True" else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return text


def _condition(obj: Json, kind: str) -> str:
    conditions = obj.get("status", {}).get("conditions") or ()
    return next((condition["status"] for condition in conditions if condition["type"] == kind), "")


def _pod_restarts(pod: Json) -> str:
    statuses = _pod_statuses(pod)
    restarts = sum(status.get("restartCount", 0) for status in statuses)
    ends = [((status.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for status in statuses]
    last = max(filter(None, ends), default=None)
    return f"{restarts} ({age(last)} ago)" if restarts and last else str(restarts)


def _readiness_gates(pod: Json) -> str:
    gates = pod["spec"].get("readinessGates") or ()
    true = sum(1 for gate in gates if _condition(pod, gate["conditionType"]) == "True")
    return f"{true}/{len(gates)}" if gates else "<none>"


def _service_ports(service: Json) -> str:
    return ",".join(
        f"{port['port']}:{port['nodePort']}/{port['protocol']}" if port.get("nodePort")
        else f"{port['port']}/{port.get('protocol', 'TCP')}"
        for port in service["spec"].get("ports") or ()
    ) or "<none>"  # fmt: skip


def _node_status(node: Json) -> str:
    ready = {"True": "Ready", "False": "NotReady"}.get(_condition(node, "Ready"), "Unknown")
    return f"{ready},SchedulingDisabled" if node.get("spec", {}).get("unschedulable") else ready


def _node_roles(node: Json) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or "<none>"


def _node_address(kind: str) -> Callable[[Json], str]:
    def read(node: Json) -> str:
        addresses = node.get("status", {}).get("addresses") or ()
        return next((entry["address"] for entry in addresses if entry["type"] == kind), "<none>")

    return read


def _node_info(name: str) -> Callable[[Json], str]:
    return lambda node: node.get("status", {}).get("nodeInfo", {}).get(name) or "<unknown>"


def _event_time(event: Json) -> str:
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return age(last or event["metadata"].get("creationTimestamp"))


def _event_object(event: Json) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_source(event: Json) -> str:
    source = event.get("source") or event.get("deprecatedSource") or {}
    component = source.get("component") or event.get("reportingComponent") or event.get("reportingController") or ""
    return f"{component}, {source['host']}" if source.get("host") else component


def _endpoints_text(endpoints: Json) -> str:
    texts = [
        f"{address['ip']}:{port['port']}"
        for subset in endpoints.get("subsets") or ()
        for address in subset.get("addresses") or ()
        for port in subset.get("ports") or ()
    ]
    return ",".join(texts[:3]) + (f" + {len(texts) - 3} more..." if len(texts) > 3 else "") if texts else "<none>"


def _subjects(kind: str) -> Callable[[Json], str]:
    def read(binding: Json) -> str:
        found = [subject for subject in binding.get("subjects") or () if subject["kind"] == kind]
        return ", ".join(
            f"{subject['namespace']}/{subject['name']}" if kind == "ServiceAccount" else subject["name"]
            for subject in found
        )

    return read


_BINDING_COLUMNS: Final = (
    Column("Role", lambda obj: f"{obj['roleRef']['kind']}/{obj['roleRef']['name']}"),
    _AGE,
    Column("Users", _subjects("User"), priority=1),
    Column("Groups", _subjects("Group"), priority=1),
    Column("ServiceAccounts", _subjects("ServiceAccount"), priority=1),
)
_CREATED_AT: Final = (Column("Created At", lambda obj: obj["metadata"].get("creationTimestamp")),)

BUILTIN_COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "pods": (
        Column("Ready", _pod_ready),
        Column("Status", pod_status_text),
        Column("Restarts", _pod_restarts),
        _AGE,
        Column("IP", lambda obj: obj.get("status", {}).get("podIP") or "<none>", priority=1),
        Column("Node", lambda obj: obj["spec"].get("nodeName") or "<none>", priority=1),
        Column("Nominated Node", lambda obj: obj["status"].get("nominatedNodeName") or "<none>", priority=1),
        Column("Readiness Gates", _readiness_gates, priority=1),
    ),
    "deployments.apps": (
        Column("Ready", lambda obj: f"{obj.get('status', {}).get('readyReplicas', 0)}/{obj['spec']['replicas']}"),
        Column("Up-to-date", lambda obj: obj.get("status", {}).get("updatedReplicas", 0), type="integer"),
        Column("Available", lambda obj: obj.get("status", {}).get("availableReplicas", 0), type="integer"),
        _AGE,
        Column("Containers", lambda obj: _containers(obj["spec"]["template"]["spec"]), priority=1),
        Column("Images", lambda obj: _images(obj["spec"]["template"]["spec"]), priority=1),
        Column("Selector", lambda obj: selector_text(obj["spec"].get("selector")), priority=1),
    ),
    "replicasets.apps": (
        Column("Desired", lambda obj: obj["spec"]["replicas"], type="integer"),
        Column("Current", lambda obj: obj.get("status", {}).get("replicas", 0), type="integer"),
        Column("Ready", lambda obj: obj.get("status", {}).get("readyReplicas", 0), type="integer"),
        _AGE,
        Column("Containers", lambda obj: _containers(obj["spec"]["template"]["spec"]), priority=1),
        Column("Images", lambda obj: _images(obj["spec"]["template"]["spec"]), priority=1),
        Column("Selector", lambda obj: selector_text(obj["spec"].get("selector")), priority=1),
    ),
    "services": (
        Column("Type", lambda obj: obj["spec"]["type"]),
        Column("Cluster-IP", lambda obj: obj["spec"].get("clusterIP") or "<none>"),
        Column("External-IP", lambda obj: obj["spec"].get("externalName") or "<none>"),
        Column("Port(s)", _service_ports),
        _AGE,
        Column("Selector", lambda obj: _labels_text(obj["spec"].get("selector")), priority=1),
    ),
    "events": (
        Column("Last Seen", _event_time),
        Column("Type", lambda obj: obj.get("type", "")),
        Column("Reason", lambda obj: obj.get("reason", "")),
        Column("Object", _event_object),
        Column("Subobject", lambda obj: (obj.get("involvedObject") or {}).get("fieldPath", ""), priority=1),
        Column("Source", _event_source, priority=1),
        Column("Message", lambda obj: (obj.get("message") or obj.get("note") or "").strip()),
        Column("First Seen", lambda obj: age(obj.get("firstTimestamp") or obj.get("eventTime")), priority=1),
        Column("Count", lambda obj: obj.get("count") or (obj.get("series") or {}).get("count") or 1, priority=1),
        Column("Name", lambda obj: obj["metadata"]["name"], priority=1),
    ),
    "nodes": (
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _node_info("kubeletVersion")),
        Column("Internal-IP", _node_address("InternalIP"), priority=1),
        Column("External-IP", _node_address("ExternalIP"), priority=1),
        Column("OS-Image", _node_info("osImage"), priority=1),
        Column("Kernel-Version", _node_info("kernelVersion"), priority=1),
        Column("Container-Runtime", _node_info("containerRuntimeVersion"), priority=1),
    ),
    "namespaces": (Column("Status", lambda obj: obj.get("status", {}).get("phase", "")), _AGE),
    "configmaps": (
        Column("Data", lambda obj: len(obj.get("data") or ()) + len(obj.get("binaryData") or ()), type="integer"),
        _AGE,
    ),
    "secrets": (
        Column("Type", lambda obj: obj["type"]),
        Column("Data", lambda obj: len(obj.get("data") or ()), type="integer"),
        _AGE,
    ),
    "serviceaccounts": (Column("Secrets", lambda obj: len(obj.get("secrets") or ()), type="integer"), _AGE),
    "endpoints": (Column("Endpoints", _endpoints_text), _AGE),
    "endpointslices.discovery.k8s.io": (
        Column("AddressType", lambda obj: obj["addressType"]),
        Column("Ports", lambda obj: ",".join(str(port.get("port")) for port in obj.get("ports") or ()) or "<unset>"),
        Column(
            "Endpoints",
            lambda obj: ",".join(a for e in obj.get("endpoints") or () for a in e.get("addresses") or ()) or "<unset>",
        ),
        _AGE,
    ),
    "persistentvolumeclaims": (
        Column("Status", lambda obj: obj.get("status", {}).get("phase", "")),
        Column("Volume", lambda obj: obj["spec"].get("volumeName", "")),
        Column("Capacity", lambda obj: (obj.get("status", {}).get("capacity") or {}).get("storage", "")),
        Column("Access Modes", lambda obj: ",".join(obj.get("status", {}).get("accessModes") or ())),
        Column("StorageClass", lambda obj: obj["spec"].get("storageClassName", "")),
        Column("VolumeAttributesClass", lambda obj: obj["spec"].get("volumeAttributesClassName") or "<unset>"),
        _AGE,
        Column("VolumeMode", lambda obj: obj["spec"].get("volumeMode", ""), priority=1),
    ),
    "poddisruptionbudgets.policy": (
        Column("Min Available", lambda obj: str(obj["spec"].get("minAvailable", "N/A"))),
        Column("Max Unavailable", lambda obj: str(obj["spec"].get("maxUnavailable", "N/A"))),
        Column("Allowed Disruptions", lambda obj: obj.get("status", {}).get("disruptionsAllowed", 0), type="integer"),
        _AGE,
    ),
    "leases.coordination.k8s.io": (Column("Holder", lambda obj: obj["spec"].get("holderIdentity", "")), _AGE),
    "roles.rbac.authorization.k8s.io": _CREATED_AT,
    "clusterroles.rbac.authorization.k8s.io": _CREATED_AT,
    "rolebindings.rbac.authorization.k8s.io": _BINDING_COLUMNS,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDING_COLUMNS,
    "customresourcedefinitions.apiextensions.k8s.io": _CREATED_AT,
}
