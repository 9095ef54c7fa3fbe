"""InferenceGateway: several models behind one address, each served by one or more InferenceClusters."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from fulcrum.api.adapter_types import AdapterName
from fulcrum.api.base import ApiStruct, Name, NamespaceName, ObjectName, Rules, rule
from fulcrum.api.gateway_types import GatewayPods
from fulcrum.api.names import API_VERSION, FRONT_KIND
from fulcrum.api.status import ConditionStatus, Count, Message, ReasonWord, Time
from fulcrum.api.types import ObjectMeta

MAX_MODELS: Final = 64
"""Models of one InferenceGateway; with their aliases and backends they fit into a ConfigMap many times."""
_MAX_ALIASES: Final = 8
_MAX_BACKENDS: Final = 8
_MAX_WEIGHT: Final = 1000
_MAX_PER_MINUTE: Final = 1_000_000_000

_ModelName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\s-][^\s]*$")]
_SAME_CLUSTER: Final = "a.cluster == b.cluster && a.?__namespace__.orValue('') == b.?__namespace__.orValue('')"
"""CEL; `namespace` is a reserved word there, which Kubernetes escapes."""


class ClusterRef(ApiStruct, frozen=True, kw_only=True):
    """An InferenceCluster."""

    cluster: Annotated[Name, Meta(description="Name of the InferenceCluster.")]
    namespace: Annotated[
        NamespaceName | None,
        Meta(
            description="Its namespace; default: that of this object. Another one only with a grant: list this "
            "object's namespace in the InferenceCluster's spec.gateway.allowedNamespaces."
        ),
    ] = None


class Backend(ClusterRef, frozen=True, kw_only=True):
    """An InferenceCluster that serves a share of a model's requests."""

    weight: Annotated[
        int,
        Meta(
            ge=0,
            le=_MAX_WEIGHT,
            description="Share of new conversations, relative to the other backends. 0: none, while conversations that "
            "began there end there.",
        ),
    ] = 1


class FrontAuth(ApiStruct, frozen=True, kw_only=True):
    """API keys of a model."""

    secret_name: Annotated[
        ObjectName,
        Meta(
            description="Secret in this object's namespace; each of its values is an API key of at least 8 characters, "
            'or JSON: {"key": ..., "requestsPerMinute": ..., "tokensPerMinute": ...}. Such a key is passed on to '
            "clusters of this namespace, and never to those of another one."
        ),
    ]


class ModelLimits(ApiStruct, frozen=True, kw_only=True):
    """What all clients together may ask of a model."""

    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1, le=_MAX_PER_MINUTE)] | None,
        Meta(description="Requests in a minute; what is beyond gets 429. Absent: no limit."),
    ] = None
    tokens_per_minute: Annotated[
        Annotated[int, Meta(ge=1, le=_MAX_PER_MINUTE)] | None,
        Meta(
            description="Prompt and output tokens in a minute; a prompt counts as a quarter of its bytes until the "
            "answer says more. Absent: no limit."
        ),
    ] = None


class FrontModel(ApiStruct, frozen=True, kw_only=True):
    """A model that clients can ask for."""

    name: Annotated[_ModelName, Meta(description="What clients send as `model`.")]
    aliases: Annotated[
        tuple[_ModelName, ...],
        Meta(
            max_length=_MAX_ALIASES,
            description="Other names for it; a cluster is always sent its own servedName, or `adapter`.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    adapter: Annotated[
        AdapterName | None,
        Meta(
            description="LoRA adapter that this model is: clusters are sent this name in place of their servedName. "
            "Each of them needs it in its spec.adapters.list. Absent: the clusters' own model."
        ),
    ] = None
    backends: Annotated[
        tuple[Backend, ...],
        Meta(
            min_length=1,
            max_length=_MAX_BACKENDS,
            description="Clusters that share its requests by weight. A conversation stays on its cluster.",
        ),
    ]
    fallback: Annotated[
        tuple[ClusterRef, ...],
        Meta(
            max_length=_MAX_BACKENDS,
            description="Clusters to try, in this order, when the chosen one turns a request away (429 or 503) or "
            "cannot be reached, before any byte of an answer was sent.",
        ),
    ] = ()
    auth: Annotated[
        FrontAuth | None,
        Meta(description="API keys; absent: the front asks for none. A cluster asks for its own all the same."),
    ] = None
    limits: Annotated[ModelLimits, Meta(description="Bounds for all clients together.")] = ModelLimits()

    rules: ClassVar[Rules] = (
        rule(
            f"self.backends.all(a, self.backends.exists_one(b, {_SAME_CLUSTER}))",
            "backends: a cluster is listed twice; list it once, with the sum of the weights",
        ),
        rule(
            f"!has(self.fallback) || self.fallback.all(a, self.fallback.exists_one(b, {_SAME_CLUSTER}))",
            "fallback: a cluster is listed twice; the second time has no effect, remove it",
        ),
        rule(
            "self.backends.exists(b, b.weight > 0)",
            "backends: every weight is 0, so that no cluster would get a new conversation; set one weight above 0",
        ),
        rule(
            "!has(self.aliases) || !self.aliases.exists(a, a == self.name)",
            "aliases: one is the model's own name; remove it",
        ),
    )


class InferenceGatewaySpec(ApiStruct, frozen=True, kw_only=True):
    """Which models there are, and the processes that pass their requests on."""

    models: Annotated[
        tuple[FrontModel, ...],
        Meta(
            min_length=1,
            max_length=MAX_MODELS,
            description="Models that clients can ask for; `/v1/models` lists them.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    gateway: Annotated[GatewayPods, Meta(description="The processes that pass requests on.")] = GatewayPods()

    rules: ClassVar[Rules] = (
        rule(
            "self.models.all(m, !has(m.aliases) || m.aliases.all(a, !self.models.exists(n, n.name == a)))",
            "models: an alias is the name of another model; each name must lead to one model",
        ),
        rule(
            "self.models.all(m, !has(m.aliases) || m.aliases.all(a,"
            " self.models.exists_one(n, has(n.aliases) && a in n.aliases)))",
            "models: two models have the same alias; each name must lead to one model",
        ),
    )


class FrontConditionType(StrEnum):
    AVAILABLE = "Available"
    DEGRADED = "Degraded"


class FrontCondition(ApiStruct, frozen=True, kw_only=True):
    """A standard `metav1.Condition`."""

    type: Annotated[
        FrontConditionType,
        Meta(description="Available: a front is ready and every model has a cluster. Degraded: something is wrong."),
    ]
    status: Annotated[ConditionStatus, Meta(description="True, False or Unknown.")]
    reason: ReasonWord
    message: Annotated[Message, Meta(description="Why, for people, and what to do.")]
    observed_generation: Annotated[Count, Meta(description="Generation of the spec that the condition is about.")]
    last_transition_time: Annotated[Time, Meta(description="When `status` last changed.")]


class ServingCluster(ApiStruct, frozen=True, kw_only=True):
    """An InferenceCluster that requests can be sent to."""

    name: Annotated[str, Meta(max_length=128, description="The InferenceCluster, as <namespace>/<name>.")]
    endpoint: Annotated[str, Meta(max_length=512, description="URL of its gateways.")]
    served_name: Annotated[str, Meta(max_length=256, description="What its gateways take as `model`.")]
    headers: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...],
        Meta(max_length=64, description="Headers of clients that say the QoS class there, in lower case."),
    ] = ()
    takes_keys: Annotated[
        bool, Meta(description="It gets API keys that a front has checked: it is in the same namespace.")
    ] = True


class InferenceGatewayStatus(ApiStruct, frozen=True, kw_only=True):
    """What is there; written by the operator."""

    observed_generation: Annotated[int | None, Meta(description="Generation of the spec that was last acted on.")] = (
        None
    )
    endpoint: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="URL of the address of all models, inside the Kubernetes cluster."),
    ] = None
    ready: Annotated[
        Annotated[str, Meta(max_length=32)] | None, Meta(description="Models that have a cluster, of all: `2/3`.")
    ] = None
    replicas: Annotated[Count, Meta(description="Fronts that share the limits.")] = 1
    clusters: Annotated[
        tuple[ServingCluster, ...],
        Meta(
            max_length=MAX_MODELS * 2 * _MAX_BACKENDS,
            description="Clusters that requests can be sent to. Fronts use no others.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    conditions: Annotated[
        tuple[FrontCondition, ...],
        Meta(
            max_length=8,
            description="Available and Degraded.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()


class InferenceGateway(ApiStruct, frozen=True, kw_only=True):
    """Several models behind one address: requests go by `model` to InferenceClusters, which admit or reject them."""

    api_version: str = API_VERSION
    kind: str = FRONT_KIND
    metadata: ObjectMeta
    spec: Annotated[InferenceGatewaySpec, Meta(description="What is wanted.")]
    status: Annotated[InferenceGatewayStatus, Meta(description="What is there; written by the operator.")] = (
        InferenceGatewayStatus()
    )

    rules: ClassVar[Rules] = (
        rule(
            "size(self.metadata.name) <= 40 && !self.metadata.name.contains('.')"
            " && !self.metadata.name.matches('^[0-9]')",
            "metadata.name: use at most 40 lower-case letters, digits and dashes, a letter first; "
            "the names of Services and Pods are made from it",
        ),
    )
