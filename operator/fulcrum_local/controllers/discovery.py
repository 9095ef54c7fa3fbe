"""Which resources the API server serves."""

from __future__ import annotations

from fulcrum_local.controllers.cluster import Cluster
from fulcrum_local.controllers.resources import Resource

_NEEDED_VERBS = frozenset({"delete", "list", "watch"})
_NOT_COLLECTED = frozenset({("v1", "Event"), ("events.k8s.io/v1", "Event")})


async def resources(cluster: Cluster) -> set[Resource]:
    """Every resource that can be followed and deleted, in its group's preferred version. Errors: those of `Api`."""
    groups = (await cluster.get("/apis"))["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    found = set()
    for version in versions:
        listed = await cluster.get(f"/api{'s' if '/' in version else ''}/{version}")
        for each in listed["resources"]:
            followed = set(each["verbs"]) >= _NEEDED_VERBS and (version, each["kind"]) not in _NOT_COLLECTED
            if followed and "/" not in each["name"]:
                found.add(
                    Resource(api_version=version, kind=each["kind"], plural=each["name"], namespaced=each["namespaced"])
                )
    return found
