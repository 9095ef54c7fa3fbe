"""What a pool's template may not take: identities, Secrets, and the marks by which others find Pods.

The operator makes Pods for people who may make none themselves. A template that names a service account acts as it, one
that names a Secret reads it, and a label of another Service takes that Service's requests. What is needed of these is
allowed by name, for the whole installation (`fulcrum operator --template-may-use`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fulcrum.api.names import GROUP
from fulcrum.controller.children.owner import Manifest
from fulcrum.controller.children.pod_security import Violation

SERVICE_ACCOUNT: Final = "ServiceAccount"
SECRET: Final = "Secret"  # noqa: S105 (a kind)
LABEL: Final = "Label"
KINDS: Final = frozenset((SERVICE_ACCOUNT, SECRET, LABEL))
"""What `KIND/NAME` of `--template-may-use` may begin with."""
_METADATA: Final = frozenset(("labels", "annotations"))
_SELECTORS: Final = frozenset(("app", "k8s-app", "name", "run", "component", "tier", "pod-template-hash"))
"""Labels without a domain by which Services and Deployments usually select."""
_DOMAINS: Final = ("kubernetes.io", "k8s.io", GROUP, "llm-d.ai", "leaderworkerset.sigs.k8s.io")
_PROFILES: Final = (
    "container.apparmor.security.beta.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
)
"""Annotations that did, before there were fields, and still do on older nodes, what those fields do."""
_IDENTITIES: Final = ("serviceAccountToken", "podCertificate")
"""Sources of a projected volume that speak for the Pod's service account."""
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


def takes(template: Manifest, pod: Manifest, may_use: frozenset[str]) -> Iterator[Violation]:
    """Yield what a template (of the right shape) takes that `may_use` (`KIND/NAME`) does not allow.

    `pod` is what the template makes of a worker: a null in a template takes away what the operator has set.
    """
    yield from _metadata(template.get("metadata") or {}, may_use)
    spec = template.get("spec") or {}
    yield from _identity(pod["spec"], may_use)
    if priority_is_reserved(spec.get("priorityClassName")):
        yield Violation(field="spec.priorityClassName", fix="use a class of your own: system-* keep nodes alive")
    for path, name in _secrets(spec):
        if f"{SECRET}/{name}" not in may_use:
            yield Violation(field=path, fix=_allow(SECRET, name))


def priority_is_reserved(name: str | None) -> bool:
    """Report whether a PriorityClass is one of those that keep nodes alive."""
    return (name or "").startswith("system-")


def _allow(kind: str, name: str) -> str:
    return f"remove it, or let the operator run with --template-may-use {kind}/{name}"


def _metadata(metadata: Manifest, may_use: frozenset[str]) -> Iterator[Violation]:
    for name in sorted(name for name, value in metadata.items() if name not in _METADATA and value is not None):
        yield Violation(field=f"metadata.{name}", fix="remove it: a template has labels and annotations")
    for key in metadata.get("labels") or {}:
        if _is_selector(key) and f"{LABEL}/{key}" not in may_use:
            yield Violation(field=f"metadata.labels[{key}]", fix=_allow(LABEL, key))
    for key, value in (metadata.get("annotations") or {}).items():
        if key.startswith(f"{GROUP}/"):
            yield Violation(field=f"metadata.annotations[{key}]", fix="remove it: the operator writes it")
        if key.startswith(_PROFILES) and not _is_confined(value):
            yield Violation(field=f"metadata.annotations[{key}]", fix="use runtime/default")


def _is_selector(key: str) -> bool:
    domain, slash, _ = key.rpartition("/")
    return key in _SELECTORS if not slash else any(domain == each or domain.endswith(f".{each}") for each in _DOMAINS)


def _is_confined(profile: str | None) -> bool:
    return profile is None or profile in ("runtime/default", "docker/default") or profile.startswith("localhost/")


def _identity(spec: Manifest, may_use: frozenset[str]) -> Iterator[Violation]:
    """Which service account the Pod acts as, and whether it gets its token, or a certificate in its name."""
    named = [(name, spec[name]) for name in ("serviceAccountName", "serviceAccount") if spec.get(name)]
    for field, account in named:
        if f"{SERVICE_ACCOUNT}/{account}" not in may_use:
            yield Violation(field=f"spec.{field}", fix=_allow(SERVICE_ACCOUNT, account))
    account = named[0][1] if named else "default"
    allowed = f"{SERVICE_ACCOUNT}/{account}" in may_use
    if allowed:
        return
    if spec.get("automountServiceAccountToken") is not False:  # absent, it is true
        yield Violation(field="spec.automountServiceAccountToken", fix=_allow(SERVICE_ACCOUNT, account))
    for volume in spec.get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            for kind in _IDENTITIES:
                if source.get(kind) is not None:
                    field = f"spec.volumes[{volume['name']}].projected.sources.{kind}"
                    yield Violation(field=field, fix=_allow(SERVICE_ACCOUNT, account))


def _secrets(spec: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (path, name) of each Secret that a container could read."""
    for volume in spec.get("volumes") or ():
        path = f"spec.volumes[{volume['name']}]"
        yield from _named(path, volume, "secret", key="secretName")
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield from _named(f"{path}.projected.sources", source, "secret")
        yield from _named(f"{path}.csi", volume.get("csi") or {}, "nodePublishSecretRef")
    for kind in _CONTAINERS:
        for container in spec.get(kind) or ():
            path = f"spec.{kind}[{container['name']}]"
            for entry in container.get("env") or ():
                yield from _named(
                    f"{path}.env[{entry['name']}].valueFrom", entry.get("valueFrom") or {}, "secretKeyRef"
                )
            for source in container.get("envFrom") or ():
                yield from _named(f"{path}.envFrom", source, "secretRef")


def _named(path: str, holder: Manifest, field: str, *, key: str = "name") -> Iterator[tuple[str, str]]:
    found: Any = holder.get(field)
    if found is not None:
        yield f"{path}.{field}", found.get(key) or ""
