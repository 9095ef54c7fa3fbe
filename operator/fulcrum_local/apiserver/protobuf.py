"""Bodies in Kubernetes' protobuf encoding, which kubectl sends for `create`, `auth can-i` and `create token`.

Only what those commands send is read: the field numbers below, together with the types of the models. A message with
another field is refused (415) rather than half understood. Answers are JSON, which such clients accept.
Source: the `generated.proto` files of k8s.io/api and k8s.io/apimachinery (field numbers).
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any, Final

from fulcrum_local.apiserver.errors import Json, bad_request, unsupported_media_type
from fulcrum_local.apiserver.model_types import FieldType, Model, fields_of, model_of

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_FIELDS: Final[dict[str, str]] = {
    # message: its fields, numbered from 1; `-` is a number that is not read here
    "ObjectMeta": "name generateName namespace selfLink uid resourceVersion generation creationTimestamp "
    "deletionTimestamp deletionGracePeriodSeconds labels annotations ownerReferences finalizers - - managedFields",
    "OwnerReference": "kind:1 name:3 uid:4 apiVersion:5 controller:6 blockOwnerDeletion:7",
    "LabelSelector": "matchLabels matchExpressions",
    "LabelSelectorRequirement": "key operator values",
    "DeleteOptions": "gracePeriodSeconds preconditions orphanDependents propagationPolicy dryRun",
    "Preconditions": "uid resourceVersion",
    "ConfigMap": "metadata data binaryData immutable",
    "Secret": "metadata data type stringData immutable",
    "Namespace": "metadata spec status",
    "NamespaceSpec": "finalizers",
    "NamespaceStatus": "phase conditions",
    "ServiceAccount": "metadata secrets imagePullSecrets automountServiceAccountToken",
    "Service": "metadata spec status",
    "ServiceSpec": "ports selector clusterIP type externalIPs - sessionAffinity loadBalancerIP "
    "loadBalancerSourceRanges externalName externalTrafficPolicy healthCheckNodePort publishNotReadyAddresses",
    "ServicePort": "name protocol port targetPort nodePort appProtocol",
    "ServiceStatus": "loadBalancer conditions",
    "LoadBalancerStatus": "ingress",
    "Deployment": "metadata spec status",
    "DeploymentSpec": "replicas selector template strategy minReadySeconds revisionHistoryLimit paused - "
    "progressDeadlineSeconds",
    "DeploymentStrategy": "type rollingUpdate",
    "RollingUpdateDeployment": "maxUnavailable maxSurge",
    "DeploymentStatus": "observedGeneration replicas updatedReplicas availableReplicas unavailableReplicas conditions "
    "readyReplicas collisionCount",
    "PodTemplateSpec": "metadata spec",
    "PodSpec": "volumes containers restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy "
    "nodeSelector serviceAccountName serviceAccount nodeName hostNetwork hostPID hostIPC securityContext "
    "imagePullSecrets hostname subdomain affinity schedulerName initContainers - tolerations hostAliases "
    "priorityClassName priority",
    "Container": "name image command args workingDir ports env resources volumeMounts livenessProbe readinessProbe "
    "lifecycle terminationMessagePath imagePullPolicy securityContext stdin stdinOnce tty envFrom "
    "terminationMessagePolicy",
    "ContainerPort": "name hostPort containerPort protocol hostIP",
    "EnvVar": "name value valueFrom",
    "ResourceRequirements": "limits requests claims",
    "Role": "metadata rules",
    "ClusterRole": "metadata rules aggregationRule",
    "AggregationRule": "clusterRoleSelectors",
    "PolicyRule": "verbs apiGroups resources resourceNames nonResourceURLs",
    "RoleBinding": "metadata subjects roleRef",
    "ClusterRoleBinding": "metadata subjects roleRef",
    "Subject": "kind apiGroup name namespace",
    "RoleRef": "apiGroup kind name",
    "PodDisruptionBudget": "metadata spec status",
    "PodDisruptionBudgetSpec": "minAvailable selector maxUnavailable unhealthyPodEvictionPolicy",
    "PodDisruptionBudgetStatus": "observedGeneration disruptedPods disruptionsAllowed currentHealthy desiredHealthy "
    "expectedPods conditions",
    "Eviction": "metadata deleteOptions",
    "TokenRequest": "metadata spec status",
    "TokenRequestSpec": "audiences:1 boundObjectRef:3 expirationSeconds:4",
    "TokenRequestStatus": "token expirationTimestamp",
    "BoundObjectReference": "kind apiVersion name uid",
    "TokenReview": "metadata spec status",
    "TokenReviewSpec": "token audiences",
    "TokenReviewStatus": "authenticated user error audiences",
    "UserInfo": "username uid groups extra",
    "SelfSubjectReview": "metadata status",
    "SelfSubjectReviewStatus": "userInfo",
    "SelfSubjectAccessReview": "metadata spec status",
    "SelfSubjectAccessReviewSpec": "resourceAttributes nonResourceAttributes",
    "SubjectAccessReview": "metadata spec status",
    "LocalSubjectAccessReview": "metadata spec status",
    "SubjectAccessReviewSpec": "resourceAttributes nonResourceAttributes user groups extra uid",
    "SubjectAccessReviewStatus": "allowed reason evaluationError denied",
    "ResourceAttributes": "namespace verb group version resource subresource name",
    "NonResourceAttributes": "path verb",
    "SelfSubjectRulesReview": "metadata spec status",
    "SelfSubjectRulesReviewSpec": "namespace",
    "SubjectRulesReviewStatus": "resourceRules nonResourceRules incomplete evaluationError",
}
_PLAIN_ZEROES: Final = frozenset(
    {"generation", "hostPort", "nodePort", "healthCheckNodePort", "minReadySeconds", "hostNetwork", "hostPID",
     "hostIPC", "paused", "stdin", "stdinOnce", "tty", "publishNotReadyAddresses"}
)  # fmt: skip
"""Fields that are no pointers in Go: always on the wire, and absent in JSON when they are zero."""
_BINARY_MAPS: Final = frozenset({"binaryData", "Secret.data"})


def decode_protobuf(raw: bytes) -> Json:
    """The object in a protobuf body; 400 when it is damaged, 415 when it has what is not read here."""
    if not raw.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 'k8s\\x00'")
    try:
        envelope = dict(_wire_fields(raw[len(_MAGIC) :]))
        names = dict(_wire_fields(envelope.get(1, b"")))
        api_version, kind = names.get(1, b"").decode(), names.get(2, b"").decode()
        group, _, version = api_version.rpartition("/")
        # Options travel under the group that they are used in, but there is one type of them.
        model = model_of("meta", "v1", kind) if kind == "DeleteOptions" else model_of(group, version, kind)
        if model is None or kind not in _FIELDS:
            raise unsupported_media_type(["application/json"])
        return {"apiVersion": api_version, "kind": kind, **_message(envelope.get(2, b""), model)}
    except (IndexError, TypeError, AttributeError, ValueError, OverflowError, OSError) as error:
        # Protobuf says no types: a number where bytes belong, or a time out of range, shows only when it is used.
        raise bad_request(f"error decoding protobuf: {error}") from None


def _numbers(message: str) -> dict[int, str]:
    numbers: dict[int, str] = {}
    for position, entry in enumerate(_FIELDS[message].split(), start=1):
        name, _, number = entry.partition(":")
        numbers[int(number or position)] = name
    return numbers


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _wire_fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(raw, position)
            yield number, value - (1 << 64) if value >= 1 << 63 else value
        elif wire_type == _BYTES:
            length, position = _varint(raw, position)
            if position + length > len(raw):
                raise ValueError("unexpected EOF")
            yield number, raw[position : position + length]
            position += length
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
            yield number, raw[position : position + length]
            position += length
        else:
            raise ValueError(f"wire type {wire_type}")


def _message(raw: bytes, model: Model) -> Json:
    if model.kind not in _FIELDS:
        raise unsupported_media_type(["application/json"])
    numbers, types = _numbers(model.kind), fields_of(model)
    decoded: Json = {}
    for number, content in _wire_fields(raw):
        name = numbers.get(number)
        if name is None and not content:
            continue  # Go writes what is no pointer also when it is unset
        if name is None or name not in types:
            raise unsupported_media_type(["application/json"])
        _add(
            decoded,
            name,
            content,
            types[name].type,
            binary=name in _BINARY_MAPS or f"{model.kind}.{name}" in _BINARY_MAPS,
        )
    return decoded


def _add(decoded: Json, name: str, content: Any, expected: FieldType, *, binary: bool) -> None:
    if expected.shape == "list" and expected.item is not None:
        decoded.setdefault(name, []).append(_value(content, expected.item))
    elif expected.shape == "map" and expected.item is not None:
        entry = dict(_wire_fields(content))
        value = entry.get(2, b"")
        text = base64.b64encode(value).decode() if binary else _value(value, expected.item)
        decoded.setdefault(name, {})[entry.get(1, b"").decode()] = text
    else:
        value = _value(content, expected)
        if value in ("", None) or (not value and name in _PLAIN_ZEROES):
            return
        decoded[name] = value


def _value(content: Any, expected: FieldType) -> Any:
    if expected.model is not None:
        return _message(content, expected.model)
    read = _READERS.get(expected.shape)
    if read is None:
        raise unsupported_media_type(["application/json"])
    return read(content)


def _time(content: bytes) -> str | None:
    seconds = dict(_wire_fields(content)).get(1)
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None


def _int_or_string(content: bytes) -> int | str:
    parts = dict(_wire_fields(content))
    return str(parts.get(3, b"").decode()) if parts.get(1) else int(parts.get(2, 0))


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "integer": int,
    "boolean": bool,
    "string": bytes.decode,
    "quantity": lambda content: dict(_wire_fields(content)).get(1, b"").decode(),
    "time": _time,
    "int_or_string": _int_or_string,
}
