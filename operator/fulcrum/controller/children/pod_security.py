"""Whether a Pod stays within the level `restricted` of the Pod Security Standards.

The operator makes Pods for everyone who may write an InferenceCluster, also for people who may make no Pods themselves.
A pool's template must not give them more than the strictest level that a namespace can enforce.
Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fulcrum.controller.children.owner import Manifest

VOLUMES: Final = frozenset(
    (
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
        "image",
    )
)
SYSCTLS: Final = frozenset(
    (
        "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
    )
)  # fmt: skip
CAPABILITIES: Final = frozenset(("NET_BIND_SERVICE",))
SELINUX_TYPES: Final = frozenset(("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"))
PROFILES: Final = frozenset(("RuntimeDefault", "Localhost"))
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")
_HANDLERS: Final = ("livenessProbe", "readinessProbe", "startupProbe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One field above the level."""

    field: str
    """Path in the Pod, such as `spec.containers[worker].securityContext.privileged`."""
    fix: str


def violations(spec: Manifest, *, own_capabilities: frozenset[str] = frozenset()) -> Iterator[Violation]:
    """Yield what a Pod's spec has above `restricted`; `own_capabilities` are those that Fulcrum itself adds."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield Violation(field=f"spec.{name}", fix="remove it")
    for volume in spec.get("volumes") or ():
        for kind in volume.keys() - {"name"} - VOLUMES:
            field = f"spec.volumes[{volume.get('name')}].{kind}"
            yield Violation(field=field, fix="use a persistentVolumeClaim, an emptyDir or a csi volume")
    security = spec.get("securityContext") or {}
    yield from _of_any(security, "spec.securityContext")
    for sysctl in security.get("sysctls") or ():
        if sysctl.get("name") not in SYSCTLS:
            yield Violation(field=f"spec.securityContext.sysctls[{sysctl.get('name')}]", fix="remove it")
    for kind in _CONTAINERS:
        for container in spec.get(kind) or ():
            path = f"spec.{kind}[{container.get('name')}]"
            yield from _of_container(container, security, path, CAPABILITIES | own_capabilities)


def _of_container(
    container: Manifest, of_pod: Manifest, path: str, capabilities: frozenset[str]
) -> Iterator[Violation]:
    security = container.get("securityContext") or {}
    where = f"{path}.securityContext"
    yield from _of_any(security, where)
    if security.get("privileged"):
        yield Violation(field=f"{where}.privileged", fix="remove it")
    if security.get("allowPrivilegeEscalation") is not False:
        yield Violation(field=f"{where}.allowPrivilegeEscalation", fix="set it to false")
    if security.get("procMount", "Default") != "Default":
        yield Violation(field=f"{where}.procMount", fix="remove it")
    held = security.get("capabilities") or {}
    if "ALL" not in (held.get("drop") or ()):
        yield Violation(field=f"{where}.capabilities.drop", fix="set it to [ALL]")
    for name in sorted(set(held.get("add") or ()) - capabilities):
        yield Violation(field=f"{where}.capabilities.add", fix=f"remove {name}")
    if security.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
        yield Violation(field=f"{where}.runAsNonRoot", fix="set it to true")
    if "seccompProfile" not in security and "seccompProfile" not in of_pod:
        yield Violation(field=f"{where}.seccompProfile.type", fix="set it to RuntimeDefault")
    yield from _of_host(container, path)


def _of_host(container: Manifest, path: str) -> Iterator[Violation]:
    """What reaches into the node's network."""
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            yield Violation(field=f"{path}.ports[{port.get('containerPort')}].hostPort", fix="remove it")
    for name, handler in _handlers(container):
        for action in ("httpGet", "tcpSocket"):
            if (handler.get(action) or {}).get("host"):
                yield Violation(field=f"{path}.{name}.{action}.host", fix="remove it")


def _handlers(container: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in _HANDLERS:
        yield name, container.get(name) or {}
    for name, handler in (container.get("lifecycle") or {}).items():
        if isinstance(handler, dict):
            yield f"lifecycle.{name}", handler


def _of_any(security: Manifest, where: str) -> Iterator[Violation]:
    """What the security contexts of a Pod and of a container have in common."""
    if security.get("runAsUser") == 0:
        yield Violation(field=f"{where}.runAsUser", fix="use another user than 0")
    if security.get("runAsNonRoot") is False:
        yield Violation(field=f"{where}.runAsNonRoot", fix="set it to true")
    for name in ("seccompProfile", "appArmorProfile"):
        profile = security.get(name)
        if profile is not None and profile.get("type") not in PROFILES:
            yield Violation(field=f"{where}.{name}.type", fix="use RuntimeDefault or Localhost")
    selinux = security.get("seLinuxOptions") or {}
    if selinux.get("user") or selinux.get("role") or selinux.get("type", "") not in SELINUX_TYPES:
        yield Violation(field=f"{where}.seLinuxOptions", fix="remove user, role and type")
    if (security.get("windowsOptions") or {}).get("hostProcess"):
        yield Violation(field=f"{where}.windowsOptions.hostProcess", fix="remove it")
