"""Contract between controller, gateway and worker agent: the worker's configuration and its load report.

Operator and workers may be of different releases. Documents are written by `objects.without_defaults`, so that a field
which an older worker does not know is only sent where it is used, and unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.parallelism import gpus_of
from fulcrum.api.ports import USUAL_PORTS, Ports
from fulcrum.api.serving_types import ModelTask

ENGINE_KV_DTYPES: Final = {"fp8": "fp8", "bf16": "bfloat16", "auto": "auto"}
"""Our names of KV cache types -> vLLM's (`--kv-cache-dtype`)."""


class KvPoolConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A folder that the workers of a cluster share, below their host memory."""

    path: str
    size_bytes: int
    """What all engines together may have there."""


class OffloadConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Host memory as a tier below the KV cache of one engine."""

    host_bytes: int
    policy: str = "partialRecompute"
    """`partialRecompute` or `load`."""
    eviction: str = "lru"
    """`lru` or `arc`."""
    pool: KvPoolConfig | None = None
    """None: what leaves host memory is gone."""


class KvCacheConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """KV cache of one engine."""

    dtype: str = "fp8"
    """`fp8`, `bf16` or `auto` (vLLM's own choice). The default is that of release 0.1.0, for its workers."""
    skip_layers: tuple[str, ...] = ()
    """Layers that keep the model's type beside `fp8`: numbers, or `sliding_window`."""
    block_size: int | None = None
    """Tokens per KV block; None: what vLLM chooses for the attention backend."""
    memory_bytes: int | None = None
    """KV cache of the whole worker in bytes; None takes what the accelerators have left (on a CPU: 1 GiB)."""
    offload: OffloadConfig | None = None
    """None: KV that leaves the cache is gone."""


class TransferConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How KV moves between engines."""

    connector: str = "nixl"
    backends: tuple[str, ...] = ("UCX",)
    load_failure_policy: str = "recompute"
    """`recompute` or `fail`: what a decode engine does when the KV did not arrive."""


class AdapterSource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A LoRA adapter, as `spec.adapters.list` has it."""

    name: str
    source: str
    revision: str | None = None
    rank: int | None = None

    @property
    def key(self) -> tuple[str, str, str | None]:
        """Two with the same key have the same weights."""
        return self.name, self.source, self.revision


class AdaptersConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """LoRA adapters of an engine."""

    max: int
    max_rank: int
    initial: tuple[AdapterSource, ...] = ()
    """What is loaded before the worker is ready; later lists come over `POST /adapters`."""


class AdaptersRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of `POST /adapters`: all that the engine is to have."""

    adapters: tuple[AdapterSource, ...]


class AdapterState(StrEnum):
    """What an engine has of an adapter."""

    LOADED = "loaded"
    LOADING = "loading"
    FAILED = "failed"
    LEAVING = "leaving"
    """Loaded, and no longer wanted: requests that began with it may still end there."""


class AdapterReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An adapter that an engine has, or is to have."""

    name: str
    source: str
    revision: str | None = None
    state: str
    """An `AdapterState`, or one that a newer agent has."""
    message: str = ""
    """Why it is not loaded, and what to do."""
    lasting: bool = False
    """It failed, and fails again until someone changes its files or the spec. It is tried again all the same."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """As `AdapterSource.key`."""
        return self.name, self.source, self.revision


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the agent turns into vLLM's arguments and environment; one JSON document in `FULCRUM_WORKER_CONFIG`."""

    cluster: str
    pool: str
    model: str
    served_name: str
    accelerator: str
    """`cpu`, or the name of a GPU (`H100-SXM-80GB`)."""
    task: ModelTask = ModelTask.GENERATE
    model_revision: str | None = None
    """Commit, branch or tag of the model's repository; None: its main branch."""
    trust_remote_code: bool = False
    """The engine may run code of that revision."""
    max_model_len: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    """Ranks of the whole worker, each with `tensor_parallel * pipeline_parallel` GPUs."""
    expert_parallel: bool = False
    all2all_backend: str | None = None
    """How tokens travel to the experts of other ranks; None leaves the choice to vLLM."""
    nodes: int = 1
    """Pods, each on a node of its own, that share the worker's GPUs evenly."""
    kv_cache: KvCacheConfig = KvCacheConfig()
    transfer: TransferConfig = TransferConfig()
    attention_backend: str | None = None
    """vLLM's attention backend; None leaves the choice to vLLM."""
    exchanges_kv: bool = True
    """Workers of the pool send KV to others or receive it; without, the engine has no NIXL."""
    rdma: bool = False
    """RDMA devices are in the Pod; without them KV goes over TCP."""
    rdma_devices: tuple[str, ...] = ()
    """Network devices that UCX may use; empty: all of them."""
    socket_interface: str | None = None
    """Interface by which ranks find each other; None: their libraries choose."""
    ports: Ports = USUAL_PORTS
    """What engine and agent listen on."""
    media_domains: tuple[str, ...] = ()
    """Hosts from which the engine may fetch media; empty: gateways let no URL through."""
    traces_url: str | None = None
    """Where the engine sends spans, OTLP over HTTP; None: nowhere."""
    adapters: AdaptersConfig | None = None
    """None: the engine takes no LoRA adapters."""
    sleep_mode: bool = False
    """The engine can be put to sleep (`POST /sleep`)."""
    engine_args: tuple[str, ...] = ()
    """Extra vLLM arguments, already checked against the deny-list (the agent checks again)."""
    role: Role = Role.MIXED
    """The role at creation; later ones come over `POST /role`."""
    role_epoch: int = 0
    start_timeout_seconds: float = 1800.0
    drain_timeout_seconds: float = 120.0
    measure_at_start: bool = True

    @property
    def pools(self) -> bool:
        """The model makes embeddings and scores, and no tokens."""
        return self.task is ModelTask.POOLING

    @property
    def gpus(self) -> int:
        """GPUs of the worker; on CPUs, its processes that compute."""
        return gpus_of(tensor=self.tensor_parallel, pipeline=self.pipeline_parallel, data=self.data_parallel)

    @property
    def local_ranks(self) -> int:
        """Ranks of data parallel that begin on one node; a rank with several nodes is one of each of them."""
        return max(1, self.data_parallel // self.nodes)

    @property
    def longest_start_seconds(self) -> float:
        """A start that makes progress all along ends after this, too. A kubelet's startup probe has to wait longer."""
        return LONGEST_START_FACTOR * self.start_timeout_seconds


class DecodePoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A decode step of one batch size: `seconds + seconds_per_token * sum(context)`."""

    batch: float
    seconds: float
    seconds_per_token: float


class SpeedCoefficients(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Fitted engine speed, in seconds; see `capacity`.

    prefill_seconds(lengths) = prefill_a + prefill_b * sum(l) + prefill_c * sum(l^2)
    decode_step_seconds(batch, context) = decode_a + decode_b * batch + decode_c * sum(context)

    Where there is a curve, it is what decode steps take, and the three coefficients are the straight line nearest to it
    for operators and gateways of a release that knows no curves.
    """

    prefill_a: float
    prefill_b: float
    prefill_c: float
    decode_a: float
    decode_b: float
    decode_c: float
    decode_curve: tuple[DecodePoint, ...] = ()
    """Ascending by batch; straight between the points and beyond the last two. Empty: the line is all that is known."""

    @classmethod
    def of(
        cls, *, prefill: Sequence[float], decode: Sequence[float], decode_curve: tuple[DecodePoint, ...] = ()
    ) -> SpeedCoefficients:
        """Return the coefficients (a, b, c) of both formulas, as a fit gives them."""
        names = ("prefill_a", "prefill_b", "prefill_c", "decode_a", "decode_b", "decode_c")
        return cls(**dict(zip(names, (*prefill, *decode), strict=True)), decode_curve=decode_curve)


class WorkCounters(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the engine has done since its start, from vLLM's own histograms; they begin again at 0 with the engine."""

    prompts: int
    """Prompts that were prefilled."""
    prompt_tokens: int
    """Their tokens, those from the prefix cache included."""
    cached_tokens: int
    """Prompt tokens that the prefix cache answered."""
    prefill_seconds: float
    """Summed time from scheduling to first token."""
    decode_tokens: int
    """Tokens after the first of their request."""
    decode_seconds: float
    """Summed times between tokens, over all requests."""
    computed_tokens: int | None = None
    """Prompt tokens that this engine computed itself, those of requests that still run included; None: unknown."""


class TransferCounters(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of KV transfers since the engine's start, from vLLM's own counters."""

    pulled_tokens: int
    """Prompt tokens whose KV this engine pulled from a peer, without those that it computed after a failed pull."""
    computed_tokens: int
    """Prompt tokens that this engine computed itself."""
    failed_transfers: int
    """Pulls that failed on this engine: handshakes, transfers and notifications."""
    failed_notifications: int
    """Of these, notifications that a pull has ended."""
    expired_requests: int
    """Prompts whose KV this engine held until the lease ended, because no peer pulled it."""


class EngineProgress(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the engine has done since its start. All of it stands still while an engine with work hangs."""

    steps: int
    """Engine steps that made tokens."""
    tokens: int
    """Prompt tokens taken in, and tokens made."""
    still_seconds: float | None = None
    """Since the last step that computed something, also a part of a prompt; None: unknown."""
    longest_step_seconds: float | None = None
    """The longest step of the last minutes."""


class KvPoolReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The pool as one engine sees it. Counters begin again at 0 with the engine; None is unknown."""

    size_bytes: int
    used_bytes: int | None = None
    """What all engines have there."""
    hit_tokens: int | None = None
    """Prompt tokens whose KV came from the pool."""
    read_bytes: int | None = None
    read_seconds: float | None = None
    """Time that loads of `read_bytes` took."""
    written_bytes: int | None = None
    bad_blocks: int | None = None
    """Files that were truncated, changed or of something else, and not used."""
    dropped_blocks: int | None = None
    """Blocks that were not stored."""
    problem: str | None = None
    """`readOnly`, `full`, `slow`, `gone` or `unusable`: prompts are computed while it stands; None: it works."""


class OffloadReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The host tier of one engine. Counters begin again at 0 with the engine; None is unknown."""

    policy: str
    """How KV comes back: `partialRecompute` or `load`."""
    reason: str | None = None
    """Why that is not the policy of the spec; None: it is."""
    host_bytes: int
    host_tokens: int | None = None
    """Tokens whose KV fits there."""
    host_used: float | None = None
    """Fraction of the host memory that holds KV, 0 to 1; what is there may be evicted for other KV."""
    device_hit_tokens: int | None = None
    """Prompt tokens whose KV was on the device."""
    external_hit_tokens: int | None = None
    """Prompt tokens whose KV came from host memory, the pool or a peer."""
    host_hit_tokens: int | None = None
    """Of these, from host memory."""
    loaded_bytes: int | None = None
    load_seconds: float | None = None
    """Time that the link was busy with `loaded_bytes`."""
    stored_bytes: int | None = None
    pool: KvPoolReport | None = None
    """None without a pool."""

    @property
    def bytes_per_second(self) -> float | None:
        """Rate of the loads so far; None before the first."""
        return self.loaded_bytes / self.load_seconds if self.loaded_bytes and self.load_seconds else None


class KvResidency(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where KV of prompts and answers is that could be used again, and what was driven out since the agent's start.

    Counted in tokens, from the engine's own events.
    """

    device_tokens: int
    host_tokens: int
    device_evicted_tokens: int
    """They may still be in host memory."""
    host_evicted_tokens: int
    missed_batches: int = 0
    """Batches of events that did not come: above 0, all figures are estimates."""


class Stage(StrEnum):
    """What an engine does until it is ready, in this order."""

    IMPORTS = "imports"
    WEIGHTS = "weights"
    KV_CACHE = "KV cache"
    MEASURING = "measuring"
    READY = "ready"


class EngineSleepState(StrEnum):
    """What an engine with vLLM's sleep mode does."""

    AWAKE = "awake"
    FALLING_ASLEEP = "fallingAsleep"
    ASLEEP = "asleep"
    WAKING = "waking"


class RankReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One rank of a worker with data parallelism: it has its own requests, KV cache and prefix cache.

    `X-data-parallel-rank` sends a request to it. None is unknown; counters begin again at 0 with the engine.
    """

    rank: int
    """From 0 to the worker's ranks less one: vLLM's label `engine`."""
    running: int | None = None
    """Requests in its batch."""
    waiting: int | None = None
    queued_prompt_tokens: int | None = None
    kv_usage: float | None = None
    """Fraction of its KV blocks in use, 0 to 1."""
    kv_held_for_peers: float | None = None
    """Fraction of its KV blocks held for a decode engine that has not pulled them yet, 0 to 1."""
    kv_capacity_tokens: int | None = None
    prefix_tokens: int | None = None
    """Prompt tokens that were looked up in its prefix cache."""
    prefix_hit_tokens: int | None = None
    """Of these, tokens that were there."""
    work: WorkCounters | None = None
    transfers: TransferCounters | None = None
    steps: int | None = None
    """Engine steps that made tokens; steps beside other ranks without requests of its own are none."""


class LoadReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`GET /load` of the agent. A figure that the engine did not give is None (unknown), never zero.

    Of a worker with ranks of data parallel, requests, counters and KV capacity are those of all ranks together, and KV
    usage is their mean. `speed`, `max_batch` and `max_batched_tokens` are those of each rank while all ranks work.
    """

    role: Role
    role_epoch: int
    ready: bool
    draining: bool
    running: int | None = None
    """Requests in the engine's running batch."""
    waiting: int | None = None
    """Requests queued in the engine."""
    queued_prompt_tokens: int | None = None
    kv_usage: float | None = None
    """Fraction of KV blocks in use, 0 to 1."""
    kv_held_for_peers: float | None = None
    """Fraction of KV blocks held for a decode engine that has not pulled them yet, 0 to 1."""
    kv_capacity_tokens: int | None = None
    keeps_kv: bool = True
    """Requests hold KV after the step that computed their prompt; those of a pooling model do not."""
    kv_cache_dtype: str | None = None
    """Element type that the engine took, in vLLM's words (`fp8`, `bfloat16`, `auto`)."""
    speed: SpeedCoefficients | None = None
    """None until the engine has been measured."""
    work: WorkCounters | None = None
    max_batch: int | None = None
    """Most requests in one engine step (vLLM's `max_num_seqs`)."""
    max_batched_tokens: int | None = None
    """Token budget of one engine step (vLLM's `max_num_batched_tokens`)."""
    transfers: TransferCounters | None = None
    progress: EngineProgress | None = None
    offload: OffloadReport | None = None
    """None without a host tier."""
    residency: KvResidency | None = None
    """None without a host tier."""
    model_config: dict[str, Any] | None = None
    """What Fulcrum reads of the `config.json` that the engine loaded; None: unknown, or an older agent."""
    flips_restart: bool = False
    """This vLLM has no role for both sides of KV transfers: another role starts the engine again."""
    stage: str | None = None
    """A `Stage`, or one that a newer agent has; None where the agent is older than stages."""
    sleep: str | None = None
    """An `EngineSleepState`, or one that a newer agent has; None: its engine has no sleep mode."""
    adapters: tuple[AdapterReport, ...] = ()
    """Of each adapter that the engine has, or is to have."""
    ranks: tuple[RankReport, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ascending by rank. The field is absent where the worker is one rank, or its agent older than ranks."""

    def of_rank(self, rank: int, ranks: int) -> LoadReport:
        """Return what it says of one of the worker's `ranks`; KV capacity is shared evenly where a rank does not say.

        What is not known of the rank is unknown, whatever the totals are.
        """
        if ranks == 1:
            return self
        known = () if isinstance(self.ranks, msgspec.UnsetType) else self.ranks
        load = next((one for one in known if one.rank == rank), RankReport(rank=rank))
        capacity = None if self.kv_capacity_tokens is None else self.kv_capacity_tokens // ranks
        return msgspec.structs.replace(
            self,
            running=load.running,
            waiting=load.waiting,
            queued_prompt_tokens=load.queued_prompt_tokens,
            kv_usage=load.kv_usage,
            kv_held_for_peers=load.kv_held_for_peers,
            kv_capacity_tokens=load.kv_capacity_tokens or capacity,
            work=load.work,
            transfers=load.transfers,
            ranks=msgspec.UNSET,
        )

    @property
    def idle(self) -> bool:
        """True only when all of it is known to be zero: nothing runs, waits or is held for a peer."""
        return self.running == 0 and self.waiting == 0 and self.kv_held_for_peers == 0

    @property
    def rests(self) -> bool:
        """The engine sleeps, or is on its way there or back: requests would wait for it."""
        return self.sleep not in (None, EngineSleepState.AWAKE)

    @property
    def starting(self) -> bool:
        """The agent says that its engine is not up yet, and so has no requests. Unknown is not starting."""
        return self.stage not in (None, Stage.READY)


class SleepRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of `POST /sleep`: only a worker that drains, at the role epoch that is named, is put to sleep."""

    level: int
    """vLLM's level of sleep, 1 or 2; 0: wake up."""
    role_epoch: int


class RoleRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of `POST /role`. A lower epoch than the agent's own is refused with 409."""

    role: Role
    role_epoch: int


PATH_STARTED = "/readyz?startup=1"
"""Path of the startup probe: it succeeds once the engine is up, before it is measured. An agent that does not know the
query answers as for readiness."""
LONGEST_START_FACTOR = 4
"""Longest start, in units of `startTimeout`, of an engine that looks as if it made progress."""
EXIT_BAD_CONFIG = 64
"""Agent's exit code: its configuration cannot be used; the message names the field."""
EXIT_ENGINE_NOT_STARTED = 70
"""Agent's exit code: vLLM did not come up; vLLM's last lines close the log."""
EXIT_ENGINE_DIED = 71
"""Agent's exit code: vLLM ended while serving; vLLM's last lines close the log."""
EXIT_ENGINE_STALLED = 72
"""Agent's exit code: vLLM had work and made no progress; vLLM's last lines close the log."""
EXIT_DEVICE_FAILED = 73
"""Agent's exit code: vLLM ended because a GPU failed; the message begins as `api.device_fault.said` has it."""
