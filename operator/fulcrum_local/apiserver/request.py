"""What a request asks for, read from its method, path and query as Kubernetes reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from fulcrum_local.apiserver.errors import bad_request

_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_TRUE: Final = frozenset({"true", "1", "t", "True", "TRUE", "T", ""})
_LIST_NUMBERS: Final = ("limit", "timeoutSeconds")
_NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "list": _LIST_NUMBERS,
    "watch": _LIST_NUMBERS,
    "delete": ("gracePeriodSeconds",),
    "deletecollection": (*_LIST_NUMBERS, "gracePeriodSeconds"),
    "get log": ("limitBytes", "sinceSeconds", "tailLines"),
}
"""Query parameters of a verb that are 64-bit integers."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_VERSION: Final = re.compile(r"[0-9]{1,30}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The addressed resource; `resource` is empty for paths outside the resource APIs."""

    path: str
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def is_resource(self) -> bool:
        """Whether the path is below `/api/v1/` or `/apis/<group>/<version>/` and names a resource."""
        return bool(self.resource)


def flag(query: Mapping[str, str], name: str) -> bool:
    """A boolean query parameter; present without a value means true."""
    return name in query and query[name] in _TRUE


def check_numbers(target: Target, query: Mapping[str, str]) -> None:
    """400 for a parameter of the verb that has to be an integer and is none."""
    what = f"{target.verb} {target.subresource}" if target.subresource else target.verb
    for name in _NUMBERS.get(what, ()):
        text = query.get(name, "")
        if text and not (_INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63):
            raise bad_request(f'{name}: strconv.ParseInt: parsing "{text}": invalid syntax')


def parse_version(text: str) -> int:
    """A resourceVersion parameter as a number; 400 otherwise."""
    if not (_VERSION.fullmatch(text) and int(text) < 2**64):
        raise bad_request(f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text)


def parse_target(method: str, path: str, query: Mapping[str, str]) -> Target:
    """Target of `method path?query`."""
    verb = _VERBS.get(method, method.lower())
    parts = [unquote(part) for part in path.strip("/").split("/")]
    match parts:
        case ["api", version, *rest] if rest:
            group = ""
        case ["apis", group, version, *rest] if rest:
            pass
        case _:
            return Target(path=path, verb=verb)
    namespace = ""
    # /namespaces/<name>/<status|finalize> is a subresource of the Namespace; anything else is a resource inside it.
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    elif rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
    name = rest[1] if len(rest) > 1 else ""
    return Target(
        path=path,
        verb=_collection_verb(verb, name, query),
        group=group,
        version=version,
        resource=rest[0],
        namespace=namespace,
        name=name,
        subresource="/".join(rest[2:]),
    )


def _collection_verb(verb: str, name: str, query: Mapping[str, str]) -> str:
    if verb == "get" and flag(query, "watch"):
        return "watch"
    if name:
        return verb
    return {"get": "list", "delete": "deletecollection"}.get(verb, verb)
