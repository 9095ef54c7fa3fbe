"""RBAC: may this user do that? Also whether a user may hand out a permission (no escalation)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fulcrum_local.apiserver.authentication import MASTERS, User
from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.store import Store
from fulcrum_local.objects.selectors import selector_matches

RBAC: Final = "rbac.authorization.k8s.io"
CLUSTER_ROLES: Final = f"clusterroles.{RBAC}"
ROLES: Final = f"roles.{RBAC}"
CLUSTER_ROLE_BINDINGS: Final = f"clusterrolebindings.{RBAC}"
ROLE_BINDINGS: Final = f"rolebindings.{RBAC}"

_MOST_KEPT: Final = 4096
Rule = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """One access: a resource, or a path when `resource` is empty."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class Authorizer:
    """Evaluates the RBAC objects in the store; what it derives from them is kept until one of them changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rules: dict[tuple[User, str], tuple[Rule, ...]] = {}
        for storage in (CLUSTER_ROLES, ROLES, CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS):
            store.listen(storage, lambda _change: self._rules.clear())

    def allows(self, user: User, access: Attributes) -> bool:
        """Whether some rule that is bound to the user permits the access; `system:masters` may do anything."""
        if MASTERS in user.groups:
            return True
        return any(rule_allows(rule, access) for rule in self.rules(user, access.namespace))

    def rules(self, user: User, namespace: str) -> tuple[Rule, ...]:
        """Rules of the user in the namespace (cluster-wide ones included; only these when it is empty)."""
        if (user, namespace) not in self._rules:
            if len(self._rules) >= _MOST_KEPT:
                self._rules.clear()
            self._rules[user, namespace] = tuple(self._collect(user, namespace))
        return self._rules[user, namespace]

    def role_rules(self, reference: Mapping[str, Any], namespace: str) -> Sequence[Rule]:
        """Rules of the role that a binding refers to; empty when there is no such role."""
        if reference.get("kind") == "Role":
            role = self._store.get(ROLES, namespace, reference["name"])
            return role.obj.get("rules") or () if role else ()
        role = self._store.get(CLUSTER_ROLES, "", reference["name"])
        if role is None:
            return ()
        return self._with_aggregated(role.obj, frozenset())

    def _with_aggregated(self, role: Json, visited: frozenset[str]) -> list[Rule]:
        """Rules of a ClusterRole, and of every other that its `aggregationRule` selects."""
        selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
        rules: list[Rule] = list(role.get("rules") or ())
        if not selectors:
            return rules
        visited |= {role["metadata"]["name"]}
        for other in self._store.scan(CLUSTER_ROLES):
            labels = other.obj["metadata"].get("labels") or {}
            if other.key[1] not in visited and any(selector_matches(selector, labels) for selector in selectors):
                rules += self._with_aggregated(other.obj, visited)
        return rules

    def _collect(self, user: User, namespace: str) -> Iterable[Rule]:
        bindings = self._store.scan(CLUSTER_ROLE_BINDINGS)
        if namespace:
            bindings = bindings + self._store.scan(ROLE_BINDINGS, namespace)
        for binding in bindings:
            subjects = binding.obj.get("subjects") or ()
            if any(_is_subject(user, subject, namespace) for subject in subjects):
                yield from self.role_rules(binding.obj["roleRef"], namespace)


def _is_subject(user: User, subject: Mapping[str, Any], namespace: str) -> bool:
    match subject.get("kind"):
        case "User":
            return bool(user.name == subject["name"])
        case "Group":
            return subject["name"] in user.groups
        case "ServiceAccount":
            return user.name == f"system:serviceaccount:{subject.get('namespace') or namespace}:{subject['name']}"
    return False


def rule_allows(rule: Rule, access: Attributes) -> bool:
    """Whether one PolicyRule covers one access."""
    if not _has(rule.get("verbs"), access.verb):
        return False
    if not access.resource:
        return any(_path_matches(path, access.path) for path in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("apiGroups"), access.group)
        and _has_resource(rule.get("resources") or (), access.resource, access.subresource)
        and (not names or access.name in names)
    )


def _has(values: Sequence[str] | None, wanted: str) -> bool:
    return bool(values) and (wanted in values or "*" in values)  # type: ignore[operator]


def _has_resource(resources: Sequence[str], resource: str, subresource: str) -> bool:
    wanted = f"{resource}/{subresource}" if subresource else resource
    return "*" in resources or wanted in resources or bool(subresource and f"*/{subresource}" in resources)


def _path_matches(pattern: str, path: str) -> bool:
    return pattern == path or (pattern.endswith("*") and path.startswith(pattern[:-1]))


def missing_rules(wanted: Sequence[Rule], held: Sequence[Rule]) -> list[Rule]:
    """Rules of `wanted`, broken into single verb, resource and name, that `held` does not cover."""
    return [
        single for rule in wanted for single in _break_down(rule) if not any(_covers(have, single) for have in held)
    ]


def _break_down(rule: Rule) -> Iterable[Rule]:
    verbs = rule.get("verbs") or ()
    for verb, path in itertools.product(verbs, rule.get("nonResourceURLs") or ()):
        yield {"nonResourceURLs": [path], "verbs": [verb]}
    names: Sequence[str | None] = rule.get("resourceNames") or (None,)
    parts = itertools.product(rule.get("apiGroups") or (), rule.get("resources") or (), names, verbs)
    for group, resource, name, verb in parts:
        single: Json = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        if name is not None:
            single["resourceNames"] = [name]
        yield single


def _covers(held: Rule, single: Rule) -> bool:
    if not _has(held.get("verbs"), single["verbs"][0]):
        return False
    if "nonResourceURLs" in single:
        return any(_path_matches(path, single["nonResourceURLs"][0]) for path in held.get("nonResourceURLs") or ())
    resource, _, subresource = single["resources"][0].partition("/")
    names = held.get("resourceNames") or ()
    return (
        _has(held.get("apiGroups"), single["apiGroups"][0])
        and _has_resource(held.get("resources") or (), resource, subresource)
        and (not names or ("resourceNames" in single and single["resourceNames"][0] in names))
    )


_GO_FIELDS: Final[tuple[tuple[str, str], ...]] = (
    ("apiGroups", "APIGroups"),
    ("resources", "Resources"),
    ("resourceNames", "ResourceNames"),
    ("nonResourceURLs", "NonResourceURLs"),
    ("verbs", "Verbs"),
)


def compact_text(rules: Sequence[Rule]) -> str:
    """Rules as a real server prints them in an escalation error: one line each, verbs of equal rules together."""
    merged: dict[str, list[str]] = {}
    for rule in rules:
        head = ", ".join(
            f"{shown}:[{' '.join(_quoted(value) for value in rule[name])}]"
            for name, shown in _GO_FIELDS[:-1]
            if rule.get(name)
        )
        merged.setdefault(head, []).extend(rule["verbs"])
    return "\n".join(
        f"{{{head}, Verbs:[{' '.join(_quoted(verb) for verb in verbs)}]}}" for head, verbs in sorted(merged.items())
    )


_quoted: Final[Callable[[str], str]] = lambda text: f'"{text}"'  # noqa: E731
