"""`/openapi/v2` in protobuf, for clients that read nothing else there.

kubectl falls back to it when OpenAPI v3 does not know a kind, to find out whether the server validates fields itself.
So it carries the patch operation of every kind, and no schemas: those are in v3.
Source: gnostic's `OpenAPIv2.proto` (field numbers).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from fulcrum_local.apiserver.errors import Json

MEDIA_TYPE: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
CONTENT_TYPE: Final = MEDIA_TYPE.replace("@", ".")
"""What clients ask for is no valid media type, so the answer names another one; a real server does the same."""


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(raw)) + raw


def _named(name: str, value: bytes) -> bytes:
    return _field(1, name) + _field(2, value)


def _query_parameter(name: str) -> bytes:
    query = _field(2, "query") + _field(4, name) + _field(6, "string")
    return _field(1, _field(2, _field(3, query)))  # ParametersItem > Parameter > NonBodyParameter


def _operation(operation: Json) -> bytes:
    parameters = b"".join(_field(8, _query_parameter(parameter["name"])) for parameter in operation["parameters"])
    extensions = b"".join(
        _field(13, _named(name, _field(2, msgspec.json.encode(operation[name]))))  # JSON is YAML
        for name in ("x-kubernetes-action", "x-kubernetes-group-version-kind")
    )
    consumes = b"".join(_field(7, media) for media in operation["requestBody"]["content"])
    return _field(5, operation["operationId"]) + consumes + parameters + extensions


def version_2_protobuf(title: str, version: str, paths: Iterable[tuple[str, Json]]) -> bytes:
    """The document; `paths` are those of OpenAPI v3, of which the patch operations are taken."""
    items = b"".join(
        _field(2, _named(path, _field(8, _operation(item["patch"])))) for path, item in paths if "patch" in item
    )
    return _field(1, "2.0") + _field(2, _field(1, title) + _field(2, version)) + _field(8, items)
