"""In which form an answer goes out: plain JSON, a Table for `kubectl get`, or metadata only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fulcrum_local.apiserver import tables
from fulcrum_local.apiserver.conversion import is_stored_form, served_form
from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.reading import Page, list_metadata
from fulcrum_local.apiserver.store import Stored

encode: Final = msgspec.json.Encoder().encode
_META: Final = "meta.k8s.io/v1"
_JSON_TYPES: Final = frozenset({"application/json", "*/*", "application/*"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """`kind` is empty for the object itself, else Table, PartialObjectMetadata or PartialObjectMetadataList."""

    kind: str = ""
    include: str = "Metadata"
    """How much of each object a Table row carries: None, Metadata or Object."""

    @property
    def content_type(self) -> str:
        """Content type of the answer; client-go tells a Table from an object by the body, but real servers say it."""
        return "application/json"


def negotiate(accept: str, query: Mapping[str, str]) -> Form:
    """The first form in an Accept header that the server can produce; 406 when there is none."""
    for clause in accept.split(",") if accept else ["application/json"]:
        media_type, *parameters = (part.strip() for part in clause.split(";"))
        if media_type not in _JSON_TYPES:
            continue
        options = dict(part.split("=", 1) for part in parameters if "=" in part)
        kind = options.get("as", "")
        if not kind or options.get("g") != "meta.k8s.io":
            return Form()
        if kind in ("Table", "PartialObjectMetadata", "PartialObjectMetadataList") and options.get("v") == "v1":
            return Form(kind=kind, include=query.get("includeObject", "Metadata") or "Metadata")
    if "application/vnd.kubernetes.protobuf" in accept or "yaml" in accept:
        return Form()
    raise ApiError(
        406,
        "only the following media types are accepted: application/json, "
        "application/json;as=Table;g=meta.k8s.io;v=v1, application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    )


def object_bytes(kind: Kind, stored: Stored) -> bytes:
    """JSON of a stored object in the version of `kind`."""
    return stored.raw if is_stored_form(kind, stored.obj) else encode(served_form(kind, stored.obj))


def present_object(kind: Kind, obj: Json, form: Form) -> bytes:
    """One object in the asked-for form."""
    if form.kind == "Table":
        return encode(tables.table(kind, [obj], form.include, {"resourceVersion": _version(obj)}))
    if form.kind.startswith("PartialObjectMetadata"):
        return encode(partial(obj))
    return encode(obj)


def present_page(kind: Kind, page: Page, form: Form) -> bytes:
    """A list in the asked-for form."""
    metadata = list_metadata(page)
    if form.kind == "Table":
        objects = [served_form(kind, stored.obj) for stored in page.items]
        return encode(tables.table(kind, objects, form.include, metadata))
    if form.kind.startswith("PartialObjectMetadata"):
        items = [partial(stored.obj) for stored in page.items]
        return encode({"kind": "PartialObjectMetadataList", "apiVersion": _META, "metadata": metadata, "items": items})
    head = encode({"kind": kind.list_kind, "apiVersion": kind.api_version, "metadata": metadata})
    body = b",".join([object_bytes(kind, stored) for stored in page.items])
    return head[:-1] + b',"items":[' + body + b"]}"


def partial(obj: Json) -> Json:
    """An object's metadata alone."""
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": obj["metadata"]}


def _version(obj: Json) -> str:
    return str(obj["metadata"].get("resourceVersion", ""))
