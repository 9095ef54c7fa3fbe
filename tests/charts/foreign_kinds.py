"""CRDs of other projects, with the fields that we use: an API server that serves them refuses what we misspell.

Written after the API references of the Gateway API (v1), its inference extension (v1), the Prometheus operator (v1),
KEDA (v1alpha1), Kubernetes (HorizontalPodAutoscaler, autoscaling/v2) and LeaderWorkerSet (v1). No package registry has
that last one's published CRD: its part here is transcribed by hand from kubernetes-sigs/lws, api/leaderworkerset/v1.
Pod templates are open in it; `tests/controller/test_worker_group.py` holds them against what Kubernetes publishes.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
FLAG: Json = {"type": "boolean"}
COUNT: Json = {"type": "integer", "minimum": 0}
PORT: Json = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXTS: Json = {"type": "object", "additionalProperties": TEXT}
DURATION: Json = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}


def thing(*required: str, **properties: Json) -> Json:
    """An object with these fields and no other."""
    return {"type": "object", "properties": properties, "required": list(required)}


def items(of: Json) -> Json:
    """A list."""
    return {"type": "array", "items": of}


_PARENT = thing("name", name=TEXT, namespace=TEXT, sectionName=TEXT)
_BACKEND = thing("name", group=TEXT, kind=TEXT, name=TEXT, port=PORT)
_MATCH = thing(path=thing(type={**TEXT, "enum": ["Exact", "PathPrefix", "RegularExpression"]}, value=TEXT))
_ROUTE = thing(
    parentRefs=items(_PARENT),
    hostnames=items(TEXT),
    rules=items(thing(matches=items(_MATCH), backendRefs=items(_BACKEND), timeouts=thing(request=DURATION))),
)
_POOL = thing(
    "selector", "targetPorts", "endpointPickerRef",
    selector=thing("matchLabels", matchLabels=TEXTS),
    targetPorts={**items(thing("number", number=PORT)), "minItems": 1},
    endpointPickerRef=thing(
        "name", group=TEXT, kind=TEXT, name=TEXT, port=thing("number", number=PORT),
        failureMode={**TEXT, "enum": ["FailOpen", "FailClose"]},
    ),
)  # fmt: skip
_ENDPOINT = thing(port=TEXT, path=TEXT, interval=DURATION, honorLabels=FLAG)
_OPERATOR = {**TEXT, "enum": ["In", "NotIn", "Exists", "DoesNotExist"]}
_REQUIREMENT = thing("key", "operator", key=TEXT, operator=_OPERATOR, values=items(TEXT))
_SELECTOR = thing(matchLabels=TEXTS, matchExpressions=items(_REQUIREMENT))
_NAMESPACES = thing(any=FLAG, matchNames=items(TEXT))
_RULE = {
    **thing("expr", record=TEXT, alert=TEXT, expr=TEXT, labels=TEXTS, annotations=TEXTS),
}
_RULE["properties"]["for"] = DURATION

_TARGET = thing("kind", "name", apiVersion=TEXT, kind=TEXT, name=TEXT)
_POLICY = thing(
    "type", "value", "periodSeconds",
    type={**TEXT, "enum": ["Pods", "Percent"]}, value=COUNT, periodSeconds={**COUNT, "maximum": 1800},
)  # fmt: skip
_SCALING = thing(
    stabilizationWindowSeconds={**COUNT, "maximum": 3600},
    selectPolicy={**TEXT, "enum": ["Max", "Min", "Disabled"]},
    policies=items(_POLICY),
)
_BEHAVIOR = thing(scaleUp=_SCALING, scaleDown=_SCALING)
_METRIC = thing(
    "type",
    type={**TEXT, "enum": ["Pods", "Resource"]},
    resource=thing(
        "name", "target",
        name={**TEXT, "enum": ["cpu", "memory"]},
        target=thing("type", type={**TEXT, "enum": ["Utilization"]}, averageUtilization={**COUNT, "minimum": 1}),
    ),
    pods=thing(
        "metric", "target",
        metric=thing("name", name=TEXT, selector=_SELECTOR),
        target=thing("type", type={**TEXT, "enum": ["AverageValue"]}, averageValue=TEXT),
    ),
)  # fmt: skip
_AUTOSCALER = thing(
    "scaleTargetRef", "maxReplicas",
    scaleTargetRef=_TARGET, minReplicas=COUNT, maxReplicas=COUNT, metrics=items(_METRIC), behavior=_BEHAVIOR,
)  # fmt: skip
_TRIGGER = thing(
    "type", "metadata",
    type=TEXT,
    metricType={**TEXT, "enum": ["AverageValue", "Value", "Utilization"]},
    metadata=thing("serverAddress", "query", "threshold", serverAddress=TEXT, query=TEXT, threshold=TEXT),
)  # fmt: skip
_SCALED = thing(
    "scaleTargetRef", "triggers",
    scaleTargetRef=_TARGET, pollingInterval=COUNT, cooldownPeriod=COUNT, minReplicaCount=COUNT, maxReplicaCount=COUNT,
    triggers=items(_TRIGGER), advanced=thing(horizontalPodAutoscalerConfig=thing(behavior=_BEHAVIOR)),
)  # fmt: skip
_TEMPLATE: Json = {
    "type": "object",
    "properties": {
        "metadata": thing(labels=TEXTS, annotations=TEXTS),
        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
_GROUP_SIZE: Json = {"type": "integer", "format": "int32", "default": 1}
_GROUPS = thing(
    "leaderWorkerTemplate",
    replicas=_GROUP_SIZE,
    startupPolicy={**TEXT, "enum": ["LeaderCreated", "LeaderReady"], "default": "LeaderCreated"},
    networkConfig=thing("subdomainPolicy", subdomainPolicy={**TEXT, "enum": ["Shared", "UniquePerReplica"]}),
    leaderWorkerTemplate=thing(
        "workerTemplate",
        size=_GROUP_SIZE,
        restartPolicy={
            **TEXT,
            "enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"],
            "default": "RecreateGroupOnPodRestart",
        },
        leaderTemplate=_TEMPLATE,
        workerTemplate=_TEMPLATE,
    ),
)

_KINDS = (
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", _GROUPS),
    ("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", _AUTOSCALER),
    ("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", _SCALED),
    ("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", _ROUTE),
    ("inference.networking.k8s.io/v1", "InferencePool", "inferencepools", _POOL),
    (
        "monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors",
        thing("selector", "endpoints", selector=_SELECTOR, namespaceSelector=_NAMESPACES, endpoints=items(_ENDPOINT)),
    ),
    (
        "monitoring.coreos.com/v1", "PodMonitor", "podmonitors",
        thing("selector", selector=_SELECTOR, namespaceSelector=_NAMESPACES, podMetricsEndpoints=items(_ENDPOINT)),
    ),
    (
        "monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules",
        thing(groups=items(thing("name", name=TEXT, rules=items(_RULE)))),
    ),
)  # fmt: skip


def foreign_crds() -> list[Json]:
    """All of them, as `kubectl apply` takes them."""
    return [_crd(*kind) for kind in _KINDS]


def _crd(api_version: str, kind: str, plural: str, spec: Json) -> Json:
    group, _, name = api_version.partition("/")
    annotations = {"api-approved.kubernetes.io": "unapproved, a part for tests"} if group.endswith(".k8s.io") else {}
    schema = thing("spec", apiVersion=TEXT, kind=TEXT, metadata={"type": "object"}, spec=spec)
    version = {"name": name, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": annotations},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }
