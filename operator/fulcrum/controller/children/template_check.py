"""What a pool's Pod template may not be, or may not ask for: decided before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import structs

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.controller.children.overlay import MERGE_KEYS
from fulcrum.controller.children.owner import Manifest, Owner
from fulcrum.controller.children.pod_security import Violation, violations
from fulcrum.controller.children.template_access import priority_is_reserved, takes
from fulcrum.controller.children.worker_pod import CONTAINER, worker_pod
from fulcrum.controller.installation import Installation
from fulcrum.decide import Refusal
from fulcrum.kube import misshapen

_SHOWN: Final = 5
"""Problems of one template that its message names."""


def refused_templates(owner: Owner, spec: InferenceClusterSpec, installation: Installation) -> dict[str, Refusal]:
    """Return, by pool, why no worker of it is made."""
    refused = {}
    for number, pool in enumerate(spec.pools):
        if priority_is_reserved(pool.priority_class_name) and not installation.allow_privileged_templates:
            refused[pool.name] = Refusal(
                message=f"spec.pools[{number}].priorityClassName: use a class of your own: system-* keep nodes alive."
            )
        elif pool.template and (why := _refusal(owner, spec, pool, f"spec.pools[{number}].template", installation)):
            refused[pool.name] = why
    return refused


def _refusal(
    owner: Owner, spec: InferenceClusterSpec, pool: Pool, path: str, installation: Installation
) -> Refusal | None:
    wrong = list(problems(pool.template, path))
    if wrong:
        return Refusal(
            message=f"{'; '.join(wrong[:_SHOWN])}. Write it as a Pod template of Kubernetes (kubectl explain pod)."
        )
    image = installation.worker_image_for(pool.accelerator)
    pod = worker_pod(owner, spec, pool, ordinal=0, role=Role.MIXED, image=image)
    if not any(container.get("name") == CONTAINER for container in pod["spec"].get("containers") or ()):
        return Refusal(message=f"{path}.spec.containers: removes the container {CONTAINER}, which is the worker.")
    if installation.allow_privileged_templates:
        return None
    taken = list(takes(pool.template, pod, installation.templates_may_use))
    if taken:
        return Refusal(message=f"{'; '.join(f'{path}.{each.field}: {each.fix}' for each in taken)}.")
    found = list(_violations(pod, pool))
    if found and pool.rdma is not None:
        # What a field of the pool asks for is not the template's.
        plain = worker_pod(owner, spec, structs.replace(pool, template={}), ordinal=0, role=Role.MIXED, image="")
        of_field = set(_violations(plain, pool))
        found = [each for each in found if each not in of_field]
    if not found:
        return None
    said = "; ".join(f"{path}.{each.field}: {each.fix}" for each in found)
    return Refusal(
        message=f"{said}. The worker would be above the Pod Security level restricted, which templates may not exceed "
        "unless the operator runs with --allow-privileged-templates."
    )


def _violations(pod: Manifest, pool: Pool) -> Iterator[Violation]:
    return violations(pod["spec"], own_capabilities=frozenset(("IPC_LOCK",) if pool.rdma else ()))


def problems(template: Manifest, path: str) -> Iterator[str]:
    """Yield what Kubernetes would not take for a Pod template."""
    for where, what in misshapen(template, "V1PodTemplateSpec", path):
        yield f"{where} {what}"
        return  # further ones may follow from it
    yield from _without_key(template, path)


def _without_key(value: Any, path: str) -> Iterator[str]:
    """Yield elements of merged lists that do not say which element they are."""
    for name, item in value.items() if isinstance(value, dict) else ():
        for number, element in enumerate(item if isinstance(item, list) else ()):
            where = f"{path}.{name}[{number}]"
            if name in MERGE_KEYS and isinstance(element, dict) and element.get(MERGE_KEYS[name]) is None:
                yield f"{where}.{MERGE_KEYS[name]} is missing"
            yield from _without_key(element, where)
        yield from _without_key(item, f"{path}.{name}")
