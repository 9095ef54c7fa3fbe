"""From a body to an object of its kind: what a body must say of itself, and fields that the kind does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fulcrum_local.apiserver import errors
from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.metadata import metadata_shape_problem
from fulcrum_local.apiserver.strategies import Strategy, unknown_field_texts
from fulcrum_local.apiserver.write_options import WriteOptions


def check_body(kind: Kind, namespace: str, body: Any, *, name: str = "", patched: bool = False) -> None:
    """Refuse a body that is not an object of the kind, name and namespace in the path: 400, and 422 where a patch or a
    custom resource names another kind."""
    if not isinstance(body, dict):
        raise errors.bad_request("the object provided is unrecognized (must be a JSON object)")
    said_kind, said_version = body.get("kind", kind.kind), body.get("apiVersion", kind.api_version)
    if said_kind != kind.kind and said_version == kind.api_version and (patched or kind.custom is not None):
        causes = [errors.invalid_value("kind", said_kind, f"must be {kind.kind}")]
        raise errors.invalid(kind.group, kind.kind, name or _name(body), causes)
    if said_kind != kind.kind or said_version != kind.api_version:
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): "
            f"{said_version}, Kind={said_kind} does not match the expected {kind.api_version}, Kind={kind.kind}"
        )
    metadata = body.get("metadata") or {}
    if problem := metadata_shape_problem(metadata):
        raise errors.bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {problem}'
        )
    if kind.namespaced and metadata.get("namespace", namespace) != namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if name and metadata.get("name") != name:
        raise errors.bad_request(
            f"the name of the object ({metadata.get('name', '')}) does not match the name on the URL ({name})"
        )
    body["kind"], body["apiVersion"] = kind.kind, kind.api_version


def decoded(strategy: Strategy, kind: Kind, body: Json, options: WriteOptions) -> Json:
    """Return the object without fields that its kind does not have. Strict refuses them; Warn notes them."""
    obj, unknown = strategy.decode(body)
    texts = [*(f'duplicate field "{path}"' for path in options.duplicates), *unknown_field_texts(unknown)]
    if options.field_validation == "Strict" and texts:
        raise _strict(kind, texts, patched=options.patched)
    if options.field_validation == "Warn":
        options.warnings.extend(texts)
    metadata = obj.get("metadata") or {}
    obj["metadata"] = {name: value for name, value in metadata.items() if value not in (None, [], {}, "")}
    return obj


def _strict(kind: Kind, texts: Sequence[str], *, patched: bool) -> ApiError:
    said = f"strict decoding error: {', '.join(texts)}"
    if patched:
        # What a patch leads to is judged as a value of the field "patch", of no kind.
        return errors.invalid("", "", "", [errors.invalid_value("patch", {}, said)])
    return errors.bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {said}')


def _name(body: Json) -> str:
    metadata = body.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
