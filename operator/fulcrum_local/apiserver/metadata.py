"""Rules for `metadata`: what names, labels, annotations, finalizers and owner references may look like."""

from __future__ import annotations

import re
from typing import Any, Final

from fulcrum_local.apiserver.errors import Json, invalid_value, required_value
from fulcrum_local.apiserver.kinds import Kind

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DNS1035: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ANNOTATION_BYTES: Final = 256 * 1024

SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_DNS1035_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_TEXT: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_PATH_NAMES: Final = frozenset({"roles", "rolebindings", "clusterroles", "clusterrolebindings"})


def name_problem(kind: Kind, name: str) -> str | None:
    """What is wrong with an object's name, or None."""
    if kind.plural in _PATH_NAMES:
        bad = name in (".", "..") or "/" in name or "%" in name
        return "may not contain '/' or '%', and may not be '.' or '..'" if bad else None
    if kind.storage == "services":
        return pattern_problem(_DNS1035, name, _DNS1035_TEXT, 63)
    if kind.storage == "namespaces":
        return label_problem(name)
    return pattern_problem(_SUBDOMAIN, name, SUBDOMAIN_TEXT, 253)


def label_problem(text: str) -> str | None:
    """What is wrong with a DNS label (container, namespace and volume names), or None."""
    return pattern_problem(_LABEL, text, LABEL_TEXT, 63)


def pattern_problem(pattern: re.Pattern[str], text: str, explanation: str, limit: int) -> str | None:
    """The explanation when `text` is not of the pattern, another one when it is too long."""
    if len(text) > limit:
        return f"must be no more than {limit} characters"
    return None if pattern.fullmatch(text) else explanation


def qualified_name_problem(key: str) -> str | None:
    """What is wrong with a label or annotation key, or None."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or pattern_problem(_SUBDOMAIN, prefix, SUBDOMAIN_TEXT, 253)):
        return f"prefix part {SUBDOMAIN_TEXT}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return None if _QUALIFIED.fullmatch(name) else _QUALIFIED_TEXT


def label_value_problem(value: str) -> str | None:
    """What is wrong with a label's value, or None."""
    if len(value) > 63:
        return "must be no more than 63 characters"
    return None if not value or _QUALIFIED.fullmatch(value) else _LABEL_VALUE_TEXT


def labels_causes(labels: Any, path: str) -> list[Json]:
    """Wrong keys and values of a label map at `path`."""
    causes = []
    for key, value in (labels or {}).items():
        if problem := qualified_name_problem(key):
            causes.append(invalid_value(path, key, problem))
        if problem := label_value_problem(value):
            causes.append(invalid_value(path, value, problem))
    return causes


def metadata_causes(kind: Kind, metadata: Json) -> list[Json]:
    """Everything that is wrong with an object's metadata."""
    causes: list[Json] = []
    name = metadata.get("name")
    if not name:
        causes.append(required_value("metadata.name", "name or generateName is required"))
    elif problem := name_problem(kind, name):
        causes.append(invalid_value("metadata.name", name, problem))
    causes += labels_causes(metadata.get("labels"), "metadata.labels")
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        if problem := qualified_name_problem(key.lower()):
            causes.append(invalid_value("metadata.annotations", key, problem))
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATION_BYTES:
        causes.append(
            {
                "reason": "FieldValueTooLong",
                "message": f"Too long: may not be more than {_ANNOTATION_BYTES} bytes",
                "field": "metadata.annotations",
            }
        )
    for finalizer in metadata.get("finalizers") or ():
        if problem := qualified_name_problem(finalizer):
            causes.append(invalid_value("metadata.finalizers", finalizer, problem))
    return causes + _owner_causes(metadata.get("ownerReferences") or ())


def _owner_causes(owners: Any) -> list[Json]:
    causes = []
    for index, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{index}]"
        missing = [name for name in ("apiVersion", "kind", "name", "uid") if not owner.get(name)]
        causes += [invalid_value(f"{path}.{name}", "", f"{name} must not be empty") for name in missing]
    if sum(1 for owner in owners if owner.get("controller")) > 1:
        causes.append(
            invalid_value("metadata.ownerReferences", "", "Only one reference can have Controller set to true")
        )
    return causes


def metadata_shape_problem(metadata: Any) -> str | None:
    """Why `metadata` cannot be decoded at all (wrong types), or None."""
    if not isinstance(metadata, dict):
        return "metadata is not an object"
    for name in ("name", "namespace", "generateName", "uid", "resourceVersion"):
        if not isinstance(metadata.get(name, ""), str):
            return f"json: cannot unmarshal into Go struct field ObjectMeta.metadata.{name} of type string"
    for name in ("labels", "annotations"):
        mapping = metadata.get(name) or {}
        if not isinstance(mapping, dict) or not all(isinstance(value, str) for value in mapping.values()):
            return f"json: cannot unmarshal non-string into Go struct field ObjectMeta.metadata.{name} of type string"
    return None
