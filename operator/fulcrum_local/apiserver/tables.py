"""Table answers: what `kubectl get` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.json_path import first_text, values_at
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.printers import BUILTIN_COLUMNS, Column
from fulcrum_local.apiserver.times import age

_META: Final = "meta.k8s.io/v1"
_NAME: Final = Column("Name", lambda obj: obj["metadata"]["name"], format="name")
_AGE: Final = Column("Age", lambda obj: age(obj["metadata"].get("creationTimestamp")))


@dataclass(frozen=True, slots=True)
class _CustomCell:
    """Reads one `additionalPrinterColumns` entry."""

    json_path: str
    type: str

    def __call__(self, obj: Json) -> Any:
        values = values_at(obj, self.json_path)
        if not values or values[0] is None:
            return None
        if self.type == "date":
            return age(values[0]) if isinstance(values[0], str) else "<unknown>"
        if self.type in ("integer", "number"):
            return values[0]
        if self.type == "boolean":
            return values[0]
        return first_text(values)


def columns_of(kind: Kind) -> Sequence[Column]:
    """Columns of a kind, the name first."""
    if kind.custom is None:
        return (_NAME, *BUILTIN_COLUMNS.get(kind.storage, (_AGE,)))
    if not kind.custom.printer_columns:
        return (_NAME, _AGE)
    return (
        _NAME,
        *(
            Column(
                column["name"],
                _CustomCell(column["jsonPath"], column["type"]),
                type=column["type"],
                format=column.get("format", ""),
                priority=column.get("priority", 0),
                description=column.get("description", ""),
            )
            for column in kind.custom.printer_columns
        ),
    )


def table(kind: Kind, objects: Sequence[Json], include: str, list_metadata: Json) -> Json:
    """A `meta.k8s.io/v1` Table of objects; `include` says how much of each object a row carries."""
    columns = columns_of(kind)
    return {
        "kind": "Table",
        "apiVersion": _META,
        "metadata": list_metadata,
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description or f"{column.name} of the {kind.kind}.",
                "priority": column.priority,
            }
            for column in columns
        ],
        "rows": [_row(columns, obj, include) for obj in objects],
    }


def _row(columns: Sequence[Column], obj: Json, include: str) -> Json:
    row: Json = {"cells": [_cell(column.cell, obj) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include != "None":
        row["object"] = {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": obj["metadata"]}
    return row


def _cell(read: Callable[[Json], Any], obj: Json) -> Any:
    try:
        return read(obj)
    except (KeyError, TypeError, IndexError, AttributeError):
        # An object without what the column shows must not break the listing of the others.
        return "<unset>"
