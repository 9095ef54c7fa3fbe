"""The `scale` subresource: replicas of Deployments, ReplicaSets and custom kinds, read and written alone."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from fulcrum.api.schema.json_copy import json_copy
from fulcrum_local.apiserver import errors, patching
from fulcrum_local.apiserver.bodies import checked
from fulcrum_local.apiserver.call import Call, answer
from fulcrum_local.apiserver.conversion import served_form
from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.presentation import encode
from fulcrum_local.apiserver.printers import selector_text
from fulcrum_local.apiserver.store import Store
from fulcrum_local.apiserver.writing import Writer

_SPEC_REPLICAS = ".spec.replicas"
_STATUS_REPLICAS = ".status.replicas"


class Scales:
    """Get, update and patch of Scale objects."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store, self._writer = store, writer

    async def handle(self, call: Call) -> web.StreamResponse:
        """Answer a call for `.../scale`."""
        kind, target = call.kind, call.target
        if target.verb == "get":
            stored = self._store.get(kind.storage, target.namespace, target.name)
            if stored is None:
                raise errors.not_found(kind.group, kind.plural, target.name)
            return answer(call, encode(scale_of(kind, served_form(kind, stored.obj))))

        def change(live: Json) -> Json:
            current = scale_of(kind, live)
            wanted = checked(call.body(), _Scale) if target.verb == "update" else _patched(call, current)
            return _with_replicas(kind, live, wanted)

        options = call.write_options()
        obj = self._writer.update(kind, target.namespace, target.name, change, options, through="scale")
        return answer(call, encode(scale_of(kind, obj)))


class _ScaleMetadata(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _ScaleSpec(msgspec.Struct):
    replicas: int | None = None


class _Scale(msgspec.Struct):
    metadata: _ScaleMetadata | None = None
    spec: _ScaleSpec | None = None


def _patched(call: Call, current: Json) -> Json:
    if patching.media_type(call) == patching.APPLY_PATCH:
        applied = checked(call.body(), _Scale)
        return {**current, "spec": applied.get("spec") or current["spec"]}
    scale_kind = Kind(
        group="autoscaling", version="v1", kind="Scale", plural="scales", singular="scale", list_kind="",
        namespaced=True, storage="",
    )  # fmt: skip
    return checked(patching.patch_changer(call, scale_kind)(current), _Scale)


def scale_of(kind: Kind, obj: Json) -> Json:
    """The Scale of an object."""
    paths: Json = (kind.custom.scale if kind.custom else None) or {}
    metadata = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    scale: Json = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": _at(obj, paths.get("specReplicasPath", _SPEC_REPLICAS)) or 0},
        "status": {},
    }
    if replicas := _at(obj, paths.get("statusReplicasPath", _STATUS_REPLICAS)):
        scale["status"]["replicas"] = replicas
    if kind.custom is None:
        scale["status"]["selector"] = selector_text(obj["spec"].get("selector"))
    elif paths.get("labelSelectorPath"):
        scale["status"]["selector"] = _at(obj, paths["labelSelectorPath"]) or ""
    return scale


def _at(obj: Json, path: str) -> Any:
    value: Any = obj
    for name in path.strip(".").split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _with_replicas(kind: Kind, live: Json, scale: Json) -> Json:
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    name, metadata = live["metadata"]["name"], scale.get("metadata") or {}
    if replicas < 0:
        causes = [errors.invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")]
        raise errors.invalid("autoscaling", "Scale", name, causes)
    asked, uid = metadata.get("uid"), live["metadata"]["uid"]
    if asked and asked != uid:
        why = f"Precondition failed: UID in precondition: {asked}, UID in object meta: {uid}"
        raise errors.conflict(kind.group, kind.plural, name, why)
    obj = json_copy(live)
    obj["metadata"]["resourceVersion"] = metadata.get("resourceVersion") or live["metadata"]["resourceVersion"]
    paths: Json = (kind.custom.scale if kind.custom else None) or {}
    *parents, last = paths.get("specReplicasPath", _SPEC_REPLICAS).strip(".").split(".")
    inner = obj
    for parent in parents:
        inner = inner.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ApiError(500, f"the scale path of {kind.resource} does not lead to an object")
    inner[last] = replicas
    return obj
