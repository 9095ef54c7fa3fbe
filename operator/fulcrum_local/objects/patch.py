"""JSON patch, merge patch and strategic merge patch on Kubernetes objects; none changes its argument."""

from __future__ import annotations

from typing import Any

import jsonpatch
import jsonpointer

from fulcrum.api.schema.json_copy import json_copy
from fulcrum_local.objects.builtin_shapes import shape_of

Schema = dict[str, Any]
_DIRECTIVE = "$patch"
_RETAIN_KEYS = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"


class PatchError(ValueError):
    """The patch is malformed, or does not fit the object; an API server answers 400 or 422."""


def json_patch(obj: dict[str, Any], ops: Any) -> dict[str, Any]:
    """Apply a JSON patch (RFC 6902); raises PatchError."""
    if not isinstance(ops, list):
        raise PatchError("a JSON patch is a list of operations")
    try:
        patched = jsonpatch.JsonPatch(ops).apply(obj)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError) as error:
        raise PatchError(str(error)) from error
    if not isinstance(patched, dict):
        raise PatchError("the patch does not leave an object")
    return patched


def merge_patch(obj: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386): null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return json_copy(patch)
    result = json_copy(obj) if isinstance(obj, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def strategic_merge_patch(obj: dict[str, Any], patch: dict[str, Any], kind: str) -> dict[str, Any]:
    """Apply a strategic merge patch to an object of a built-in `kind`; raises PatchError.

    Source: https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
    """
    if not isinstance(patch, dict):
        raise PatchError("a strategic merge patch is an object")
    return _merged_map(obj, patch, shape_of(kind))


def _merged_map(obj: dict[str, Any], patch: dict[str, Any], schema: Schema) -> dict[str, Any]:
    match patch.get(_DIRECTIVE):
        case None | "merge":
            result = _prepared(obj, patch)
        case "replace":
            return json_copy({name: value for name, value in patch.items() if name != _DIRECTIVE})
        case "delete":
            return {}
        case other:
            raise PatchError(f"unknown patch type found: {other}")
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value, _child(schema, name), patch.get(_ORDER + name))
    for name, order in patch.items():
        field = name.removeprefix(_ORDER)
        if name.startswith(_ORDER) and field not in patch and isinstance(result.get(field), list):
            result[field] = _ordered(result[field], result[field], order, _merge_key(_child(schema, field)))
    return result


def _prepared(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A copy of the object without what the patch's directives remove."""
    result = json_copy(obj)
    if _RETAIN_KEYS in patch:
        result = _retained(result, patch)
    for name, values in patch.items():
        field = name.removeprefix(_DELETE_PRIMITIVES)
        if field != name and field in result:
            result[field] = [item for item in result[field] if item not in values]
    return result


def _retained(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    retained = patch[_RETAIN_KEYS]
    stray = [name for name, value in patch.items() if value is not None and name not in retained and name[0] != "$"]
    if stray:
        raise PatchError(f"unexpected keys outside of {_RETAIN_KEYS}: {', '.join(stray)}")
    return {name: value for name, value in obj.items() if name in retained}


def _child(schema: Schema, name: str) -> Schema:
    known: Schema = schema.get("properties", {}).get(name, {})
    return known


def _merge_key(schema: Schema) -> str:
    key: str = schema.get("x-kubernetes-patch-merge-key", "")
    return key


def _merged(old: Any, value: Any, schema: Schema, order: list[Any] | None) -> Any:
    if isinstance(value, dict):
        return _merged_map(old if isinstance(old, dict) else {}, value, schema)
    if not isinstance(value, list) or "merge" not in schema.get("x-kubernetes-patch-strategy", "").split(","):
        return json_copy(value)
    before = old if isinstance(old, list) else []
    key = _merge_key(schema)
    merged = _merged_maps(before, value, key, schema.get("items", {})) if key else _merged_primitives(before, value)
    return merged if order is None else _ordered(merged, before, order, key)


def _merged_primitives(old: list[Any], patch: list[Any]) -> list[Any]:
    return [*old, *(value for value in dict.fromkeys(patch) if value not in old)]


def _merged_maps(old: list[Any], patch: list[Any], key: str, items: Schema) -> list[Any]:
    for item in patch:
        if not isinstance(item, dict):
            raise PatchError(f"expected an object with the merge key {key}, found {item!r}")
    additions = [item for item in patch if item.get(_DIRECTIVE) not in {"replace", "delete"} or key in item]
    if any(item.get(_DIRECTIVE) == "replace" and key not in item for item in patch):
        return json_copy(additions)
    result = json_copy(old)
    for item in additions:
        if key not in item:
            raise PatchError(f"map: {item} does not contain declared merge key: {key}")
        position = next((index for index, each in enumerate(result) if each.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            result = [each for each in result if each.get(key) != item[key]]
        elif position is None:
            result.append(_merged_map({}, item, items))
        else:
            result[position] = _merged_map(result[position], item, items)
    return result


def _ordered(merged: list[Any], before: list[Any], order: list[Any], key: str) -> list[Any]:
    """Items that `order` names in its order; the others keep their place relative to the list as it was."""

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    places = [identity(item) for item in before]
    named = sorted((item for item in merged if identity(item) in wanted), key=lambda item: wanted.index(identity(item)))
    others = [item for item in merged if identity(item) not in wanted]
    result: list[Any] = []
    for item in named:
        place = places.index(identity(item)) if identity(item) in places else 0
        while others and identity(others[0]) in places and places.index(identity(others[0])) < place:
            result.append(others.pop(0))
        result.append(item)
    return [*result, *others]
