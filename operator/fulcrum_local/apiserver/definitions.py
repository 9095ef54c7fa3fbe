"""CustomResourceDefinitions: their validation and status, and the kinds that they make the server serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from fulcrum.api.schema.structural import StructuralSchema
from fulcrum_local.apiserver.errors import Json, cause, invalid, invalid_value, required_value
from fulcrum_local.apiserver.kinds import SCALE, CustomVersion, Kind, Registry, Subresource
from fulcrum_local.apiserver.store import Change, Store
from fulcrum_local.apiserver.times import now_text

STORAGE: Final = "customresourcedefinitions.apiextensions.k8s.io"
FINALIZER: Final = "customresourcecleanup.apiextensions.k8s.io"


def prepare_definition(crd: Json, old: Json | None, registry: Registry) -> None:
    """Validate a CRD and set its status; 422 for a wrong one. As in a real server a new one has no conditions yet."""
    name = crd["metadata"]["name"]
    causes = _causes(crd, registry)
    if causes:
        raise invalid("apiextensions.k8s.io", "CustomResourceDefinition", name, causes)
    spec = crd["spec"]
    status = dict((old or {}).get("status") or {})
    storage_version = next(version["name"] for version in spec["versions"] if version.get("storage"))
    stored_versions = status.get("storedVersions") or []
    status["storedVersions"] = [*stored_versions, *([] if storage_version in stored_versions else [storage_version])]
    if old is None:
        crd["status"] = {**status, "acceptedNames": {"kind": "", "plural": ""}, "conditions": None}
    else:
        crd["status"] = _established({**status, "acceptedNames": spec["names"]})
    metadata = crd["metadata"]
    if old is None and FINALIZER not in metadata.get("finalizers", ()):
        metadata["finalizers"] = [*metadata.get("finalizers", ()), FINALIZER]


def _established(status: Json) -> Json:
    conditions = status.get("conditions") or [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found"),
        _condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    return {**status, "conditions": conditions}


def establish(store: Store, name: str) -> None:
    """Accept the names of a new CRD, which is served already."""
    stored = store.get(STORAGE, "", name)
    if stored is None or stored.obj["status"].get("conditions"):
        return
    crd = {**stored.obj, "metadata": dict(stored.obj["metadata"])}
    crd["status"] = _established({**crd["status"], "acceptedNames": crd["spec"]["names"]})
    store.put(STORAGE, crd)


def _condition(kind: str, reason: str, message: str) -> Json:
    return {
        "lastTransitionTime": now_text(),
        "message": message,
        "reason": reason,
        "status": "True",
        "type": kind,
    }


def _causes(crd: Json, registry: Registry) -> list[Json]:
    spec: Json = crd.get("spec") or {}
    names: Json = spec.get("names") or {}
    causes = [required_value(f"spec.{name}") for name in ("group", "scope") if not spec.get(name)]
    causes += [required_value(f"spec.names.{name}") for name in ("plural", "kind") if not names.get(name)]
    versions = spec.get("versions") or []
    if sum(1 for version in versions if version.get("storage")) != 1:
        text = "must have exactly one version marked as storage version"
        causes.append(invalid_value("spec.versions", "", text))
    for index, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        path = f"spec.versions[{index}].schema"
        if not schema:
            causes.append(required_value(f"{path}.openAPIV3Schema"))
            continue
        for problem in StructuralSchema(schema).rule_problems():
            causes.append(cause(f"{path}.{problem.path}", problem.reason, problem.message))
    if causes:
        return causes
    name, expected = crd["metadata"]["name"], f"{names['plural']}.{spec['group']}"
    if name != expected:
        causes.append(invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if registry.is_builtin_group(spec["group"]):
        causes.append(cause("spec.group", "FieldValueForbidden", "Forbidden: the group belongs to the server"))
    taken = registry.custom_names(spec["group"], excluding=name)
    for field in ("plural", "kind"):
        if names[field] in taken:
            causes.append(invalid_value(f"spec.names.{field}", names[field], "already in use"))
    if spec["scope"] not in ("Namespaced", "Cluster"):
        text = f'Unsupported value: "{spec["scope"]}": supported values: "Cluster", "Namespaced"'
        causes.append(cause("spec.scope", "FieldValueNotSupported", text))
    return causes


def served_kinds(crd: Json) -> tuple[Kind, ...]:
    """One `Kind` for every served version of the CRD."""
    return tuple(_kind(crd["spec"], version) for version in crd["spec"]["versions"] if version.get("served"))


def _kind(spec: Json, version: Json) -> Kind:
    names = spec["names"]
    subresources: Json = version.get("subresources") or {}
    subs: list[Subresource] = []
    if "status" in subresources:
        subs.append(Subresource(name="status", kind=names["kind"]))
    scale: Any = subresources.get("scale")
    if scale:
        subs.append(SCALE)
    return Kind(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or f"{names['kind']}List",
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=tuple(subs),
        storage=f"{names['plural']}.{spec['group']}",
        has_generation=True,
        resets_status="status" in subresources,
        custom=CustomVersion(
            open_api_v3_schema=version["schema"]["openAPIV3Schema"],
            printer_columns=tuple(version.get("additionalPrinterColumns") or ()),
            scale=scale,
            selectable_fields=tuple(field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or ()),
        ),
    )


def serve_definitions(store: Store, registry: Registry, end_watches: Callable[[str], None]) -> None:
    """Keep the registry in step with the CRDs in the store, from now on.

    `end_watches` is called for a resource whose definition changed or went: what a watch knows about it is outdated.
    """
    for stored in store.scan(STORAGE):
        registry.set_custom(stored.obj["metadata"]["name"], served_kinds(stored.obj))
        establish(store, stored.obj["metadata"]["name"])

    def follow(change: Change) -> None:
        name, spec = change.key[1], change.new.obj["spec"]
        storage = f"{spec['names']['plural']}.{spec['group']}"
        if change.deleted:
            registry.set_custom(name, ())
            store.forget(storage)
            end_watches(storage)
        elif change.old is None or change.old.obj["spec"] != spec:
            # Once the answer to the creation is made: a listener must not write in the middle of a write.
            asyncio.get_running_loop().call_soon(establish, store, name)
            registry.set_custom(name, served_kinds(change.new.obj))
            end_watches(storage)

    store.listen(STORAGE, follow)
