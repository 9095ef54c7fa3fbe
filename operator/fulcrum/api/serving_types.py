"""Spec, the part about what is served, and to whom: model, SLO, admission, metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from fulcrum.api.base import ApiStruct, ConfigMapKey, Name, ObjectName, PositiveDuration, Rules, rule

MAX_CLASSES = 32


class Credentials(ApiStruct, frozen=True, kw_only=True):
    """Access to a gated or private model."""

    secret_name: Annotated[
        ObjectName, Meta(description="Secret in the same namespace; its key `token` is handed to the workers.")
    ]


class ModelCache(ApiStruct, frozen=True, kw_only=True):
    """Where weights are kept between starts."""

    persistent_volume_claim: Annotated[
        ObjectName, Meta(description="Claim that holds downloaded weights; mounted in every worker.")
    ]
    preload: Annotated[
        bool,
        Meta(
            description="Download the weights by a Job without GPUs, which is made once for each claim, model and "
            "revision, also while the cluster sleeps. While it runs the first workers wait for it. If it fails "
            "(PreloadFailed), workers load the weights by themselves. A path must be on the claim, below /cache."
        ),
    ] = False


class ModelConfigMap(ApiStruct, frozen=True, kw_only=True):
    """Where the model's config.json is."""

    config_map: Annotated[ObjectName, Meta(description="ConfigMap in the same namespace.")]
    key: Annotated[
        ConfigMapKey,
        Meta(description="Key of the ConfigMap's `data` that holds the config.json, as in the model's repository."),
    ] = "config.json"


class ModelTask(StrEnum):
    GENERATE = "Generate"
    POOLING = "Pooling"


class Model(ApiStruct, frozen=True, kw_only=True):
    """The model that is served."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            # A leading dash would be read as an option of the engine.
            pattern=r"^[^\s-].*$",
            description="Hub id, such as meta-llama/Llama-3.1-70B-Instruct, or a path inside the worker.",
        ),
    ]
    task: Annotated[
        ModelTask,
        Meta(
            description="What the model does. Generate: it answers chats and completions. Pooling: it makes embeddings "
            "and scores (/v1/embeddings, /v1/score, /v1/rerank); every pool needs roles: [mixed]. Changing it replaces "
            "all workers."
        ),
    ] = ModelTask.GENERATE
    revision: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\s-][^\s]*$")] | None,
        Meta(description="Commit, branch or tag of the model's repository; default: its main branch."),
    ] = None
    trust_remote_code: Annotated[
        bool,
        Meta(
            description="Let the engine run code from the model's repository, at `revision`, where the operator runs "
            "with --allow-remote-code. Models such as Kimi-K2 need it."
        ),
    ] = False
    config: Annotated[
        ModelConfigMap | None,
        Meta(
            description="The config.json of a model that Fulcrum's tables do not know: KV dtype, attention backend, "
            "disk, refusals and estimates follow from it. For a model that the tables know, they go first. Absent: "
            "dense attention, and vLLM's own KV dtype. Read again every minute; a change restarts nothing: it holds "
            "for new revisions. While it cannot be used, workers that stand go on, and no new revision begins."
        ),
    ] = None
    served_name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\s-][^\s]*$")] | None,
        Meta(description="Name that clients send as `model`; default: the name of the InferenceCluster."),
    ] = None
    max_model_len: Annotated[
        Annotated[int, Meta(ge=1, le=16_777_216)] | None,
        Meta(description="Longest prompt plus output, in tokens; default: what the model allows."),
    ] = None
    credentials: Annotated[Credentials | None, Meta(description="Access to a gated or private model.")] = None
    cache: Annotated[
        ModelCache | None, Meta(description="Where weights are kept between starts; default: the worker's own disk.")
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            "!self.trustRemoteCode || has(self.revision)",
            "trustRemoteCode: code from a repository runs as it was reviewed; name the commit in revision",
        ),
        rule(
            "!has(self.cache) || !self.cache.preload || self.name.startsWith('/cache/') || !self.name.matches('^[/.]')",
            "cache.preload: a path is not downloaded; name a hub id or a path below /cache, or remove preload",
        ),
    )


class Slo(ApiStruct, frozen=True, kw_only=True):
    """The latency that is promised."""

    ttft: Annotated[PositiveDuration, Meta(description="Time to first token that a request must stay within.")] = "2s"
    tpot: Annotated[PositiveDuration, Meta(description="Time per output token that a request must stay within.")] = (
        "100ms"
    )
    attainment: Annotated[
        float, Meta(gt=0, le=1, description="Share of requests that must stay within both, above 0 and up to 1.")
    ] = 0.95


class AdmissionPolicy(StrEnum):
    PREDICTIVE = "Predictive"
    THRESHOLD = "Threshold"
    OFF = "Off"


class ClassMatch(ApiStruct, frozen=True, kw_only=True):
    """Which requests are of a class."""

    header: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            pattern=r"^[A-Za-z0-9-]+$",
            description="Request header that names the class, such as x-customer-tier; case does not matter.",
        ),
    ]
    value: Annotated[
        str, Meta(min_length=1, max_length=256, description="Value of the header that selects the class, exactly.")
    ]


class ClassKind(StrEnum):
    ONLINE = "Online"
    BATCH = "Batch"


class Degrade(ApiStruct, frozen=True, kw_only=True):
    """What a class gives up before its requests are refused."""

    max_output_tokens: Annotated[
        int,
        Meta(
            ge=1,
            le=1_048_576,
            description="While the cluster is predicted to be saturated, no answer of the class gets more output "
            "tokens. Such an answer has the header x-fulcrum-degraded.",
        ),
    ]


class QosClass(ApiStruct, frozen=True, kw_only=True):
    """One QoS class."""

    name: Annotated[Name, Meta(description="Name of the class, unique in the cluster.")]
    kind: Annotated[
        ClassKind,
        Meta(
            description="What its requests are promised. Online: the SLO. Batch: nothing. They are let in only where "
            "prefill and decode are idle, make way for online requests within one engine step, are not counted in the "
            "attainment, and start no worker. See docs/operations/batch.md."
        ),
    ] = ClassKind.ONLINE
    priority: Annotated[int, Meta(ge=0, le=1000, description="Higher is served first, 0 to 1000.")]
    reserved: Annotated[
        float, Meta(ge=0, le=1, description="Share of capacity kept for the class, 0 to 1; together at most 1.")
    ] = 0.0
    match: Annotated[
        ClassMatch | None, Meta(description="Which requests are of the class; absent in exactly one class: the rest.")
    ] = None
    degrade: Annotated[
        Degrade | None,
        Meta(description="What the class gives up before its requests are refused; absent: nothing."),
    ] = None


class AdmissionQueue(ApiStruct, frozen=True, kw_only=True):
    """A queue at each gateway for requests that would be refused now, but may be served in time a little later."""

    max_wait: Annotated[
        PositiveDuration,
        Meta(
            description="Longest wait of a request, at most 1h. While the policy is Predictive, a request is refused "
            "before that as soon as it can no longer keep slo.ttft."
        ),
    ]
    max_requests: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Most requests that wait at one gateway; each API key gets its share of it."),
    ]

    rules: ClassVar[Rules] = (rule("duration(self.maxWait) <= duration('1h')", "maxWait must not be longer than 1h"),)


class Admission(ApiStruct, frozen=True, kw_only=True):
    """Early rejection and QoS classes."""

    policy: Annotated[
        AdmissionPolicy,
        Meta(
            description='How a request that could not be served in time is turned away. "Off" (in quotes: YAML takes a '
            "bare Off for false) admits everything. Predictive refuses what it predicts to miss the SLO. Threshold "
            "refuses above fixed limits of queue, batch and KV cache."
        ),
    ] = AdmissionPolicy.PREDICTIVE
    classes: Annotated[
        tuple[QosClass, ...],
        Meta(
            max_length=MAX_CLASSES,
            description="QoS classes; empty: one class for every request. While the policy is Off nothing is reserved "
            "for any.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    queue: Annotated[
        AdmissionQueue | None,
        Meta(description="Requests wait at the gateway for a while before they are refused; absent: none waits."),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            # Shares such as 0.1 have no exact binary form, so a sum of exactly 1 may come out a little above it.
            "!has(self.classes) || self.classes.map(c, c.reserved).sum() <= 1.000001",
            "classes: the shares in reserved add up to more than 1",
        ),
        rule(
            "!has(self.classes) || size(self.classes) == 0 || self.classes.filter(c, !has(c.match)).size() == 1",
            "classes: exactly one class must have no match; it takes the requests that match no other class",
        ),
        rule(
            "!has(self.classes) || self.classes.all(a, !has(a.match) || self.classes.filter(b, has(b.match)"
            " && b.match.header == a.match.header && b.match.value == a.match.value).size() == 1)",
            "classes: two classes match the same header and value",
        ),
        rule(
            "!has(self.classes) || self.classes.filter(c, c.kind == 'Batch').size() <= 1",
            "classes: more than one class has kind Batch; keep one",
        ),
        rule(
            "!has(self.classes) || self.policy == 'Predictive' || self.classes.all(c, c.kind != 'Batch')",
            "policy: what is idle is only known by prediction; use Predictive, or remove the class of kind Batch",
        ),
        rule(
            "!has(self.classes) || self.classes.all(c, c.kind != 'Batch' || (has(c.match) && c.reserved == 0.0))",
            "classes: a class of kind Batch takes only requests that ask for it and keeps nothing free; give it a "
            "match, and no reserved",
        ),
        rule(
            "!has(self.classes) || self.classes.all(b, b.kind != 'Batch' || self.classes.all(c, c.name == b.name"
            " || c.priority > b.priority))",
            "classes: a class of kind Batch must have the lowest priority of all; lower it, or raise the others",
        ),
    )


class Prometheus(ApiStruct, frozen=True, kw_only=True):
    """A Prometheus server."""

    url: Annotated[
        str,
        Meta(
            min_length=8,
            max_length=2048,
            pattern=r"^https?://[^\s]+$",
            description="URL, such as http://prometheus.monitoring:9090.",
        ),
    ]
    secret_name: Annotated[
        ObjectName | None,
        Meta(
            description="Secret in the same namespace: its key `token` is sent as bearer token, its key `ca.crt` is "
            "the CA of the server's certificate; each may be absent. It must have the label "
            'fulcrum.dev/prometheus-access: "true", and the operator needs a Role to read it: see '
            "docs/operations/security.md."
        ),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            "!has(self.secretName) || self.url.startsWith('https://')",
            "prometheus: a token is only sent over https; use an https URL, or remove secretName",
        ),
    )


class Metrics(ApiStruct, frozen=True, kw_only=True):
    """Where load history comes from."""

    prometheus: Annotated[
        Prometheus | None,
        Meta(
            description="Prometheus to query, which keeps hours of history over restarts of the operator; absent: the "
            "gateways are scraped directly, and the history is the operator's memory."
        ),
    ] = None
