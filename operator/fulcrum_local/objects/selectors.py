"""Label and field selectors in their full string syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Json = dict[str, Any]


class SelectorError(ValueError):
    """A selector that cannot be parsed, or that names a field which cannot be selected by."""


LabelTest = Callable[[Mapping[str, str]], bool]
ObjectTest = Callable[[Json], bool]

_KEY: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET: Final = re.compile(rf"^\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*$")
_COMPARE: Final = re.compile(rf"^\s*({_KEY})\s*(==|=|!=|>|<)\s*([-A-Za-z0-9_.]*)\s*$")
_EXISTS: Final = re.compile(rf"^\s*(!?)\s*({_KEY})\s*$")
_SPLIT: Final = re.compile(r",(?![^()]*\))")


def label_test(selector: str) -> LabelTest:
    """Predicate on labels for `a=b,c!=d,e in (f,g),h notin (i),j,!k`; raises SelectorError."""
    tests = [_requirement(part) for part in _SPLIT.split(selector)] if selector.strip() else []
    return lambda labels: all(test(labels) for test in tests)


def _requirement(text: str) -> LabelTest:
    if match := _SET.match(text):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _COMPARE.match(text):
        return _comparison(*match.groups())
    if match := _EXISTS.match(text):
        negated, key = match.groups()
        return lambda labels: (key in labels) != bool(negated)
    raise SelectorError(f"unable to parse requirement: invalid label selector {text.strip()!r}")


def _comparison(key: str, operator: str, value: str) -> LabelTest:
    if operator in ("=", "=="):
        return lambda labels: labels.get(key) == value
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    try:
        bound = int(value)
    except ValueError:
        raise SelectorError(f"unable to parse requirement: values[0][{key}]: for 'Gt', 'Lt' operators, the value must "
                          "be an integer") from None  # fmt: skip

    def compare(labels: Mapping[str, str]) -> bool:
        try:
            number = int(labels[key])
        except (KeyError, ValueError):
            return False
        return number > bound if operator == ">" else number < bound

    return compare


def selector_matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """A LabelSelector object (`matchLabels`, `matchExpressions`) against labels; None selects nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression_matches(expression, labels) for expression in selector.get("matchExpressions") or ())


def _expression_matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or ()
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) == bool(operator == "Exists")
    return (labels.get(key) in values) == bool(operator == "In")


_FIELDS: Final[dict[str, frozenset[str]]] = {
    "pods": frozenset(
        {
            "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
            "status.phase", "status.podIP", "status.nominatedNodeName",
        }
    ),
    "events": frozenset(
        {
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
            "regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid", "reason", "reportingComponent",
            "source", "type",
        }
    ),
    "nodes": frozenset({"spec.unschedulable"}),
    "namespaces": frozenset({"status.phase"}),
    "secrets": frozenset({"type"}),
    "replicasets.apps": frozenset({"status.replicas"}),
    "services": frozenset({"spec.clusterIP", "spec.type"}),
}  # fmt: skip
_FIELD_REQUIREMENT: Final = re.compile(r"^\s*([A-Za-z0-9_.\[\]/-]+)\s*(==|=|!=)(.*)$")


def field_test(selector: str, storage: str, extra: tuple[str, ...] = ()) -> ObjectTest:
    """Predicate on objects for `metadata.name=x,status.phase!=Failed`; raises SelectorError."""
    known = _FIELDS.get(storage, frozenset()) | {"metadata.name", "metadata.namespace", *extra}
    requirements: list[tuple[tuple[str, ...], bool, str]] = []
    for part in filter(str.strip, selector.split(",")):
        match = _FIELD_REQUIREMENT.match(part)
        if match is None:
            raise SelectorError(
                f"invalid selector: '{part}'; can't understand '{part}'",
            )
        path, operator, value = match.groups()
        if path not in known:
            listed = ", ".join(f'"{name}"' for name in sorted(known))
            raise SelectorError(f'"{path}" is not a known field selector: only {listed}')
        if path == "source":
            path = "source.component"
        if storage == "events":  # one storage serves v1 and events.k8s.io/v1; objects are kept as v1
            path = path.replace("regarding.", "involvedObject.")
        requirements.append((tuple(path.split(".")), operator != "!=", value.strip()))
    return lambda obj: all((_text_at(obj, path) == value) == equal for path, equal, value in requirements)


def _text_at(obj: Json, path: tuple[str, ...]) -> str:
    value: Any = obj
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
