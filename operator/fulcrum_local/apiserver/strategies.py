"""How objects of a kind are decoded, defaulted and validated: built-in kinds by their models, custom ones by schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fulcrum.api.schema.structural import FieldError, StructuralSchema
from fulcrum_local.apiserver.builtin_rules import builtin_causes
from fulcrum_local.apiserver.canonical import canonical
from fulcrum_local.apiserver.defaults import default_builtin
from fulcrum_local.apiserver.errors import Json, bad_request
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.model_types import decode_object, model_of
from fulcrum_local.objects.list_types import ListTypes


class Strategy(Protocol):
    """What differs between kinds when an object is written."""

    @property
    def lists(self) -> ListTypes:
        """How server-side apply merges the kind's lists."""
        ...

    def decode(self, obj: Json) -> tuple[Json, list[str]]:
        """The object without unknown fields, and their paths; 400 when it cannot be read as the kind."""
        ...

    def default(self, obj: Json) -> Json:
        """The object with defaults filled in."""
        ...

    def causes(self, obj: Json, old: Json | None) -> list[Json]:
        """Wrong fields, as causes of an `invalid` error."""
        ...


class BuiltinStrategy:
    """Built-in kinds."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._model = model_of(kind.group, kind.version, kind.kind)
        self.lists = ListTypes.for_builtin(kind.kind)

    def decode(self, obj: Json) -> tuple[Json, list[str]]:
        """Decode as the Go struct of the kind would be."""
        assert self._model is not None, self._kind
        decoded, unknown = decode_object(obj, self._model, self._kind.kind, self._kind.version)
        return canonical_or_refused(self._kind, decoded), unknown

    def default(self, obj: Json) -> Json:
        """Fill in, in place."""
        default_builtin(self._kind.storage, obj)
        return obj

    def causes(self, obj: Json, old: Json | None) -> list[Json]:
        """Required fields by the model, the rest by rules."""
        assert self._model is not None
        return builtin_causes(self._kind, self._model, obj, old)


def canonical_or_refused(kind: Kind, obj: Json) -> Json:
    """An object of a built-in kind with canonical quantities and times; 400 for one that cannot be read."""
    try:
        return canonical(obj)
    except ValueError as error:
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {error}'
        ) from None


class CustomStrategy:
    """Kinds of a CustomResourceDefinition."""

    def __init__(self, schema: Json) -> None:
        self._schema = StructuralSchema(schema)
        self.lists = ListTypes.for_schema(schema)

    def decode(self, obj: Json) -> tuple[Json, list[str]]:
        """Prune what the schema does not know."""
        return self._schema.prune(obj), self._schema.unknown_fields(obj)

    def default(self, obj: Json) -> Json:
        """Defaults of the schema."""
        return self._schema.default(obj)

    def causes(self, obj: Json, old: Json | None) -> list[Json]:
        """Schema and CEL rules."""
        return [_cause(error) for error in self._schema.validate(obj, old)]


def _cause(error: FieldError) -> Json:
    return {"reason": error.reason, "message": str(error).removeprefix(f"{error.path}: "), "field": error.path}


class Strategies:
    """Strategies by kind; compiling a schema is expensive, so each is made once for each definition."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str, str], tuple[Any, Strategy]] = {}

    def of(self, kind: Kind) -> Strategy:
        """The strategy of a kind."""
        path = (kind.group, kind.version, kind.kind)
        schema = kind.custom.open_api_v3_schema if kind.custom else None
        made = self._made.get(path)
        if made is None or made[0] is not schema:
            strategy: Strategy = CustomStrategy(schema) if schema is not None else BuiltinStrategy(kind)
            made = self._made[path] = (schema, strategy)
        return made[1]


def unknown_field_texts(paths: Sequence[str]) -> list[str]:
    """Texts of strict decoding for unknown fields."""
    return [f'unknown field "{path}"' for path in paths]
