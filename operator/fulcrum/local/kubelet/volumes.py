"""A Pod's volumes as folders.

A process of this machine has no mount namespace of its own, so `mountPath` cannot be honoured; a container finds volume
`a-b` through the environment variable `FULCRUM_VOLUME_A_B`. hostPath volumes are where they are.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any, Final

from fulcrum.local.kubelet.environment import ConfigError, Lookup, field_value
from fulcrum.local.kubelet.processes import write_private

Json = dict[str, Any]
_PREFIX: Final = "FULCRUM_VOLUME_"
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")


def variable(volume_name: str) -> str:
    """Environment variable that leads to the volume's folder."""
    return _PREFIX + volume_name.replace("-", "_").upper()


def references(pod: Json) -> set[tuple[str, str]]:
    """(kind, name) of every ConfigMap and Secret that the Pod's volumes and containers name."""
    found: set[tuple[str, str]] = set()
    spec = pod["spec"]
    for volume in spec.get("volumes") or []:
        for source in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            if source.get("configMap"):
                found.add(("ConfigMap", source["configMap"]["name"]))
            if source.get("secret"):
                found.add(("Secret", source["secret"].get("secretName") or source["secret"].get("name")))
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        entries = [entry.get("valueFrom") or {} for entry in container.get("env") or []]
        for source in [*entries, *(container.get("envFrom") or [])]:
            for field, kind in _REFERENCE_FIELDS.items():
                if field in source:
                    found.add((kind, source[field]["name"]))
    return found


_REFERENCE_FIELDS: Final = {
    "configMapKeyRef": "ConfigMap",
    "configMapRef": "ConfigMap",
    "secretKeyRef": "Secret",
    "secretRef": "Secret",
}


def materialise(
    pod: Json, directory: Path, *, claims: Path, lookup: Lookup, pod_ip: str, host_ip: str
) -> dict[str, str]:
    """Make every volume's folder; returns the variables that lead to them. Errors: ConfigError, OSError.

    `claims` holds PersistentVolumeClaims as folders that outlive the Pod.
    """
    variables: dict[str, str] = {}
    namespace = pod["metadata"]["namespace"]
    for volume in pod["spec"].get("volumes") or []:
        name = volume["name"]
        folder = directory / name
        if "hostPath" in volume:
            folder = Path(volume["hostPath"]["path"])
        elif "persistentVolumeClaim" in volume:
            folder = claims / namespace / volume["persistentVolumeClaim"]["claimName"]
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        else:
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            sources = (volume.get("projected") or {}).get("sources") or [volume]
            for source in sources:
                _fill(folder, source, pod, lookup, pod_ip=pod_ip, host_ip=host_ip)
        variables[variable(name)] = str(folder)
    return variables


def _fill(folder: Path, source: Json, pod: Json, lookup: Lookup, *, pod_ip: str, host_ip: str) -> None:
    if source.get("configMap"):
        _write_object(folder, "ConfigMap", source["configMap"]["name"], source["configMap"], lookup)
    elif source.get("secret"):
        name = source["secret"].get("secretName") or source["secret"].get("name")
        _write_object(folder, "Secret", name, source["secret"], lookup)
    elif source.get("downwardAPI"):
        for item in source["downwardAPI"].get("items") or []:
            if "fieldRef" in item:
                value = field_value(item["fieldRef"]["fieldPath"], pod, pod_ip=pod_ip, host_ip=host_ip)
                _write(folder, item["path"], value.encode())


def _write_object(folder: Path, kind: str, name: str, source: Json, lookup: Lookup) -> None:
    item = lookup(kind, name)
    if item is None:
        if source.get("optional"):
            return
        raise ConfigError(f'{kind.lower()} "{name}" not found')
    content: dict[str, bytes] = {}
    for key, text in (item.get("data") or {}).items():
        content[key] = base64.b64decode(text) if kind == "Secret" else text.encode()
    for key, text in (item.get("binaryData") or {}).items():
        content[key] = base64.b64decode(text)
    chosen = source.get("items")
    if not chosen:
        for key, value in content.items():
            _write(folder, key, value)
        return
    for entry in chosen:
        if entry["key"] in content:
            _write(folder, entry["path"], content[entry["key"]])
        elif not source.get("optional"):
            raise ConfigError(f'{kind.lower()} "{name}" has no key {entry["key"]}')


def _write(folder: Path, relative: str, content: bytes) -> None:
    parts = Path(relative).parts
    if not parts or any(part == ".." or not _KEY.fullmatch(part) for part in parts):
        raise ConfigError(f"{relative!r} is no path inside a volume")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    write_private(path, content)
