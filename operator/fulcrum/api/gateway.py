"""Contract between controller and gateway: the gateway's configuration.

As with workers, both may be of different releases: defaults are left out, and unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fulcrum.api.batch import GatewayBatch
from fulcrum.api.pool_types import PoolAdmits
from fulcrum.api.serving_types import Admission, ModelTask
from fulcrum.api.telemetry_types import DEFAULT_SAMPLING_RATIO
from fulcrum.api.worker import LoadReport


class GatewayLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Bounds on what one client may ask of a gateway. Defaults are those of `spec.gateway`."""

    max_body_bytes: int = 8 * 1024 * 1024
    max_header_bytes: int = 32 * 1024
    header_timeout_seconds: float = 10.0
    body_timeout_seconds: float = 60.0
    request_timeout_seconds: float = 3600.0
    idle_timeout_seconds: float = 620.0
    """Longer than load balancers keep an idle connection (Google's 600 s): the one that closes first must not be the
    gateway, or a request that is on its way meets a closed connection."""


class TransferPrior(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What moving KV costs one end, before any transfer was seen."""

    base_seconds: float
    seconds_per_token: float


class GatewayPool(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a gateway knows of a pool beforehand."""

    name: str
    admits: PoolAdmits | None = None
    """Which requests may be sent to it; None: every one."""
    transfer: TransferPrior | None = None
    """Of its workers; None: the size of the model's KV is not known."""


class GatewayTracing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a gateway sends spans, and of how many requests."""

    endpoint: str
    """As `spec.telemetry.tracing.endpoint`."""
    sampling_ratio: float = DEFAULT_SAMPLING_RATIO


class GatewayHold(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How requests wait while no worker runs."""

    max_requests: int = 100
    max_wait_seconds: float = 900.0


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One JSON document in `FULCRUM_GATEWAY_CONFIG`."""

    cluster: str
    served_name: str
    model: str
    task: ModelTask = ModelTask.GENERATE
    max_model_len: int | None = None
    slo_ttft_seconds: float | None = None
    slo_tpot_seconds: float | None = None
    """The promise that answers are measured against; None: nothing is counted as inside or outside."""
    slo_attainment: float = 0.95
    """Share of the admitted requests that are to stay within the promise, 0 to 1."""
    admission: Admission = Admission()
    pools: tuple[GatewayPool, ...] = ()
    replicas: int = 1
    """Gateways that share the traffic, until they are counted: the ready ones, by the Pod watch."""
    api_keys_directory: str | None = None
    """Where the Secret with API keys is mounted; None: any client may ask."""
    salt_prefixes: bool = False
    """Prompts of one API key never hit what another's left in an engine's prefix cache."""
    adapters: bool = False
    """Engines take LoRA adapters; which there are, gateways read of the InferenceCluster: it changes at run time."""
    limits: GatewayLimits = GatewayLimits()
    heartbeat_seconds: float | None = None
    """A stream without a token gets an SSE comment this often; None: none."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may ask; `*`: every one."""
    force_include_usage: bool = False
    """Engines close every stream with its usage, also where the client did not ask for it."""
    media_domains: tuple[str, ...] = ()
    """Hosts from which engines fetch media; empty: none, so that a URL in a request is refused."""
    shutdown_grace_seconds: float = 120.0
    """How long SIGTERM waits for streams that are under way."""
    tracing: GatewayTracing | None = None
    """None: no request is traced."""
    batch: GatewayBatch | None = None
    """None: there are no files and no batches."""
    hold: GatewayHold | None = None
    """None: a request that finds no worker is refused at once."""
    record: bool = True
    """Keep the last requests as numbers and keyed hashes (`api/record.py`)."""


class FailingPair(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pair of workers between which no KV moves."""

    prefill: str
    decode: str
    failures: int
    """Canaries in a row that failed."""
    seconds: float
    """Since the first of them."""
    why: str = ""
    prefill_works: int = 0
    """Other workers that do pull from the prefill worker."""
    decode_works: int = 0
    """Other workers that the decode worker does pull from."""


class LearntRate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What moving KV from a prefill pool's workers to a decode pool's costs, as one gateway has learnt it."""

    prefill_pool: str
    decode_pool: str
    near: bool = False
    """Between workers of one node."""
    base_seconds: float
    seconds_per_token: float
    transfers: int
    """That it was learnt from."""


class PairsReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`GET /kv-pairs` of a gateway: what its canaries found, and what it has learnt of transfers.

    A pair of workers that is not named works, or was not tried.
    """

    failing: tuple[FailingPair, ...] = ()
    rates: tuple[LearntRate, ...] = ()


class LoadsReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`GET /loads` of a gateway: what its workers' agents said when it asked them last."""

    age_seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Since then."""
    loads: dict[str, LoadReport]
    """By worker; without those that did not answer."""


class DemandReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`GET /demand` of a gateway: whether anyone asks for the model."""

    held: int
    """Requests that wait for a worker."""
    up_seconds: float
    """Since the gateway started: it knows of no earlier request."""
    idle_seconds: float | None = None
    """Since the last request was in progress; 0 while one is, None: there was none."""
    first_token_seconds: float | None = None
    """Longest time to first token of the requests that the last wake held."""
