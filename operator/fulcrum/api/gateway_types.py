"""Spec, the part about the gateways: which clients may ask, and for what, how they are reached, and their Pods."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from fulcrum.api.base import ApiStruct, Image, NamespaceName, ObjectName, PositiveDuration, Quantity, Rules, rule
from fulcrum.api.cors_types import Cors
from fulcrum.api.pod_types import LABEL_PART, LabelKey, ResourceAmounts

DEFAULT_REQUEST_TIMEOUT: Final = "1h"
"""Twice what 16,384 tokens take at the default TPOT of 100 ms."""
DEFAULT_BODY_SIZE: Final = "8Mi"
_MAX_BODY_SIZE: Final = "128Mi"
"""Half of what a gateway holds of all large bodies that are still arriving."""
DEFAULT_IDLE_TIMEOUT: Final = "620s"
"""Longer than the idle time-out of load balancers: Google's is 600 s, Azure's 120 s, AWS's 60 s."""
_MAX_ENTRIES: Final = 32

_LabelValue = Annotated[str, Meta(max_length=63, pattern=rf"^({LABEL_PART})?$")]
_Cidr = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]


class PrefixCacheScope(StrEnum):
    SHARED = "Shared"
    PER_KEY = "PerKey"


class GatewayScaling(StrEnum):
    FIXED = "Fixed"
    EXTERNAL = "External"


class RecordPolicy(StrEnum):
    ON = "On"
    OFF = "Off"


class GatewayAuth(ApiStruct, frozen=True, kw_only=True):
    """Authentication of clients."""

    secret_name: Annotated[
        ObjectName,
        Meta(
            description="Secret in the same namespace; each of its values is an API key of at least 8 characters, or "
            'JSON: {"key": ..., "class": ..., "requestsPerMinute": ..., "tokensPerMinute": ...}.'
        ),
    ]
    prefix_cache: Annotated[
        PrefixCacheScope,
        Meta(
            description="Whose prompts share the engines' prefix caches. Shared: those of all keys. PerKey: each key "
            "has its own (vLLM's cache_salt), so that no client learns another's prompts from the time to first token; "
            "equal system prompts of several keys are then computed once for each."
        ),
    ] = PrefixCacheScope.SHARED


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class TrafficPolicy(StrEnum):
    CLUSTER = "Cluster"
    LOCAL = "Local"


class GatewayService(ApiStruct, frozen=True, kw_only=True):
    """The Service in front of the gateways."""

    type: Annotated[
        ServiceType,
        Meta(
            description="How the Service is reached. ClusterIP: from within the Kubernetes cluster. NodePort: on a "
            "port of each node. LoadBalancer: by a load balancer of the cloud; use it with gateway.auth."
        ),
    ] = ServiceType.CLUSTER_IP
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Meta(max_length=1024)]],
        Meta(
            max_length=_MAX_ENTRIES,
            description="Annotations of the Service, such as those that the cloud's load balancer reads.",
        ),
    ] = msgspec.field(default_factory=dict)
    node_port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Meta(description="Port of each node; default: one that Kubernetes chooses."),
    ] = None
    load_balancer_class: Annotated[
        LabelKey | None, Meta(description="Which implementation makes the load balancer; default: the cluster's.")
    ] = None
    load_balancer_source_ranges: Annotated[
        tuple[_Cidr, ...],
        Meta(
            max_length=64,
            description="Client networks that the load balancer lets in, such as 203.0.113.0/24; empty: all.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    external_traffic_policy: Annotated[
        TrafficPolicy | None,
        Meta(
            description="Where connections from outside go. Cluster: to any gateway. Local: to a gateway on the node "
            "that they came to, which spares a hop and keeps the client's address. Default: Cluster."
        ),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            "self.type != 'ClusterIP' || !has(self.nodePort)",
            "nodePort: a Service of type ClusterIP has none; use type NodePort or LoadBalancer, or remove it",
        ),
        rule(
            "self.type != 'ClusterIP' || !has(self.externalTrafficPolicy)",
            "externalTrafficPolicy: nothing comes to a ClusterIP Service from outside; use type NodePort or "
            "LoadBalancer, or remove it",
        ),
        rule(
            "self.type == 'LoadBalancer' || !has(self.loadBalancerClass)",
            "loadBalancerClass: only a Service of type LoadBalancer has one; set type: LoadBalancer, or remove it",
        ),
        rule(
            "self.type == 'LoadBalancer' || !has(self.loadBalancerSourceRanges)"
            " || size(self.loadBalancerSourceRanges) == 0",
            "loadBalancerSourceRanges: only a Service of type LoadBalancer has them; set type: LoadBalancer, or "
            "remove them",
        ),
    )


class GatewayResources(ApiStruct, frozen=True, kw_only=True):
    """CPU and memory of a gateway."""

    requests: Annotated[
        ResourceAmounts,
        Meta(description="What is reserved on the node; default: the limit, or without one 500m and 256Mi."),
    ] = ResourceAmounts()
    limits: Annotated[
        ResourceAmounts,
        Meta(
            description="What a gateway never exceeds; absent: no limit. One above its memory limit is killed with all "
            "its streams; it holds up to 256Mi of request bodies, and as much again of answers."
        ),
    ] = ResourceAmounts()

    rules: ClassVar[Rules] = tuple(
        rule(
            f"!has(self.requests) || !has(self.limits) || !has(self.requests.{name}) || !has(self.limits.{name})"
            f" || quantity(self.requests.{name}).compareTo(quantity(self.limits.{name})) <= 0",
            f"requests.{name} must not be above limits.{name}",
        )
        for name in ("cpu", "memory")
    )


class PullSecret(ApiStruct, frozen=True, kw_only=True):
    """A Secret with which images are pulled."""

    name: Annotated[ObjectName, Meta(description="Secret of type kubernetes.io/dockerconfigjson, same namespace.")]


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(ApiStruct, frozen=True, kw_only=True):
    """A taint that is tolerated."""

    key: Annotated[LabelKey | None, Meta(description="Key of the taint; absent: every key.")] = None
    operator: Annotated[
        TolerationOperator, Meta(description="Equal: the taint's value is `value`. Exists: whatever its value.")
    ] = TolerationOperator.EQUAL
    value: Annotated[_LabelValue | None, Meta(description="Value of the taint.")] = None
    effect: Annotated[TaintEffect | None, Meta(description="Effect of the taint; absent: every effect.")] = None
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=31_536_000)] | None,
        Meta(description="How long a NoExecute taint is tolerated; absent: for ever."),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            "self.operator == 'Exists' || has(self.key)",
            "tolerations: without a key, operator must be Exists, which tolerates every taint",
        ),
        rule(
            "self.operator != 'Exists' || !has(self.value) || self.value == ''",
            "tolerations: operator Exists takes no value; remove it, or use operator Equal",
        ),
        rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerations: tolerationSeconds needs effect NoExecute",
        ),
    )


class GatewayPods(ApiStruct, frozen=True, kw_only=True):
    """Processes that answer clients: how many, what one request may take, how they are reached, and where they run."""

    replicas: Annotated[
        int,
        Meta(ge=1, le=100, description="Gateway replicas; two survive the loss of one. Changing it restarts none."),
    ] = 2
    scaling: Annotated[
        GatewayScaling,
        Meta(
            description="What sets the number of gateways. Fixed: replicas. External: a HorizontalPodAutoscaler or "
            "KEDA that scales their Deployment, beginning with replicas; the operator keeps what it finds."
        ),
    ] = GatewayScaling.FIXED
    image: Annotated[Image | None, Meta(description="Gateway image; default: that of the operator's own release.")] = (
        None
    )
    request_timeout: Annotated[
        PositiveDuration,
        Meta(
            description="Longest time of one request, from its arrival to the last token of its answer, at most 24h. "
            "The default lets 16,384 tokens finish at 200 ms each."
        ),
    ] = DEFAULT_REQUEST_TIMEOUT
    idle_timeout: Annotated[
        PositiveDuration,
        Meta(
            description="How long a connection without a request stays open, at most 24h; longer than that of the load "
            "balancer in front."
        ),
    ] = DEFAULT_IDLE_TIMEOUT
    cors: Annotated[Cors | None, Meta(description="Web pages that may ask; absent: none.")] = None
    max_body_size: Annotated[
        Quantity,
        Meta(description="Largest body of a request, at most 128Mi; a larger one is answered with 413."),
    ] = DEFAULT_BODY_SIZE
    service: Annotated[GatewayService, Meta(description="The Service in front of the gateways.")] = GatewayService()
    resources: Annotated[GatewayResources, Meta(description="CPU and memory of a gateway.")] = GatewayResources()
    image_pull_secrets: Annotated[
        tuple[PullSecret, ...],
        Meta(
            max_length=_MAX_ENTRIES,
            description="Secrets with which the gateway image is pulled.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    node_selector: Annotated[
        dict[LabelKey, _LabelValue],
        Meta(max_length=_MAX_ENTRIES, description="Labels of the nodes that gateways may run on."),
    ] = msgspec.field(default_factory=dict)
    tolerations: Annotated[
        tuple[Toleration, ...],
        Meta(max_length=_MAX_ENTRIES, description="Taints of nodes that gateways may run on all the same."),
    ] = ()
    priority_class_name: Annotated[
        ObjectName | None, Meta(description="PriorityClass of the gateways; default: the cluster's default.")
    ] = None

    rules: ClassVar[Rules] = (
        rule("duration(self.requestTimeout) <= duration('24h')", "requestTimeout must not be longer than 24h"),
        rule(
            "!has(self.priorityClassName) || !self.priorityClassName.startsWith('system-')",
            "gateway.priorityClassName: use a class of your own; system-* classes keep nodes alive",
        ),
        rule(
            "!has(self.idleTimeout) || duration(self.idleTimeout) <= duration('24h')",
            "idleTimeout must not be longer than 24h",
        ),
        rule(
            f"quantity(self.maxBodySize).compareTo(quantity('{_MAX_BODY_SIZE}')) <= 0",
            f"maxBodySize must not be above {_MAX_BODY_SIZE}: a gateway holds bodies in memory",
        ),
    )


class Hold(ApiStruct, frozen=True, kw_only=True):
    """Requests that wait at a gateway while workers start, with balance.idleAfter."""

    max_requests: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Requests that each gateway holds at most; further ones get 503 with Retry-After.",
        ),
    ] = 100
    max_wait: Annotated[
        PositiveDuration,
        Meta(
            description="Longest wait of a held request, at most 1h; then it gets 503 with Retry-After. Longer than a "
            "worker takes to start, and shorter than requestTimeout, which counts from the request's arrival."
        ),
    ] = "15m"

    rules: ClassVar[Rules] = (rule("duration(self.maxWait) <= duration('1h')", "maxWait must not be longer than 1h"),)


class Gateway(GatewayPods, frozen=True, kw_only=True):
    """The OpenAI-compatible endpoint."""

    auth: Annotated[
        GatewayAuth | None,
        Meta(description="API keys; absent: no authentication."),
    ] = None
    heartbeat: Annotated[
        PositiveDuration | None,
        Meta(
            description="A stream that waits for its first token gets an SSE comment this often, at least 1s, so that "
            "no balancer cuts it; its status is then 200 before an engine answered. Absent: none."
        ),
    ] = None
    hold: Annotated[
        Hold,
        Meta(
            description="Requests that wait while workers start, with balance.idleAfter. A held stream gets an SSE "
            "comment at every heartbeat, or every 10s without one."
        ),
    ] = Hold()
    record: Annotated[
        RecordPolicy,
        Meta(
            description="Whether each gateway keeps its last minutes of requests in at most 8Mi, as lengths, times and "
            'keyed hashes of prompt prefixes, never text; `fulcrum record` reads them. On, or "Off" (in quotes: YAML '
            "takes a bare Off for false)."
        ),
    ] = RecordPolicy.ON
    allowed_namespaces: Annotated[
        tuple[NamespaceName, ...],
        Meta(
            max_length=_MAX_ENTRIES,
            description="Other namespaces whose InferenceGateways may send requests to this cluster; empty: none. An "
            "InferenceGateway of this namespace always may.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()

    rules: ClassVar[Rules] = (
        *GatewayPods.rules,
        rule(
            "!has(self.heartbeat) || duration(self.heartbeat) >= duration('1s')",
            "heartbeat must not be shorter than 1s",
        ),
    )
