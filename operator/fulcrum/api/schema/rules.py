"""CEL rules (`x-kubernetes-validations`) of a structural schema, evaluated as an API server does.

Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fulcrum.api.schema import cel, correlation, field_error
from fulcrum.api.schema.cel_values import to_cel
from fulcrum.api.schema.field_error import FieldError, child, index
from fulcrum.api.schema.shape import RULES, as_resource, child_schema, rules_of

Schema = dict[str, Any]
_TYPE_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}


def problems(schema: Schema, path: str) -> list[FieldError]:
    """The rules that do not compile."""
    found = []
    for where, rule in rules_of(schema, path):
        for field in ("rule", "messageExpression"):
            try:
                if rule.get(field):
                    cel.compiled(rule[field])
            except cel.CelSyntaxError as error:
                found.append(field_error.invalid(child(where, field), rule[field], f"compilation failed: {error}"))
    return found


def errors_of(value: Any, schema: Schema, path: str, *, old: Any = None) -> list[FieldError]:
    """The rules that `value` breaks; `old` is what it is compared with on an update, None when there is nothing."""
    return list(_errors(value, schema, path, old))


def _errors(value: Any, schema: Schema, path: str, old: Any) -> Iterator[FieldError]:
    if value is None:
        return
    if schema.get(RULES):
        yield from _own_errors(value, schema, path, old)
    if isinstance(value, list):
        items = schema.get("items", {})
        for position, item in enumerate(value):
            yield from _errors(item, items, index(path, position), correlation.old_item(item, old, schema))
    elif isinstance(value, dict):
        for name, item in value.items():
            if not path and name == "metadata":
                continue
            known = child_schema(schema, name)
            if known is not None:
                yield from _errors(item, known, child(path, name), correlation.old_entry(name, old, schema))


def _own_errors(value: Any, schema: Schema, path: str, old: Any) -> Iterator[FieldError]:
    unchanged = old is not None and old == value
    self_value = old_value = None
    for rule in schema[RULES]:
        program = cel.compiled(rule["rule"])
        is_transition = "oldSelf" in program.variables
        if is_transition and old is None and not rule.get("optionalOldSelf"):
            continue  # it says nothing about a new value
        if unchanged and not is_transition:
            continue  # accepted before this rule existed
        # What rules see is made when the first of them is evaluated: large objects cost more than rules.
        self_value = _self(value, schema, path) if self_value is None else self_value
        variables: dict[str, Any] = {"self": self_value}
        if is_transition:
            old_value = _self(old, schema, path) if old is not None and old_value is None else old_value
            optional = rule.get("optionalOldSelf")
            variables["oldSelf"] = _optional(old_value, known=old is not None) if optional else old_value
        error = _failure(rule, program, variables, path, value)
        if error is not None:
            yield error


def _optional(old_value: Any, *, known: bool) -> Any:
    return cel.present(old_value) if known else cel.absent()


def _self(value: Any, schema: Schema, path: str) -> Any:
    """At the root, and in an embedded resource, a rule sees apiVersion, kind and the name too."""
    if isinstance(value, dict) and (not path or schema.get("x-kubernetes-embedded-resource")):
        metadata = value.get("metadata")
        if isinstance(metadata, dict):
            visible = {name: metadata[name] for name in ("name", "generateName") if name in metadata}
            value = {**value, "metadata": visible}
        schema = as_resource(schema)
    return to_cel(value, schema)


def _failure(
    rule: dict[str, Any], program: cel.CelProgram, variables: dict[str, Any], path: str, value: Any
) -> FieldError | None:
    message = rule.get("message", "").strip()
    type_name = _TYPE_NAMES.get(type(value), "number")
    try:
        holds = program.evaluate(variables)
    except cel.CelEvaluationError as error:
        text = message or rule["rule"].strip()
        if str(error).startswith("no such overload"):
            explained = "call arguments did not match a supported operator, function or macro signature for rule"
            return field_error.invalid(path, type_name, f"'{error}': {explained}: {text}")
        return field_error.invalid(path, type_name, f"{error} evaluating rule: {text}")
    if holds is True:
        return None
    detail = _expressed_message(rule, variables) or message or f"failed rule: {rule['rule'].strip()}"
    where = child(path, rule["fieldPath"].removeprefix(".")) if rule.get("fieldPath") else path
    return _of_reason(rule.get("reason", ""), where, value, detail)


def _of_reason(reason: str, path: str, value: Any, detail: str) -> FieldError:
    match reason:
        case "FieldValueForbidden":
            return field_error.forbidden(path, detail)
        case "FieldValueRequired":
            return field_error.required(path, detail)
        case "FieldValueDuplicate":
            return field_error.duplicate(path, value)
        case _:
            return field_error.invalid(path, value, detail)


def _expressed_message(rule: dict[str, Any], variables: dict[str, Any]) -> str:
    """The text of messageExpression; one that fails, is empty or has line breaks is passed over."""
    if not rule.get("messageExpression"):
        return ""
    try:
        text = cel.compiled(rule["messageExpression"]).evaluate(variables)
    except cel.CelEvaluationError:
        return ""
    return text.strip() if isinstance(text, str) and "\n" not in text.strip() else ""
