"""PATCH in its four formats, on objects and on their `status`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from fulcrum.api.schema.json_copy import json_copy
from fulcrum_local.apiserver import errors
from fulcrum_local.apiserver.bodies import as_object, parse_body, parse_yaml
from fulcrum_local.apiserver.call import Call
from fulcrum_local.apiserver.decoding import check_body
from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.request import flag
from fulcrum_local.apiserver.store import Store
from fulcrum_local.apiserver.strategies import canonical_or_refused
from fulcrum_local.apiserver.times import now_text
from fulcrum_local.apiserver.writing import Changer, Writer
from fulcrum_local.objects.patch import PatchError, json_patch, merge_patch, strategic_merge_patch
from fulcrum_local.objects.server_side_apply import ApplyConflict, apply

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_SAID: Final = ("uid", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds")
"""What an applied configuration says of the object that it is for; none of it is owned by its manager."""


def media_type(call: Call) -> str:
    """The patch's format."""
    return call.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def patch(store: Store, writer: Writer, call: Call) -> tuple[Json, bool]:
    """The object after the patch, and whether it was created (server-side apply only)."""
    if media_type(call) == APPLY_PATCH:
        return _server_side_apply(store, writer, call)
    changer = patch_changer(call, call.kind)
    target = call.target
    options = replace(call.write_options(), patched=True)
    obj = writer.update(call.kind, target.namespace, target.name, changer, options, subresource=target.subresource)
    return obj, False


def patch_changer(call: Call, kind: Kind) -> Changer:
    """A function that applies the request's JSON, merge or strategic merge patch to an object of `kind`."""
    kind_of_patch = media_type(call)
    strategic = kind.custom is None
    if kind_of_patch not in (JSON_PATCH, MERGE_PATCH) and not (strategic and kind_of_patch == STRATEGIC_PATCH):
        accepted = [JSON_PATCH, MERGE_PATCH, *([STRATEGIC_PATCH] if strategic else []), APPLY_PATCH]
        raise errors.unsupported_media_type(accepted)
    body = parse_body(call.raw, "application/json")
    if kind_of_patch == JSON_PATCH and not (isinstance(body, list) and all(isinstance(item, dict) for item in body)):
        raise errors.bad_request("error decoding patch: a JSON patch is a list of operations")

    def change(live: Json) -> Json:
        obj = json_copy(live)
        try:
            changed: Any
            if kind_of_patch == JSON_PATCH:
                changed = json_patch(obj, body)
            elif kind_of_patch == MERGE_PATCH:
                changed = merge_patch(obj, as_object(body))
            else:
                changed = strategic_merge_patch(obj, as_object(body), kind.kind)
        except PatchError as error:
            code = 422 if kind_of_patch == JSON_PATCH else 400
            raise ApiError(code, str(error)) from None
        return as_object(changed)

    return change


def _server_side_apply(store: Store, writer: Writer, call: Call) -> tuple[Json, bool]:
    target, kind, query = call.target, call.kind, call.query
    if not query.get("fieldManager"):
        text = "fieldManager: Required value: is required for apply patch"
        raise ApiError(422, f'PatchOptions.meta.k8s.io "" is invalid: {text}')
    options = call.write_options()
    applied = _applied(call)
    metadata = applied["metadata"]
    lists = writer.strategy(kind).lists

    def change(live: Json | None) -> Json:
        try:
            merged = apply(
                json_copy(live), json_copy(applied), manager=options.manager, force=flag(query, "force"),
                lists=lists, now=now_text(), subresource=target.subresource,
            )  # fmt: skip
        except ApplyConflict as conflict:
            raise ApiError(
                409,
                str(conflict),
                details=errors.details(kind.group, kind.plural, target.name, causes=_causes(conflict)),
            ) from None
        return merged | {"metadata": merged["metadata"] | {name: metadata[name] for name in _SAID if name in metadata}}

    stored = store.get(kind.storage, target.namespace, target.name)
    if stored is None:
        if target.subresource:
            raise errors.not_found(kind.group, kind.plural, target.name)
        if metadata.get("uid") or metadata.get("resourceVersion"):
            raise errors.conflict(kind.group, kind.plural, target.name, errors.OBJECT_MODIFIED)
        return writer.create(kind, target.namespace, change(None), options, managed=True), True
    obj = writer.update(
        kind, target.namespace, target.name, change, options, subresource=target.subresource, managed=True
    )
    return obj, False


def _applied(call: Call) -> Json:
    """The configuration that is applied, restricted to what the path may change."""
    target, kind = call.target, call.kind
    applied = as_object(parse_yaml(call.raw))
    metadata = applied.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise errors.bad_request("metadata is not an object")
    if not (applied.get("apiVersion") and applied.get("kind")):
        raise errors.bad_request("apiVersion and kind must be set in an apply patch")
    if metadata.get("managedFields"):
        raise errors.bad_request("metadata.managedFields must be nil")
    metadata.setdefault("name", target.name)
    if kind.namespaced:
        metadata.setdefault("namespace", target.namespace)
    check_body(kind, target.namespace, applied, name=target.name)
    if target.subresource:
        names = ("apiVersion", "kind", "metadata", target.subresource)
        applied = {name: applied[name] for name in names if name in applied}
    elif kind.resets_status:
        applied.pop("status", None)  # neither written nor owned: the status has its own path
    return canonical_or_refused(kind, applied) if kind.custom is None else applied


def _causes(conflict: ApplyConflict) -> list[Json]:
    return [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in conflict.causes]
