"""`/openapi/v3` and `/openapi/v2`: what kubectl reads for `explain`, `apply`, `create` and `edit`.

Documents are built at the first request and kept until a CRD changes.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from aiohttp import web

from fulcrum import __version__
from fulcrum_local.apiserver import errors, openapi_protobuf
from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.kinds import Kind, Registry
from fulcrum_local.apiserver.model_types import model_of
from fulcrum_local.apiserver.openapi_models import add_model, in_version_2, reference
from fulcrum_local.apiserver.presentation import encode

_PATCH_TYPES: Final = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
# Without strategic merge patch in the documents, kubectl takes the merge keys from its own types: they are complete.
_ACTIONS: Final = {
    "get": "get", "list": "list", "create": "post", "update": "put", "patch": "patch", "delete": "delete",
    "deletecollection": "deletecollection",
}  # fmt: skip
_METHODS: Final = {
    True: {"get": "get", "update": "put", "patch": "patch", "delete": "delete"},
    False: {"list": "get", "create": "post", "deletecollection": "delete"},
}
_WRITES: Final = frozenset({"create", "update", "patch"})


class OpenApi:
    """Serves `/openapi/...` for what the registry holds."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._documents: dict[str, bytes] = {}

    def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer a GET below `/openapi/`."""
        if self._generation != self._registry.generation:
            self._documents.clear()
            self._generation = self._registry.generation
        path = request.path.removeprefix("/openapi/").strip("/")
        accept = request.headers.get("Accept", "")
        if path == "v2" and openapi_protobuf.MEDIA_TYPE in accept:
            return self._answer_protobuf()
        if accept and not any(wanted in accept for wanted in ("json", "*/*")):
            raise ApiError(406, "only application/json is served for OpenAPI documents")
        if path not in self._documents:
            document = self._build(path)
            if document is None:
                raise errors.no_such_path()
            self._documents[path] = encode(document)
        body = self._documents[path]
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304, headers={"ETag": etag})
        return web.Response(body=body, content_type="application/json", headers={"ETag": etag, "Vary": "Accept"})

    def _answer_protobuf(self) -> web.Response:
        if "v2.pb" not in self._documents:
            document = _document(list(self._registry))
            info = document["info"]
            self._documents["v2.pb"] = openapi_protobuf.version_2_protobuf(
                info["title"], info["version"], document["paths"].items()
            )
        return web.Response(body=self._documents["v2.pb"], headers={"Content-Type": openapi_protobuf.CONTENT_TYPE})

    def _build(self, path: str) -> Json | None:
        if path == "v2":
            return self._version_2()
        if path == "v3":
            return {"paths": {name: {"serverRelativeURL": self._url(name)} for name in self._groups()}}
        group_path = path.removeprefix("v3/")
        kinds = self._groups().get(group_path)
        return _document(kinds) if kinds else None

    def _groups(self) -> dict[str, list[Kind]]:
        """Kinds by `api/v1` or `apis/<group>/<version>`."""
        groups: dict[str, list[Kind]] = {}
        for kind in self._registry:
            groups.setdefault(f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}", []).append(kind)
        return groups

    def _url(self, group_path: str) -> str:
        """The hash in the URL lets clients keep a document for ever, so it changes with the document."""
        schemas = [kind.custom.open_api_v3_schema for kind in self._groups()[group_path] if kind.custom]
        digest = hashlib.sha256(encode([__version__, schemas])).hexdigest()[:32].upper()
        return f"/openapi/v3/{group_path}?hash={digest}"

    def _version_2(self) -> Json:
        document = _document(list(self._registry))
        return {
            "swagger": "2.0",
            "info": document["info"],
            "paths": {path: _operations_2(item) for path, item in document["paths"].items()},
            "definitions": in_version_2(document["components"]["schemas"]),
        }


def _document(kinds: list[Kind]) -> Json:
    schemas: dict[str, Json] = {}
    paths: dict[str, Json] = {}
    for kind in kinds:
        name = _add_kind(schemas, kind)
        _add_paths(paths, kind, name)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": f"v1.37.0+fulcrum-{__version__}"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _gvk(kind: Kind) -> Json:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _add_kind(schemas: dict[str, Json], kind: Kind) -> str:
    if kind.custom is not None:
        return _add_custom(schemas, kind)
    model = model_of(kind.group, kind.version, kind.kind)
    assert model is not None, kind
    name = add_model(schemas, model)
    _mark(schemas[name], _gvk(kind))
    list_model = model_of(kind.group, kind.version, kind.list_kind)
    if list_model is not None:
        list_name = add_model(schemas, list_model)
        _mark(schemas[list_name], {**_gvk(kind), "kind": kind.list_kind})
    return name


def _mark(schema: Json, gvk: Json) -> None:
    marked = schema.setdefault("x-kubernetes-group-version-kind", [])
    if gvk not in marked:
        marked.append(gvk)


def _add_custom(schemas: dict[str, Json], kind: Kind) -> str:
    assert kind.custom is not None
    prefix = ".".join(reversed(kind.group.split(".")))
    name = f"{prefix}.{kind.version}.{kind.kind}"
    metadata_model, list_metadata = model_of("meta", "v1", "ObjectMeta"), model_of("meta", "v1", "ListMeta")
    assert metadata_model is not None
    assert list_metadata is not None
    schema: Json = {**kind.custom.open_api_v3_schema, "x-kubernetes-group-version-kind": [_gvk(kind)]}
    type_text = "Standard Kubernetes type information; the server knows it from the path."
    schema["properties"] = {
        "apiVersion": {"type": "string", "description": f"Version of the API: {kind.api_version}. {type_text}"},
        "kind": {"type": "string", "description": f"Kind of the object: {kind.kind}. {type_text}"},
        "metadata": {
            "description": "Standard object's metadata: name, namespace, labels, annotations and the like.",
            "allOf": [reference(add_model(schemas, metadata_model))],
        },
        **{
            key: value
            for key, value in (schema.get("properties") or {}).items()
            if key not in ("apiVersion", "kind", "metadata")
        },
    }
    schemas[name] = schema
    schemas[f"{name}List"] = {
        "type": "object",
        "description": f"{kind.list_kind} is a list of {kind.kind}.",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"allOf": [reference(add_model(schemas, list_metadata))]},
            "items": {"type": "array", "items": reference(name)},
        },
        "x-kubernetes-group-version-kind": [{**_gvk(kind), "kind": kind.list_kind}],
    }
    return name


def _add_paths(paths: dict[str, Json], kind: Kind, schema: str) -> None:
    root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
    collection = f"{root}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"
    if kind.namespaced and "list" in kind.verbs:
        paths[f"{root}/{kind.plural}"] = {"get": _operation(kind, "list", schema)}
    for of_object, path in ((False, collection), (True, f"{collection}/{{name}}")):
        operations = {
            method: _operation(kind, verb, schema) for verb, method in _METHODS[of_object].items() if verb in kind.verbs
        }
        if operations:
            paths[path] = operations
    if kind.subresource("status") is not None:
        paths[f"{collection}/{{name}}/status"] = {
            method: _operation(kind, verb, schema)
            for verb, method in (("get", "get"), ("update", "put"), ("patch", "patch"))
        }


def _operation(kind: Kind, verb: str, schema: str) -> Json:
    listed = verb in ("list", "deletecollection")
    content = {"application/json": {"schema": reference(f"{schema}List" if listed else schema)}}
    operation: Json = {
        "operationId": f"{verb}{kind.group.replace('.', '')}{kind.version}{kind.kind}",
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": _ACTIONS[verb],
        "x-kubernetes-group-version-kind": _gvk(kind),
    }
    names = ["dryRun", "fieldManager", "fieldValidation"] if verb in _WRITES else []
    if verb == "patch":
        names.append("force")
    operation["parameters"] = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
    if verb in _WRITES:
        types = _PATCH_TYPES if verb == "patch" else ("*/*",)
        operation["requestBody"] = {"content": {media: {"schema": reference(schema)} for media in types}}
    return operation


def _operations_2(item: Json) -> Json:
    return {method: _operation_2(operation) for method, operation in item.items()}


def _operation_2(operation: Json) -> Json:
    converted: Json = {key: value for key, value in operation.items() if key not in ("requestBody", "responses")}
    parameters: list[Any] = [
        {"name": parameter["name"], "in": "query", "type": "string"} for parameter in operation["parameters"]
    ]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    if "requestBody" in operation:
        parameters.append({"name": "body", "in": "body", "required": True, "schema": in_version_2(schema)})
    converted["parameters"] = parameters
    converted["responses"] = {"200": {"description": "OK", "schema": in_version_2(schema)}}
    return converted
