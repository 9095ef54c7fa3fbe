"""How lists and maps of built-in kinds merge, written as the OpenAPI extensions that Kubernetes publishes for them.

Only what differs from the default is here: a list is atomic, a map is merged by key.
Source: the `+listType`, `+mapType`, `patchStrategy` and `patchMergeKey` markers in k8s.io/api `types.go`.
"""

from __future__ import annotations

import functools
from typing import Any

Schema = dict[str, Any]


def _map_list(*keys: str, merge_key: str = "", items: Schema | None = None, retain_keys: bool = False) -> Schema:
    """A list of objects told apart by `keys`; strategic merge patch knows one of them."""
    return {
        "type": "array",
        "items": items or {"type": "object", "properties": {key: {} for key in keys}},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": list(keys),
        "x-kubernetes-patch-strategy": "merge,retainKeys" if retain_keys else "merge",
        "x-kubernetes-patch-merge-key": merge_key or keys[0],
    }


def _struct(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties}


_ATOMIC: Schema = {"type": "object", "x-kubernetes-map-type": "atomic"}
_SET: Schema = {"type": "array", "items": {}, "x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}
_CONDITIONS = _map_list("type")
_METADATA = _struct(
    finalizers=_SET,
    ownerReferences=_map_list("uid", items=_ATOMIC),
    labels={"type": "object", "additionalProperties": True},
    annotations={"type": "object", "additionalProperties": True},
)


def _ports(port: str) -> Schema:
    return _map_list(port, "protocol", items=_struct(**{port: {}, "protocol": {"default": "TCP"}, "name": {}}))


def _container() -> Schema:
    value_from = _struct(
        fieldRef=_ATOMIC, resourceFieldRef=_ATOMIC, configMapKeyRef=_ATOMIC, secretKeyRef=_ATOMIC, fileKeyRef=_ATOMIC
    )
    return _struct(
        name={},
        env=_map_list("name", items=_struct(name={}, value={}, valueFrom=value_from)),
        ports=_ports("containerPort"),
        volumeMounts=_map_list("mountPath"),
        volumeDevices=_map_list("devicePath"),
        resources=_struct(claims=_map_list("name")),
    )


def _pod_spec() -> Schema:
    containers = _map_list("name", items=_container())
    spread = _map_list("topologyKey", "whenUnsatisfiable", items=_struct(labelSelector=_ATOMIC))
    return _struct(
        containers=containers,
        initContainers=containers,
        ephemeralContainers=containers,
        volumes=_map_list("name", retain_keys=True),
        imagePullSecrets=_map_list("name"),
        hostAliases=_map_list("ip"),
        topologySpreadConstraints=spread,
        resourceClaims=_map_list("name", retain_keys=True),
        schedulingGates=_map_list("name"),
        nodeSelector=_ATOMIC,
    )


def _pod_template() -> Schema:
    return _struct(metadata=_METADATA, spec=_pod_spec())


def _workload() -> Schema:
    strategy = {"type": "object", "x-kubernetes-patch-strategy": "retainKeys"}
    return _struct(
        spec=_struct(selector=_ATOMIC, template=_pod_template(), strategy=strategy, updateStrategy=strategy),
        status=_struct(conditions=_CONDITIONS),
    )


def _kinds() -> dict[str, Schema]:
    workload = _workload()
    return {
        "Pod": _struct(spec=_pod_spec(), status=_struct(conditions=_CONDITIONS, podIPs=_map_list("ip"))),
        "PodTemplate": _struct(template=_pod_template()),
        "Deployment": workload,
        "ReplicaSet": workload,
        "StatefulSet": workload,
        "DaemonSet": workload,
        "Job": workload,
        "ReplicationController": workload,
        "Service": _struct(
            spec=_struct(ports=_ports("port"), selector=_ATOMIC), status=_struct(conditions=_CONDITIONS)
        ),
        "ServiceAccount": _struct(secrets=_map_list("name", items=_ATOMIC)),
        "Node": _struct(
            spec=_struct(podCIDRs=_SET),
            status=_struct(conditions=_CONDITIONS, addresses=_map_list("type")),
        ),
        "Namespace": _struct(status=_struct(conditions=_CONDITIONS)),
        "PersistentVolumeClaim": _struct(spec=_struct(selector=_ATOMIC), status=_struct(conditions=_CONDITIONS)),
        "PodDisruptionBudget": _struct(spec=_struct(selector=_ATOMIC), status=_struct(conditions=_CONDITIONS)),
        "RoleBinding": _struct(roleRef=_ATOMIC),
        "ClusterRoleBinding": _struct(roleRef=_ATOMIC),
        "ClusterRole": _struct(aggregationRule=_struct()),
        "CustomResourceDefinition": _struct(status=_struct(conditions=_CONDITIONS)),
    }  # fmt: skip


@functools.cache
def shape_of(kind: str) -> Schema:
    """The merge behaviour of a built-in kind as a schema; of a kind that is not listed only metadata is special."""
    shape = _kinds().get(kind, _struct())
    return {**shape, "properties": {"apiVersion": {}, "kind": {}, **shape["properties"], "metadata": _METADATA}}
