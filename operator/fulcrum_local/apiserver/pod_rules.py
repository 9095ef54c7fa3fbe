"""Validation of Pod specs, also inside templates, in the words of Kubernetes 1.36."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fulcrum_local.apiserver.container_rules import container_causes
from fulcrum_local.apiserver.errors import (
    Json,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required_value,
)
from fulcrum_local.apiserver.metadata import label_problem

_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
_DNS_POLICIES: Final = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MOST_SECONDS: Final = 2**31 - 1


def pod_spec_causes(spec: Mapping[str, Any], path: str) -> list[Json]:
    """Everything that is wrong with a Pod's spec at `path`."""
    causes = _volume_causes(spec.get("volumes") or (), f"{path}.volumes")
    if not spec.get("containers"):
        causes.append(required_value(f"{path}.containers"))
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    seen: set[str] = set()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            causes += container_causes(container, f"{path}.{field}[{index}]", seen, volumes)
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        causes.append(not_supported(f"{path}.restartPolicy", spec.get("restartPolicy"), _RESTART_POLICIES))
    if spec.get("dnsPolicy", "ClusterFirst") not in _DNS_POLICIES:
        causes.append(not_supported(f"{path}.dnsPolicy", spec["dnsPolicy"], _DNS_POLICIES))
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        text = "must be greater than or equal to 0"
        causes.append(
            invalid_value(f"{path}.terminationGracePeriodSeconds", spec["terminationGracePeriodSeconds"], text)
        )
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _MOST_SECONDS:
        text = f"must be between 1 and {_MOST_SECONDS}, inclusive"
        causes.append(invalid_value(f"{path}.activeDeadlineSeconds", deadline, text))
    return causes + _toleration_causes(spec.get("tolerations") or (), f"{path}.tolerations")


def _volume_causes(volumes: Any, path: str) -> list[Json]:
    causes: list[Json] = []
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        where, name = f"{path}[{index}]", volume.get("name", "")
        if not name:
            causes.append(required_value(f"{where}.name"))
        elif problem := label_problem(name):
            causes.append(invalid_value(f"{where}.name", name, problem))
        elif name in seen:
            causes.append(duplicate(f"{where}.name", name))
        seen.add(name)
        sources = sorted(volume.keys() - {"name"})
        causes += [
            forbidden_field(f"{where}.{extra}", "may not specify more than 1 volume type") for extra in sources[1:]
        ]
        claim = volume.get("persistentVolumeClaim")
        if claim is not None and not claim.get("claimName"):
            causes.append(required_value(f"{where}.persistentVolumeClaim.claimName"))
        if volume.get("hostPath") is not None and not volume["hostPath"].get("path"):
            causes.append(required_value(f"{where}.hostPath.path"))
    return causes


def _toleration_causes(tolerations: Any, path: str) -> list[Json]:
    causes: list[Json] = []
    for index, toleration in enumerate(tolerations):
        where = f"{path}[{index}]"
        operator, effect = toleration.get("operator") or "Equal", toleration.get("effect") or ""
        if not toleration.get("key") and operator != "Exists":
            text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            causes.append(invalid_value(f"{where}.operator", operator, text))
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            causes.append(invalid_value(f"{where}.effect", effect, text))
        if operator == "Exists" and toleration.get("value"):
            text = "value must be empty when `operator` is 'Exists'"
            causes.append(invalid_value(f"{where}.operator", toleration["value"], text))
        elif operator not in ("Equal", "Exists"):
            causes.append(not_supported(f"{where}.operator", operator, ("Equal", "Exists")))
        if effect and effect not in _EFFECTS:
            causes.append(not_supported(f"{where}.effect", effect, _EFFECTS))
    return causes


def pod_update_causes(pod: Json, old: Json) -> list[Json]:
    """What an update of a Pod may not change."""
    causes = []
    kept = [_timeless(toleration) for toleration in pod["spec"].get("tolerations") or ()]
    if any(_timeless(toleration) not in kept for toleration in old["spec"].get("tolerations") or ()):
        text = "existing toleration can not be modified except its tolerationSeconds"
        causes.append(forbidden_field("spec.tolerations", text))
    if _fixed_part(pod["spec"]) != _fixed_part(old["spec"]):
        causes.append(
            forbidden_field(
                "spec",
                "pod updates may not change fields other than `spec.containers[*].image`,"
                "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
                "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
                "previously negative)",
            )
        )
    return causes


def _timeless(toleration: Json) -> Json:
    return {name: value for name, value in toleration.items() if name != "tolerationSeconds"}


def _fixed_part(spec: Json) -> Json:
    fixed = {key: value for key, value in spec.items() if key not in ("activeDeadlineSeconds", "tolerations")}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{k: v for k, v in container.items() if k != "image"} for container in fixed[field]]
    return fixed
