"""A structural OpenAPI v3 schema of a CustomResourceDefinition: defaults, pruning, validation, unknown fields.

Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

from __future__ import annotations

from typing import Any

from fulcrum.api.schema import field_error, shape, values
from fulcrum.api.schema.field_error import FieldError

__all__ = ["FieldError", "StructuralSchema"]

_BLOCKING = frozenset({"FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid"})
"""After one of these an API server does not evaluate CEL rules: they may assume a well-typed object."""


class StructuralSchema:
    """The schema of one version of a custom resource; objects are JSON values and are never changed in place."""

    def __init__(self, open_api_v3_schema: dict[str, Any], *, rules: bool = True) -> None:
        """`open_api_v3_schema` is `spec.versions[].schema.openAPIV3Schema`.

        CEL rules need the package that the extra `local` installs; without `rules` it is not imported.
        """
        self._schema = open_api_v3_schema
        self._has_rules = rules and shape.has_rules(open_api_v3_schema)

    def default(self, obj: dict[str, Any]) -> dict[str, Any]:
        """`obj` with defaults; null where null is not allowed counts as absent."""
        defaulted: dict[str, Any] = shape.defaulted(obj, self._schema)
        return defaulted

    def prune(self, obj: dict[str, Any]) -> dict[str, Any]:
        """`obj` without fields that the schema does not know."""
        pruned: dict[str, Any] = shape.pruned(obj, shape.as_resource(self._schema))
        return pruned

    def unknown_fields(self, obj: dict[str, Any]) -> list[str]:
        """Paths of the fields that `prune` removes, for fieldValidation=Strict and Warn."""
        return shape.unknown_fields(obj, shape.as_resource(self._schema), "")

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None = None) -> list[FieldError]:
        """What is wrong with `obj`; on an update, values that equal those of `old` are not complained about again."""
        errors = values.errors_of(obj, self._schema, "", old=old)
        if not self._has_rules:
            return errors
        if any(error.reason in _BLOCKING for error in errors):
            unchecked = (
                "some validation rules were not checked because the object was invalid; "
                "correct the existing errors to complete validation"
            )
            return [*errors, field_error.invalid("", None, unchecked)]
        from fulcrum.api.schema import rules

        return [*errors, *rules.errors_of(obj, self._schema, "", old=old)]

    def rule_problems(self) -> list[FieldError]:
        """CEL rules of the schema itself that do not compile (a CRD with one is refused)."""
        from fulcrum.api.schema import rules

        return rules.problems(self._schema, "openAPIV3Schema")
