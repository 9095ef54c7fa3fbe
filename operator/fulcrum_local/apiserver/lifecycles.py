"""What the server itself does to objects of some built-in kinds when they are written (admission and allocation)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

from fulcrum_local.apiserver.authentication import MASTERS, User
from fulcrum_local.apiserver.authorization import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    RBAC,
    ROLE_BINDINGS,
    ROLES,
    Attributes,
    Authorizer,
    compact_text,
    missing_rules,
)
from fulcrum_local.apiserver.definitions import prepare_definition
from fulcrum_local.apiserver.errors import ApiError, Json, cause, forbidden, invalid
from fulcrum_local.apiserver.kinds import Kind, Registry
from fulcrum_local.apiserver.pod_admission import admit_pod
from fulcrum_local.apiserver.store import Change, Store

Preparation = Callable[[Kind, Json, Json | None, User], None]


class Lifecycles:
    """Preparation of objects before validation; `old` is None for a creation."""

    def __init__(self, store: Store, registry: Registry, authorizer: Authorizer, service_range: str) -> None:
        self._store = store
        self._registry = registry
        self._authorizer = authorizer
        self._addresses = ServiceAddresses(store, service_range)
        self._by_storage: dict[str, Preparation] = {
            "pods": self._pod,
            "services": self._service,
            "persistentvolumeclaims": _claim,
            "customresourcedefinitions.apiextensions.k8s.io": self._definition,
            ROLES: self._role,
            CLUSTER_ROLES: self._role,
            ROLE_BINDINGS: self._binding,
            CLUSTER_ROLE_BINDINGS: self._binding,
        }

    def prepare(self, kind: Kind, obj: Json, old: Json | None, user: User) -> None:
        """Complete `obj` in place; raises what the real server's admission would answer."""
        preparation = self._by_storage.get(kind.storage)
        if preparation is not None:
            preparation(kind, obj, old, user)

    def _pod(self, kind: Kind, pod: Json, old: Json | None, user: User) -> None:
        if old is not None:
            return
        admit_pod(self._store, pod)
        pod["status"] = {"phase": "Pending", "qosClass": _qos_class(pod["spec"])}

    def _service(self, kind: Kind, service: Json, old: Json | None, user: User) -> None:
        spec = service["spec"]
        if spec.get("type") == "ExternalName" or spec.get("clusterIP") == "None":
            if spec.get("clusterIP") == "None":
                spec["clusterIPs"] = ["None"]
            return
        if old is not None:
            for name in ("clusterIP", "clusterIPs"):
                if name not in spec and name in old["spec"]:
                    spec[name] = old["spec"][name]
        if not spec.get("clusterIP"):
            spec["clusterIP"] = self._addresses.allocate()
        elif old is None:
            self._addresses.claim(service)
        spec["clusterIPs"] = [spec["clusterIP"]]
        if old is None:
            service["status"] = {"loadBalancer": {}}

    def _definition(self, kind: Kind, crd: Json, old: Json | None, user: User) -> None:
        prepare_definition(crd, old, self._registry)

    def _role(self, kind: Kind, role: Json, old: Json | None, user: User) -> None:
        if MASTERS in user.groups or (old is not None and old.get("rules") == role.get("rules")):
            return
        self._refuse_escalation(kind, role, role.get("rules") or [], user, excusing_verb="escalate")

    def _binding(self, kind: Kind, binding: Json, old: Json | None, user: User) -> None:
        if MASTERS in user.groups or (old is not None and old.get("subjects") == binding.get("subjects")):
            return
        reference = binding["roleRef"]
        namespace = binding["metadata"].get("namespace", "")
        resource = "roles" if reference.get("kind") == "Role" else "clusterroles"
        access = Attributes(
            verb="bind", group=RBAC, resource=resource, namespace=namespace, name=reference.get("name", "")
        )
        if self._authorizer.allows(user, access):
            return
        if self._store.get(f"{resource}.{RBAC}", namespace if resource == "roles" else "", reference["name"]) is None:
            raise ApiError(404, f'{resource}.{RBAC} "{reference["name"]}" not found')
        wanted = self._authorizer.role_rules(reference, namespace)
        self._refuse_escalation(kind, binding, list(wanted), user)

    def _refuse_escalation(
        self, kind: Kind, obj: Json, wanted: list[Any], user: User, *, excusing_verb: str = ""
    ) -> None:
        namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        if excusing_verb:
            access = Attributes(verb=excusing_verb, group=RBAC, resource=kind.plural, namespace=namespace, name=name)
            if self._authorizer.allows(user, access):
                return
        missing = missing_rules(wanted, self._authorizer.rules(user, namespace))
        if missing:
            groups = " ".join(f'"{group}"' for group in user.groups)
            raise forbidden(
                kind.group,
                kind.plural,
                obj["metadata"]["name"],
                f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n'
                + compact_text(missing),
            )


def _claim(_kind: Kind, claim: Json, old: Json | None, _user: User) -> None:
    if old is None:
        claim["status"] = {"phase": "Pending"}


def _qos_class(spec: Json) -> str:
    resources = [container.get("resources") or {} for container in spec.get("containers") or ()]
    if not any(entry.get("requests") or entry.get("limits") for entry in resources):
        return "BestEffort"
    names = ("cpu", "memory")
    guaranteed = all(
        (entry.get("limits") or {}).get(name) and entry["limits"][name] == (entry.get("requests") or {}).get(name)
        for entry in resources
        for name in names
    )
    return "Guaranteed" if guaranteed else "Burstable"


class ServiceAddresses:
    """Cluster addresses of Services, taken from one range; the Services in the store are the allocation."""

    def __init__(self, store: Store, service_range: str) -> None:
        self._network = ipaddress.ip_network(service_range)
        self._taken = {service.obj["spec"].get("clusterIP", "") for service in store.scan("services")}
        self._next = 10  # real clusters keep the first addresses for well-known Services such as DNS
        store.listen("services", self._note)

    def allocate(self) -> str:
        """A free address, going round so that one that was just released is not used again at once."""
        size = self._network.num_addresses - 2
        for _ in range(size):
            address = str(self._network[1 + self._next % size])
            self._next += 1
            if address not in self._taken:
                return address
        raise ApiError(500, f"failed to allocate a serviceIP: range {self._network} is full")

    def claim(self, service: Json) -> None:
        """Check an address that the user asked for."""
        address = service["spec"]["clusterIP"]
        try:
            inside = ipaddress.ip_address(address) in self._network
        except ValueError:
            inside = False
        if not inside:
            problem = f"failed to allocate IP {address}: the provided network does not match the current range"
        elif address in self._taken:
            problem = f"failed to allocate IP {address}: provided IP is already allocated"
        else:
            return
        message = f'Invalid value: ["{address}"]: {problem}'
        raise invalid(
            "", "Service", service["metadata"]["name"], [cause("spec.clusterIPs", "FieldValueInvalid", message)]
        )

    def _note(self, change: Change) -> None:
        if change.old is not None:
            self._taken.discard(change.old.obj["spec"].get("clusterIP", ""))
        if not change.deleted:
            self._taken.add(change.new.obj["spec"].get("clusterIP", ""))


def namespace_children(store: Store, namespace: str, authority: bytes, now: str, new_uid: Callable[[], str]) -> None:
    """Create what every namespace has: the `default` ServiceAccount and the authority's certificate."""

    def metadata(name: str) -> Json:
        return {"name": name, "namespace": namespace, "uid": new_uid(), "creationTimestamp": now}

    if store.get("serviceaccounts", namespace, "default") is None:
        store.put("serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("default")})
    if store.get("configmaps", namespace, "kube-root-ca.crt") is None:
        store.put(
            "configmaps",
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": metadata("kube-root-ca.crt"),
                "data": {"ca.crt": authority.decode()},
            },
        )
