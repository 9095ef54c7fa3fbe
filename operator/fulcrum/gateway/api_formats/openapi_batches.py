"""Files and batches in the OpenAPI document of a gateway that passes them on."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]
_REFUSED: Final = ("400", "401", "404", "413", "415", "429", "500", "502", "503")
_UPLOAD: Final[Json] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                    "purpose": {"type": "string", "const": "batch"},
                },
            }
        }
    },
}
_CREATION: Final[Json] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["input_file_id", "endpoint"],
                "properties": {
                    "input_file_id": {"type": "string"},
                    "endpoint": {"type": "string"},
                    "completion_window": {"type": "string", "default": "24h"},
                    "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            }
        }
    },
}


def batch_paths(security: list[Json]) -> Json:
    """What is served with `spec.batch`."""
    return {
        "/v1/files": {
            "post": _operation("createFile", security, "The file.", body=_UPLOAD),
            "get": _operation("listFiles", security, "A page of the key's files."),
        },
        "/v1/files/{id}": {
            "get": _operation("getFile", security, "The file.", of_one=True),
            "delete": _operation("deleteFile", security, "The file is gone.", of_one=True),
        },
        "/v1/files/{id}/content": {
            "get": _operation("getFileContent", security, "The content.", of_one=True, media="application/octet-stream")
        },
        "/v1/batches": {
            "post": _operation("createBatch", security, "The batch.", body=_CREATION),
            "get": _operation("listBatches", security, "A page of the key's batches."),
        },
        "/v1/batches/{id}": {"get": _operation("getBatch", security, "The batch, with its progress.", of_one=True)},
        "/v1/batches/{id}/cancel": {"post": _operation("cancelBatch", security, "The batch.", of_one=True)},
    }


def _operation(
    name: str,
    security: list[Json],
    answer: str,
    *,
    body: Json | None = None,
    of_one: bool = False,
    media: str = "application/json",
) -> Json:
    schema: Json = {"type": "object"} if media == "application/json" else {"type": "string"}
    operation: Json = {
        "operationId": name,
        "security": security,
        "responses": {
            "200": {"description": answer, "content": {media: {"schema": schema}}},
            **{code: {"$ref": f"#/components/responses/Error{code}"} for code in _REFUSED},
        },
    }
    if body is not None:
        operation["requestBody"] = body
    if of_one:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation
