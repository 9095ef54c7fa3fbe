"""Spec, the part about the inference engine: image, KV cache, KV transfer, extra arguments."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from fulcrum.api import engine_args
from fulcrum.api.base import ApiStruct, Image, ObjectName, PositiveDuration, Quantity, Rules, rule

STORED_BLOCK_SIZE: Final = 16
"""Tokens; the default of `engine.kvCache.blockSize` in release 0.1.0, stored in every object of that time."""
STORED_IMAGE: Final = "ghcr.io/fulcrum/worker:0.1.0"
"""The default of `engine.image` in release 0.1.0, stored in every object of that time."""
USUAL_START_TIMEOUT: Final = "30m"
"""The least that `engine.startTimeout` comes to where it is absent; long enough for compilation and graph capture."""
LONGEST_START_TIMEOUT: Final = "24h"
"""Most that `engine.startTimeout` may be."""


class OffloadPolicy(StrEnum):
    PARTIAL_RECOMPUTE = "partialRecompute"
    LOAD = "load"


class OffloadEviction(StrEnum):
    LRU = "lru"
    ARC = "arc"


class KvPool(ApiStruct, frozen=True, kw_only=True):
    """KV on a volume that all workers share."""

    persistent_volume_claim: Annotated[
        ObjectName,
        Meta(
            description="Claim in the same namespace, mounted in every worker; ReadWriteMany where there can be more "
            "than one. Workers with the same weights, KV dtype, layout, block size and vLLM find each other's KV."
        ),
    ]
    size: Annotated[
        Quantity,
        Meta(description="What all workers together keep there; what was used longest ago goes first."),
    ]


class KvOffload(ApiStruct, frozen=True, kw_only=True):
    """KV offload to host memory, and from there to a shared volume."""

    host_memory: Annotated[
        Quantity,
        Meta(description="Host memory per worker for KV that left the accelerator; its memory request grows by it."),
    ]
    policy: Annotated[
        OffloadPolicy,
        Meta(
            description="How KV comes back. partialRecompute: part is recomputed while the rest is on the bus, where "
            "that is quicker; on CPU workers of parallelism 1, elsewhere as load. load: all of it is copied back."
        ),
    ] = OffloadPolicy.PARTIAL_RECOMPUTE
    eviction: Annotated[
        OffloadEviction,
        Meta(
            description="What leaves host memory first: lru, what was used longest ago; arc, which also keeps what is "
            "used often."
        ),
    ] = OffloadEviction.LRU
    pool: Annotated[KvPool | None, Meta(description="KV on a shared volume, below host memory; absent: none.")] = None


class KvCacheDtype(StrEnum):
    FP8 = "fp8"
    BF16 = "bf16"
    AUTO = "auto"


class KvCache(ApiStruct, frozen=True, kw_only=True):
    """KV cache of each engine."""

    dtype: Annotated[
        KvCacheDtype,
        Meta(
            description="Element type of the KV cache of all workers. auto: fp8 for models that are known to be good "
            "with it, on GPUs that compute in it; else vLLM's own choice, the checkpoint's scheme or what the model "
            "computes in. status.kvCache says what it came to. fp8 and bf16 force it; on CPUs fp8 needs AVX-512 or AMX."
        ),
    ] = KvCacheDtype.AUTO
    skip_layers: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^([0-9]{1,4}|sliding_window)$")], ...],
        Meta(
            max_length=256,
            description="Layers that keep KV in the model's own type beside an fp8 cache: their numbers, or "
            "sliding_window for all that have one.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    block_size: Annotated[
        Annotated[int, Meta(ge=1, le=256)] | None,
        Meta(
            description="Tokens in one KV block; default: what vLLM chooses for the attention backend (16 for most), "
            "whose multiples are allowed. Prefixes are found in whole blocks: half a block of each hit, on average, "
            "is computed anew. Another size starts another pool of KV."
        ),
    ] = None
    memory: Annotated[
        Quantity | None, Meta(description="KV cache per worker; default: what the accelerator has left (cpu: 1Gi).")
    ] = None
    offload: Annotated[KvOffload | None, Meta(description="KV offload to host memory; absent: none.")] = None

    @property
    def pool_claim(self) -> str | None:
        """The claim of the KV pool; None without one."""
        return self.offload.pool.persistent_volume_claim if self.offload is not None and self.offload.pool else None


class LoadFailurePolicy(StrEnum):
    RECOMPUTE = "recompute"
    FAIL = "fail"


class Transfer(ApiStruct, frozen=True, kw_only=True):
    """How KV moves from prefill to decode."""

    connector: Annotated[str, Meta(description="KV connector.", extra_json_schema={"enum": ["nixl"]})] = "nixl"
    backends: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9_]+$")], ...],
        Meta(min_length=1, max_length=8, description="NIXL backends, in order of preference."),
    ] = ("UCX",)
    load_failure_policy: Annotated[
        LoadFailurePolicy,
        Meta(
            description="What a decode worker does when KV did not arrive: recompute the prompt, or fail the request."
        ),
    ] = LoadFailurePolicy.RECOMPUTE


_EngineArg = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=engine_args.MAX_LENGTH,
        extra_json_schema={"x-kubernetes-validations": engine_args.cel_rules()},
    ),
]
_Domain = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
AttentionBackend = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Z][A-Z0-9_]*$")]


class Engine(ApiStruct, frozen=True, kw_only=True):
    """The inference engine (vLLM) of every worker."""

    image: Annotated[
        Image | None,
        Meta(
            description="Worker image: vLLM, NIXL and the worker agent; default: that of the operator's own release. "
            "Upgrading the operator restarts no worker: the new image is used from the pool's next revision on."
        ),
    ] = None
    kv_cache: Annotated[KvCache, Meta(description="KV cache of each engine.")] = KvCache()
    transfer: Annotated[Transfer, Meta(description="How KV moves from prefill to decode.")] = Transfer()
    start_timeout: Annotated[
        PositiveDuration | None,
        Meta(
            description="How long a starting engine may make no progress (no new log lines, next to no CPU time, no "
            "bytes read or written) before its worker is restarted; at most 24h. A start that goes on and on ends "
            "after four times as long. Default: 30m, or more for large models: so long that those four times take in "
            "the load of all weights at 50 MB/s and 30 minutes beside it. status.startTimeout says what it came to. "
            "Changing it restarts none."
        ),
    ] = None
    args: Annotated[
        tuple[_EngineArg, ...],
        Meta(
            max_length=64,
            description="Extra vLLM arguments, each option and each value an item of its own, options in their long "
            "form. Refused are those that open a hole or that another field owns.",
        ),
    ] = ()
    media_domains: Annotated[
        tuple[_Domain, ...],
        Meta(
            max_length=64,
            description="Hosts from which engines fetch images, recordings and videos that a request names by URL, "
            "exactly; redirects are not followed. Empty: none, and a URL that is not `data:` is answered with 400.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    attention_backend: Annotated[
        AttentionBackend | None,
        Meta(
            description="vLLM's attention backend, such as FLASHINFER or TRITON_ATTN; default: vLLM's choice, or where "
            "pools of unlike NVIDIA GPUs exchange KV, one that all of them have (FLASHINFER)."
        ),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            f"!has(self.startTimeout) || duration(self.startTimeout) <= duration('{LONGEST_START_TIMEOUT}')",
            f"startTimeout must not be longer than {LONGEST_START_TIMEOUT}",
        ),
    )


class PoolEngine(ApiStruct, frozen=True, kw_only=True):
    """What differs from `spec.engine` in one pool."""

    image: Annotated[
        Image | None, Meta(description="Worker image of this pool, such as one for AMD GPUs; default: engine.image.")
    ] = None
    args: Annotated[
        tuple[_EngineArg, ...],
        Meta(
            # Few, because the API server estimates the cost of the rules over all pools.
            max_length=16,
            description="Extra vLLM arguments of this pool, after those of engine.args (the last wins).",
        ),
    ] = ()
    attention_backend: Annotated[
        AttentionBackend | None,
        Meta(description="vLLM's attention backend in this pool; default: engine.attentionBackend."),
    ] = None
