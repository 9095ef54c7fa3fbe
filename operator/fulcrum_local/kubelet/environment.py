"""A container's environment and command line as Kubernetes defines them: `$(VAR)`, valueFrom, envFrom."""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from fulcrum.api.quantities import parse_quantity

Json = dict[str, Any]
Lookup = Callable[[str, str], Json | None]
"""(kind `ConfigMap` or `Secret`, name) -> the object, or None when there is none."""

PASSED_ON: Final = (
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TMPDIR",
    "TZ",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_PASSED_PREFIXES: Final = ("XDG_", "LC_")
_REFERENCE: Final = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)|\$")
_VARIABLE: Final = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")
_KEYED: Final = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")


class ConfigError(Exception):
    """A container cannot be configured; shown as `CreateContainerConfigError` and tried again."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value, `$$` becomes `$`, an unknown name stays as it is written."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1]
        return match[0] if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(replace, text)


def base_environment(own: Mapping[str, str], *, bin_directory: str, also: tuple[str, ...] = ()) -> dict[str, str]:
    """What stands in for the image's environment: never this process' whole environment, so that no secret leaks in.

    `own` is this process' environment, `bin_directory` comes first in PATH, `also` are further names to pass on.
    """
    passed = {
        key: value for key, value in own.items() if key in PASSED_ON or key in also or key.startswith(_PASSED_PREFIXES)
    }
    path = own.get("PATH", os.defpath)
    parts = [part for part in path.split(os.pathsep) if part != bin_directory]
    return {**passed, "PATH": os.pathsep.join([bin_directory, *parts])}


def quantity(text: str | float) -> float:
    """A Kubernetes quantity (`500m`, `2Gi`, `1e3`) as a number. Errors: ValueError."""
    try:
        return float(parse_quantity(str(text)))
    except ValueError as error:
        raise ValueError(f"{text!r} is no quantity: {error}") from error


def field_value(path: str, pod: Json, *, pod_ip: str, host_ip: str) -> str:
    """Value of a downward API field. Errors: ConfigError for a field that does not exist."""
    metadata, spec = pod["metadata"], pod["spec"]
    keyed = _KEYED.match(path)
    if keyed:
        return str((metadata.get(keyed[1]) or {}).get(keyed[2], ""))
    simple = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
    }
    if path not in simple:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(simple[path])


def resource_value(reference: Json, container: Json, capacity: Mapping[str, float]) -> str:
    """Value of a resourceFieldRef, rounded up to the divisor; without a limit it is the node's capacity."""
    kind, _, name = str(reference["resource"]).partition(".")
    if kind not in ("requests", "limits") or not name:
        raise ConfigError(f"unsupported resource: {reference['resource']}")
    resources = container.get("resources") or {}
    found = (resources.get(kind) or {}).get(name)
    amount = capacity.get(name, 0.0) if found is None and kind == "limits" else quantity(found or 0)
    divisor = quantity(reference.get("divisor") or 1) or 1.0
    return str(math.ceil(amount / divisor - 1e-9))


def object_values(kind: str, item: Json) -> dict[str, str]:
    """Text values of a ConfigMap or Secret. Errors: ConfigError when a Secret is not base64 of UTF-8 text."""
    if kind == "ConfigMap":
        return dict(item.get("data") or {})
    try:
        return {key: base64.b64decode(value).decode() for key, value in (item.get("data") or {}).items()}
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ConfigError(f'secret "{item["metadata"]["name"]}": {error}') from error


def build_environment(
    container: Json,
    pod: Json,
    *,
    base: Mapping[str, str],
    pod_ip: str,
    host_ip: str,
    capacity: Mapping[str, float],
    lookup: Lookup,
) -> dict[str, str]:
    """The environment of one container. Errors: ConfigError naming what is missing."""
    result = dict(base)
    for source in container.get("envFrom") or []:
        result.update(_from_source(source, lookup))
    for entry in container.get("env") or []:
        name = entry["name"]
        reference = entry.get("valueFrom")
        if reference is None:
            result[name] = expand(entry.get("value") or "", result)
        elif "fieldRef" in reference:
            result[name] = field_value(reference["fieldRef"]["fieldPath"], pod, pod_ip=pod_ip, host_ip=host_ip)
        elif "resourceFieldRef" in reference:
            result[name] = resource_value(reference["resourceFieldRef"], container, capacity)
        else:
            value = _from_key(reference, lookup)
            if value is not None:
                result[name] = value
    return result


def command_line(container: Json, environment: Mapping[str, str]) -> list[str]:
    """`command` + `args`, expanded; empty when the container relies on its image's entry point."""
    command = [expand(part, environment) for part in container.get("command") or []]
    return command + [expand(part, environment) for part in container.get("args") or []] if command else []


def _find(kind: str, name: str, lookup: Lookup, *, optional: bool) -> Json | None:
    item = lookup(kind, name)
    if item is None and not optional:
        raise ConfigError(f'{kind.lower()} "{name}" not found')
    return item


def _from_source(source: Json, lookup: Lookup) -> dict[str, str]:
    kind, reference = ("ConfigMap", source.get("configMapRef")) if "configMapRef" in source else (
        "Secret", source.get("secretRef"),
    )  # fmt: skip
    if not reference:
        return {}
    item = _find(kind, reference["name"], lookup, optional=bool(reference.get("optional")))
    if item is None:
        return {}
    prefix = source.get("prefix") or ""
    values = object_values(kind, item)
    return {prefix + key: value for key, value in values.items() if _VARIABLE.fullmatch(prefix + key)}


def _from_key(reference: Json, lookup: Lookup) -> str | None:
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        wanted = reference.get(field)
        if wanted is None:
            continue
        optional = bool(wanted.get("optional"))
        item = _find(kind, wanted["name"], lookup, optional=optional)
        values = {} if item is None else object_values(kind, item)
        if wanted["key"] not in values and not optional:
            raise ConfigError(f'couldn\'t find key {wanted["key"]} in {kind} "{wanted["name"]}"')
        return values.get(wanted["key"])
    raise ConfigError(f"unsupported valueFrom: {', '.join(reference) or 'empty'}")
