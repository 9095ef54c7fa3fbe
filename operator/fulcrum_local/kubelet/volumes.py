"""A Pod's volumes as folders.

A process of this machine has no mount namespace of its own, so nothing can appear at a `mountPath`. What the Pod itself
says about its mount paths (in `command`, `args`, `env` and `workingDir`) is translated to the volume's folder, so that
programs which are told their paths need not know. Others find volume `a-b` through the environment variable
`FULCRUM_VOLUME_A_B`. hostPath volumes are where they are.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fulcrum_local.kubelet.environment import ConfigError, Lookup, field_value
from fulcrum_local.kubelet.processes import write_private

Json = dict[str, Any]
_PREFIX: Final = "FULCRUM_VOLUME_"
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")


def variable(volume_name: str) -> str:
    """Environment variable that leads to the volume's folder."""
    return _PREFIX + volume_name.replace("-", "_").upper()


def mount_folders(container: Json, variables: Mapping[str, str]) -> dict[str, str]:
    """Mount path -> folder for a container's mounts; `variables` are those of `materialise`.

    A mount path that this machine has (such as /tmp) is left out: the process sees the machine's own folder there.
    """
    folders = {}
    for mount in container.get("volumeMounts") or []:
        folder = variables.get(variable(mount["name"]))
        if folder is not None and not Path(mount["mountPath"]).exists():
            inner = mount.get("subPath") or ""
            folders[mount["mountPath"].rstrip("/")] = f"{folder}/{inner}".rstrip("/")
    return folders


def translated(text: str, folders: Mapping[str, str]) -> str:
    """`text` with every path at or below a mount path as it is on this machine; the longest mount path wins."""
    if not any(path in text for path in folders):
        return text
    paths = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    # Whole path components only: /data is neither in /data2 nor in /my/data.
    return re.sub(rf"(?<![\w./-])(?:{paths})(?![\w.-])", lambda match: folders[match[0]], text)


def references(pod: Json) -> set[tuple[str, str]]:
    """(kind, name) of every ConfigMap and Secret that the Pod's volumes and containers name."""
    found: set[tuple[str, str]] = set()
    spec = pod["spec"]
    for volume in _volumes(pod):
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
    for volume in _volumes(pod):
        name = volume["name"]
        folder = directory / name
        if "hostPath" in volume:
            folder = Path(volume["hostPath"]["path"])
        elif "persistentVolumeClaim" in volume:
            folder = claims / namespace / volume["persistentVolumeClaim"]["claimName"]
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        else:
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            for path, content in _content(volume, pod, lookup, pod_ip=pod_ip, host_ip=host_ip).items():
                _write(folder, path, content)
        variables[variable(name)] = str(folder)
    return variables


def live(pod: Json) -> list[Json]:
    """The Pod's volumes whose content follows a ConfigMap or a Secret; not the one that admission gives every Pod."""
    return [
        volume
        for volume in _volumes(pod)
        if any({"configMap", "secret"} & source.keys() for source in _sources(volume)) and not _token_path(volume)
    ]


def write_token(pod: Json, directory: Path, token: str) -> None:
    """Put the ServiceAccount's token into every volume that asks for it. Errors: ConfigError, OSError."""
    for volume in _volumes(pod):
        if path := _token_path(volume):
            _write(directory / volume["name"], path, token.encode())


def _token_path(volume: Json) -> str:
    tokens = [source["serviceAccountToken"] for source in _sources(volume) if source.get("serviceAccountToken")]
    return str(tokens[0]["path"]) if tokens else ""


def _sources(volume: Json) -> list[Json]:
    return (volume.get("projected") or {}).get("sources") or [volume]


def update(pod: Json, directory: Path, *, lookup: Lookup, pod_ip: str, host_ip: str) -> list[str]:
    """Let `live` volumes say what their objects say now; names of those that changed. Errors: ConfigError, OSError.

    What is new is written before what is old goes; a volume whose object is missing keeps what it has.
    """
    changed = []
    for volume in live(pod):
        folder = directory / volume["name"]
        wanted = _content(volume, pod, lookup, pod_ip=pod_ip, host_ip=host_ip)
        there = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        fresh = {path: content for path, content in wanted.items() if _differs(there.get(path), content)}
        for path, content in fresh.items():
            _write(folder, path, content)
        stale = there.keys() - wanted.keys()
        for path in stale:
            there[path].unlink()
        if fresh or stale:
            changed.append(str(volume["name"]))
    return changed


def _differs(path: Path | None, content: bytes) -> bool:
    return path is None or path.read_bytes() != content


def _volumes(pod: Json) -> list[Json]:
    return pod["spec"].get("volumes") or []


def _content(volume: Json, pod: Json, lookup: Lookup, *, pod_ip: str, host_ip: str) -> dict[str, bytes]:
    """Files of a volume that is made of objects; none for any other."""
    content: dict[str, bytes] = {}
    for source in (volume.get("projected") or {}).get("sources") or [volume]:
        content.update(_source_content(source, pod, lookup, pod_ip=pod_ip, host_ip=host_ip))
    return content


def _source_content(source: Json, pod: Json, lookup: Lookup, *, pod_ip: str, host_ip: str) -> dict[str, bytes]:
    if source.get("configMap"):
        return _object_content("ConfigMap", source["configMap"]["name"], source["configMap"], lookup)
    if source.get("secret"):
        name = source["secret"].get("secretName") or source["secret"].get("name")
        return _object_content("Secret", name, source["secret"], lookup)
    items = (source.get("downwardAPI") or {}).get("items") or []
    return {
        item["path"]: field_value(item["fieldRef"]["fieldPath"], pod, pod_ip=pod_ip, host_ip=host_ip).encode()
        for item in items
        if "fieldRef" in item
    }


def _object_content(kind: str, name: str, source: Json, lookup: Lookup) -> dict[str, bytes]:
    item = lookup(kind, name)
    if item is None:
        if source.get("optional"):
            return {}
        raise ConfigError(f'{kind.lower()} "{name}" not found')
    content: dict[str, bytes] = {}
    for key, text in (item.get("data") or {}).items():
        content[key] = base64.b64decode(text) if kind == "Secret" else text.encode()
    for key, text in (item.get("binaryData") or {}).items():
        content[key] = base64.b64decode(text)
    chosen = source.get("items")
    if not chosen:
        return content
    picked: dict[str, bytes] = {}
    for entry in chosen:
        if entry["key"] in content:
            picked[entry["path"]] = content[entry["key"]]
        elif not source.get("optional"):
            raise ConfigError(f'{kind.lower()} "{name}" has no key {entry["key"]}')
    return picked


def _write(folder: Path, relative: str, content: bytes) -> None:
    parts = Path(relative).parts
    if not parts or any(part == ".." or not _KEY.fullmatch(part) for part in parts):
        raise ConfigError(f"{relative!r} is no path inside a volume")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    # A program that lists the folder leaves out names that begin with two dots, as in a volume of the real kubelet.
    made = path.with_name(f"..{path.name}")
    write_private(made, content)
    made.replace(path)
