"""Validation of containers: ports, environment, mounts, probes and resources, in the words of Kubernetes 1.36."""

from __future__ import annotations

import re
from typing import Any, Final

from fulcrum.api.quantities import parse_quantity
from fulcrum_local.apiserver.errors import (
    Json,
    duplicate,
    forbidden_field,
    invalid_value,
    not_found_value,
    not_supported,
    required_value,
)
from fulcrum_local.apiserver.metadata import label_problem, qualified_name_problem

PORT_TEXT: Final = "must be between 1 and 65535, inclusive"
_NOT_NEGATIVE: Final = "must be greater than or equal to 0"
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc")
_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_SERVICE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_ENV_SOURCES: Final = ("configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef")


def container_causes(container: Json, path: str, seen: set[str], volumes: set[Any]) -> list[Json]:
    """Everything that is wrong with a container; `seen` collects the names of the Pod's containers."""
    causes: list[Json] = []
    name = container.get("name", "")
    if not name:
        causes.append(required_value(f"{path}.name"))
    elif problem := label_problem(name):
        causes.append(invalid_value(f"{path}.name", name, problem))
    elif name in seen:
        causes.append(duplicate(f"{path}.name", name))
    seen.add(name)
    if not container.get("image"):
        causes.append(required_value(f"{path}.image"))
    causes += _port_causes(container.get("ports") or (), f"{path}.ports")
    causes += _env_causes(container.get("env") or (), f"{path}.env")
    causes += _mount_causes(container.get("volumeMounts") or (), f"{path}.volumeMounts", volumes)
    for field in _PROBES:
        if container.get(field) is not None:
            causes += _probe_causes(container[field], f"{path}.{field}", only_one_success=field != "readinessProbe")
    for field in ("postStart", "preStop"):
        hook = (container.get("lifecycle") or {}).get(field)
        if hook is not None:
            causes += _handler_causes(hook, f"{path}.lifecycle.{field}", (*_HANDLERS[:3], "sleep"))
    policies = ("Always", "IfNotPresent", "Never")
    if container.get("imagePullPolicy", "Always") not in policies:
        causes.append(not_supported(f"{path}.imagePullPolicy", container["imagePullPolicy"], policies))
    return causes + _resource_causes(container.get("resources") or {}, f"{path}.resources")


def _port_causes(ports: Any, path: str) -> list[Json]:
    causes: list[Json] = []
    names: set[str] = set()
    for index, port in enumerate(ports):
        where, name = f"{path}[{index}]", port.get("name") or ""
        if len(name) > 15:
            causes.append(invalid_value(f"{where}.name", name, "must be no more than 15 characters"))
        elif name and not (_SERVICE_NAME.fullmatch(name) and "--" not in name and re.search("[a-z]", name)):
            text = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
            causes.append(invalid_value(f"{where}.name", name, text))
        elif name in names:
            causes.append(duplicate(f"{where}.name", name))
        names |= {name} - {""}
        if not port.get("containerPort"):
            causes.append(required_value(f"{where}.containerPort"))
        elif not 0 < port["containerPort"] < 65536:
            causes.append(invalid_value(f"{where}.containerPort", port["containerPort"], PORT_TEXT))
        if port.get("hostPort") and not 0 < port["hostPort"] < 65536:
            causes.append(invalid_value(f"{where}.hostPort", port["hostPort"], PORT_TEXT))
        if port.get("protocol", "TCP") not in ("SCTP", "TCP", "UDP"):
            causes.append(not_supported(f"{where}.protocol", port["protocol"], ("SCTP", "TCP", "UDP")))
    return causes


def _env_causes(variables: Any, path: str) -> list[Json]:
    causes: list[Json] = []
    for index, variable in enumerate(variables):
        where, source = f"{path}[{index}]", variable.get("valueFrom")
        if not variable.get("name"):
            causes.append(required_value(f"{where}.name"))
        if source is None:
            continue
        given = [name for name in _ENV_SOURCES if source.get(name) is not None]
        if variable.get("value"):
            text = "may not be specified when `value` is not empty"
            causes.append(invalid_value(f"{where}.valueFrom", "", text))
        elif not given:
            listed = ", ".join(f"`{name}`" for name in _ENV_SOURCES[:-1])
            text = f"must specify one of: {listed} or `{_ENV_SOURCES[-1]}`"
            causes.append(invalid_value(f"{where}.valueFrom", "", text))
        elif len(given) > 1:
            text = "may not have more than one field specified at a time"
            causes.append(invalid_value(f"{where}.valueFrom", "", text))
    return causes


def _mount_causes(mounts: Any, path: str, volumes: set[Any]) -> list[Json]:
    causes: list[Json] = []
    seen: set[str] = set()
    for index, mount in enumerate(mounts):
        where = f"{path}[{index}]"
        if not mount.get("name"):
            causes.append(required_value(f"{where}.name"))
        elif mount["name"] not in volumes:
            causes.append(not_found_value(f"{where}.name", mount["name"]))
        folder = mount.get("mountPath") or ""
        if not folder:
            causes.append(required_value(f"{where}.mountPath"))
        elif folder in seen:
            causes.append(invalid_value(f"{where}.mountPath", folder, "must be unique"))
        seen.add(folder)
    return causes


def _probe_causes(probe: Json, path: str, *, only_one_success: bool) -> list[Json]:
    causes = _handler_causes(probe, path, _HANDLERS)
    fields = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
    causes += [
        invalid_value(f"{path}.{field}", probe[field], _NOT_NEGATIVE) for field in fields if (probe.get(field) or 0) < 0
    ]
    if only_one_success and probe.get("successThreshold", 1) != 1:
        causes.append(invalid_value(f"{path}.successThreshold", probe["successThreshold"], "must be 1"))
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        causes.append(invalid_value(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0"))
    return causes


def _handler_causes(holder: Json, path: str, kinds: tuple[str, ...]) -> list[Json]:
    given = [kind for kind in kinds if holder.get(kind) is not None]
    if not given:
        return [required_value(path, "must specify a handler type")]
    causes = [forbidden_field(f"{path}.{kind}", "may not specify more than 1 handler type") for kind in given[1:]]
    kind, handler = given[0], holder[given[0]]
    where = f"{path}.{kind}"
    if kind == "exec" and not handler.get("command"):
        causes.append(required_value(f"{where}.command"))
    if kind == "httpGet" and handler.get("scheme", "HTTP") not in ("HTTP", "HTTPS"):
        causes.append(not_supported(f"{where}.scheme", handler["scheme"], ("HTTP", "HTTPS")))
    if kind in ("httpGet", "tcpSocket", "grpc"):
        port = handler.get("port", 0)
        if isinstance(port, int) and not 0 < port < 65536:
            causes.append(invalid_value(f"{where}.port", port, PORT_TEXT))
    return causes


def _resource_causes(resources: Json, path: str) -> list[Json]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    causes: list[Json] = []
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            causes += _amount_causes(name, str(amount), f"{path}.{field}[{name}]")
    for name, amount in requests.items():
        limit = limits.get(name)
        shared = name in _NATIVE  # others are handed out as a whole: what is asked for is what may be used
        if limit is None:
            if not shared:
                causes.append(required_value(f"{path}.limits", "Limit must be set for non overcommitable resources"))
            continue
        asked, most = parse_quantity(str(amount)), parse_quantity(str(limit))
        if asked != most and not shared:
            text = f"must be equal to {name} limit of {limit}"
            causes.append(invalid_value(f"{path}.requests", str(amount), text))
        elif asked > most:
            text = f"must be less than or equal to {name} limit of {limit}"
            causes.append(invalid_value(f"{path}.requests", str(amount), text))
    return causes


def _amount_causes(name: str, amount: str, where: str) -> list[Json]:
    causes: list[Json] = []
    extended = "/" in name
    if problem := qualified_name_problem(name):
        causes.append(invalid_value(where, name, problem))
    elif not extended and name not in _NATIVE and not name.startswith("hugepages-"):
        causes.append(invalid_value(where, name, "must be a standard resource type or fully qualified"))
        causes.append(invalid_value(where, name, "must be a standard resource for containers"))
    value = parse_quantity(amount)
    if value < 0:
        causes.append(invalid_value(where, amount, _NOT_NEGATIVE))
    elif extended and value != value.to_integral_value():
        causes.append(invalid_value(where, amount, "must be an integer"))
    return causes
