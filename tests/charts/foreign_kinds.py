"""CRDs of other projects, with the fields that we use: an API server that serves them refuses what we misspell.

Written after the API references of the Gateway API (v1), its inference extension (v1) and the Prometheus operator (v1).
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
FLAG: Json = {"type": "boolean"}
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
_SELECTOR = thing(matchLabels=TEXTS)
_NAMESPACES = thing(any=FLAG, matchNames=items(TEXT))
_RULE = {
    **thing("expr", record=TEXT, alert=TEXT, expr=TEXT, labels=TEXTS, annotations=TEXTS),
}
_RULE["properties"]["for"] = DURATION

_KINDS = (
    ("gateway.networking.k8s.io", "HTTPRoute", "httproutes", _ROUTE),
    ("inference.networking.k8s.io", "InferencePool", "inferencepools", _POOL),
    (
        "monitoring.coreos.com", "ServiceMonitor", "servicemonitors",
        thing("selector", "endpoints", selector=_SELECTOR, namespaceSelector=_NAMESPACES, endpoints=items(_ENDPOINT)),
    ),
    (
        "monitoring.coreos.com", "PodMonitor", "podmonitors",
        thing("selector", selector=_SELECTOR, namespaceSelector=_NAMESPACES, podMetricsEndpoints=items(_ENDPOINT)),
    ),
    (
        "monitoring.coreos.com", "PrometheusRule", "prometheusrules",
        thing(groups=items(thing("name", name=TEXT, rules=items(_RULE)))),
    ),
)  # fmt: skip


def foreign_crds() -> list[Json]:
    """All of them, as `kubectl apply` takes them."""
    return [_crd(*kind) for kind in _KINDS]


def _crd(group: str, kind: str, plural: str, spec: Json) -> Json:
    annotations = {"api-approved.kubernetes.io": "unapproved, a part for tests"} if group.endswith(".k8s.io") else {}
    schema = thing("spec", apiVersion=TEXT, kind=TEXT, metadata={"type": "object"}, spec=spec)
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
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
