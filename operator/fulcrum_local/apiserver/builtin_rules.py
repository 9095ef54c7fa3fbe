"""Validation of built-in kinds: required fields from the models, and the rules that users run into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fulcrum_local.apiserver.container_rules import PORT_TEXT
from fulcrum_local.apiserver.errors import Json, cause, forbidden_field, invalid_value, not_supported, required_value
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.metadata import labels_causes
from fulcrum_local.apiserver.model_types import Model, fields_of
from fulcrum_local.apiserver.pod_rules import pod_spec_causes, pod_update_causes
from fulcrum_local.objects.selectors import selector_matches

Rule = Callable[[Json, Json | None], list[Json]]


def builtin_causes(kind: Kind, model: Model, obj: Json, old: Json | None) -> list[Json]:
    """Everything that is wrong with an object of a built-in kind."""
    missing = _missing(obj, model, "")
    rule = _RULES.get(kind.storage)
    return missing or (rule(obj, old) if rule else [])


def _missing(value: Json, model: Model, path: str) -> list[Json]:
    causes: list[Json] = []
    for name, field in fields_of(model).items():
        inner = f"{path}.{name}" if path else name
        content = value.get(name)
        if content is None:
            # Lists and maps that a model requires may be empty in Go, where empty and absent are the same.
            if field.required and field.type.shape not in ("list", "map"):
                causes.append(required_value(inner))
        elif field.type.model is not None:
            causes += _missing(content, field.type.model, inner)
        elif field.type.shape == "list" and field.type.item is not None and field.type.item.model is not None:
            item_model = field.type.item.model
            for index, item in enumerate(content):
                causes += _missing(item, item_model, f"{inner}[{index}]")
    return causes


_IMMUTABLE: Final = "field is immutable"


def _pod(pod: Json, old: Json | None) -> list[Json]:
    return pod_spec_causes(pod["spec"], "spec") if old is None else pod_update_causes(pod, old)


def _workload(obj: Json, old: Json | None) -> list[Json]:
    spec = obj["spec"]
    selector = spec.get("selector") or {}
    template = spec.get("template") or {}
    causes: list[Json] = []
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        causes.append(invalid_value("spec.selector", "{}", "empty selector is invalid for deployment"))
    elif old is not None and selector != old["spec"].get("selector"):
        causes.append(invalid_value("spec.selector", _go_selector(selector), _IMMUTABLE))
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector and not selector_matches(selector, labels):
        text = "`selector` does not match template `labels`"
        causes.append(invalid_value("spec.template.metadata.labels", _go_map(labels), text))
    causes += labels_causes(labels, "spec.template.metadata.labels")
    if spec["replicas"] < 0:
        causes.append(invalid_value("spec.replicas", spec["replicas"], "must be greater than or equal to 0"))
    causes += pod_spec_causes(template.get("spec") or {}, "spec.template.spec")
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy in ("OnFailure", "Never"):
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    return causes


def _go_map(labels: Mapping[str, str]) -> object:
    class _Go:
        def __str__(self) -> str:
            return "{" + ", ".join(f'"{key}":"{value}"' for key, value in sorted(labels.items())) + "}"

    return _Go()


def _go_selector(selector: Json) -> object:
    return _go_map(selector.get("matchLabels") or {})


def _service(service: Json, old: Json | None) -> list[Json]:
    spec = service["spec"]
    causes: list[Json] = []
    if not spec.get("ports") and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(required_value("spec.ports"))
    several = len(spec.get("ports") or ()) > 1
    for index, port in enumerate(spec.get("ports") or ()):
        path = f"spec.ports[{index}]"
        if several and not port.get("name"):
            causes.append(required_value(f"{path}.name"))
        if not 0 < port["port"] < 65536:
            causes.append(invalid_value(f"{path}.port", port["port"], PORT_TEXT))
    types = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec["type"] not in types:
        causes.append(not_supported("spec.type", spec["type"], types))
    if old is not None and old["spec"].get("clusterIP") and spec.get("clusterIP") != old["spec"]["clusterIP"]:
        causes.append(invalid_value("spec.clusterIPs[0]", spec.get("clusterIP", ""), "may not change once set"))
    return causes


def _binding(binding: Json, old: Json | None) -> list[Json]:
    causes: list[Json] = []
    reference = binding["roleRef"]
    if reference.get("kind") not in ("Role", "ClusterRole"):
        causes.append(not_supported("roleRef.kind", reference.get("kind"), ("Role", "ClusterRole")))
    if old is not None and old["roleRef"] != reference:
        causes.append(invalid_value("roleRef", _go_map(reference), "cannot change roleRef"))
    for index, subject in enumerate(binding.get("subjects") or ()):
        path = f"subjects[{index}]"
        if subject.get("kind") not in ("User", "Group", "ServiceAccount"):
            kinds = ("Group", "ServiceAccount", "User")
            causes.append(not_supported(f"{path}.kind", subject.get("kind"), kinds))
        elif subject["kind"] == "ServiceAccount" and not subject.get("namespace"):
            causes.append(required_value(f"{path}.namespace"))
    return causes


def _role(role: Json, _old: Json | None) -> list[Json]:
    causes: list[Json] = []
    for index, rule in enumerate(role.get("rules") or ()):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            causes.append(required_value(f"{path}.verbs", "verbs must contain at least one value"))
        if rule.get("nonResourceURLs"):
            continue
        if not rule.get("apiGroups"):
            causes.append(required_value(f"{path}.apiGroups", "resource rules must supply at least one api group"))
        if not rule.get("resources"):
            causes.append(required_value(f"{path}.resources", "resource rules must supply at least one resource"))
    return causes


def _budget(budget: Json, _old: Json | None) -> list[Json]:
    spec = budget.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        return [invalid_value("spec", "{}", "minAvailable and maxUnavailable cannot be both set")]
    return []


_MOST_DATA_BYTES: Final = 1024 * 1024


def _data(obj: Json, old: Json | None) -> list[Json]:
    texts = [*(obj.get("data") or {}).values(), *(obj.get("binaryData") or {}).values()]
    secret = obj["kind"] == "Secret"
    size = sum(len(text) * 3 // 4 if secret else len(text.encode()) for text in texts)
    if size > _MOST_DATA_BYTES:
        message = f"Too long: may not be more than {_MOST_DATA_BYTES} bytes"
        return [cause("data" if secret else "[]", "FieldValueTooLong", message)]
    if old is None or not old.get("immutable"):
        return []
    same = all(obj.get(name) == old.get(name) for name in ("data", "binaryData"))
    return [] if same else [forbidden_field("data", "field is immutable when `immutable` is set")]


_RULES: Final[dict[str, Rule]] = {
    "pods": _pod,
    "deployments.apps": _workload,
    "replicasets.apps": _workload,
    "services": _service,
    "secrets": _data,
    "configmaps": _data,
    "poddisruptionbudgets.policy": _budget,
    "roles.rbac.authorization.k8s.io": _role,
    "clusterroles.rbac.authorization.k8s.io": _role,
    "rolebindings.rbac.authorization.k8s.io": _binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _binding,
}
