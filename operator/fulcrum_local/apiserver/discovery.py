"""Discovery: which groups, versions and resources there are, in the classic and the aggregated form."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterable
from typing import Final

from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.kinds import Kind, Registry, Subresource

AGGREGATED_TYPE: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_VERSION: Final = re.compile(r"v(?P<major>\d+)(?:(?P<stage>alpha|beta)(?P<minor>\d+))?")
SERVED_KUBERNETES: Final = ("1", "37")


def version_info() -> Json:
    """`/version`."""
    major, minor = SERVED_KUBERNETES
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{major}.{minor}.0+fulcrum",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": f"python{platform.python_version()}",
        "platform": "linux/amd64",
    }


def wants_aggregated(accept: str) -> bool:
    """Whether the client reads the aggregated form."""
    return "as=APIGroupDiscoveryList" in accept and "v=v2" in accept.replace("v=v2beta1", "")


def core_versions(address: str) -> Json:
    """`/api`."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def _versions(registry: Registry) -> dict[str, list[str]]:
    """Versions of each group, the preferred one first; groups in the order of registration."""
    groups: dict[str, list[str]] = {}
    for kind in registry:
        versions = groups.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.append(kind.version)
    for versions in groups.values():
        versions.sort(key=_priority)
    return groups


def _priority(version: str) -> tuple[int, int, int, str]:
    """Sorts `v2, v1, v1beta2, v1beta1, v1alpha1, other`: the first one is what clients prefer."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (3, 0, 0, version)
    stage = ("", "beta", "alpha").index(match["stage"] or "")
    return (stage, -int(match["major"]), -int(match["minor"] or 0), version)


def _group(name: str, versions: list[str]) -> Json:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def group_list(registry: Registry) -> Json:
    """`/apis`."""
    groups = [_group(name, versions) for name, versions in _versions(registry).items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: Registry, name: str) -> Json | None:
    """`/apis/<group>`, or None."""
    versions = _versions(registry).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions else None


def resource_list(registry: Registry, group_name: str, version: str) -> Json | None:
    """`/apis/<group>/<version>` or `/api/v1`, or None."""
    kinds = [kind for kind in registry if (kind.group, kind.version) == (group_name, version)]
    if not kinds:
        return None
    resources: list[Json] = []
    for kind in kinds:
        resources.append(_resource(kind))
        resources += [_subresource(kind, sub) for sub in kind.subresources]
    group_version = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _resource(kind: Kind) -> Json:
    resource: Json = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
        "storageVersionHash": hashlib.sha256(f"{kind.group}/{kind.kind}".encode()).hexdigest()[:11] + "=",
    }
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    return resource


def _subresource(kind: Kind, sub: Subresource) -> Json:
    entry: Json = {
        "name": f"{kind.plural}/{sub.name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": sub.kind,
        "verbs": list(sub.verbs),
    }
    if sub.version:
        entry |= {"group": sub.group, "version": sub.version}
    return entry


def aggregated(registry: Registry, *, core: bool) -> Json:
    """`/api` or `/apis` as an APIGroupDiscoveryList."""
    groups = {name: versions for name, versions in _versions(registry).items() if bool(name) != core}
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": name} if name else {},
                "versions": [
                    {
                        "version": version,
                        "freshness": "Current",
                        "resources": [
                            _aggregated_resource(kind)
                            for kind in registry
                            if (kind.group, kind.version) == (name, version)
                        ],
                    }
                    for version in versions
                ],
            }
            for name, versions in groups.items()
        ],
    }


def _aggregated_resource(kind: Kind) -> Json:
    resource: Json = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    if kind.subresources:
        resource["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {
                    "group": sub.group or ("" if sub.version else kind.group),
                    "version": sub.version or kind.version,
                    "kind": sub.kind,
                },
                "verbs": list(sub.verbs),
            }
            for sub in kind.subresources
        ]
    return resource


def known_paths(registry: Registry) -> Iterable[str]:
    """Paths for the index at `/`."""
    yield from ("/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz")
    for name, versions in _versions(registry).items():
        if name:
            yield f"/apis/{name}"
            yield from (f"/apis/{name}/{version}" for version in versions)
    yield "/version"
