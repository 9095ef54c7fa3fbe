"""From a worker's configuration to vLLM's command line and environment; pure, so that tables can test it.

Facts behind the settings were measured with vLLM 0.32.0 and NIXL 1.5.1 (see the design references).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fulcrum.api.amd import is_amd
from fulcrum.api.engine_args import engine_option
from fulcrum.api.names import ENV_WORKER_CONFIG, PORT_RANKS
from fulcrum.api.types import OffloadPolicy
from fulcrum.api.worker import ENGINE_KV_DTYPES, WorkerConfig
from fulcrum_worker.config import CPU, PodIdentity, check_expert_backend
from fulcrum_worker.engine_access import GUARD
from fulcrum_worker.engine_experts import ENV_EXPERTS_ON_CPU
from fulcrum_worker.engine_files import EngineFiles
from fulcrum_worker.engine_start import VllmFacts
from fulcrum_worker.engine_transfer import transfer_config
from fulcrum_worker.group import GroupPlace, read_place
from fulcrum_worker.kv.events import events_config
from fulcrum_worker.kv.policy import FRONT_SCHEDULER, effective_policy
from fulcrum_worker.nixl_idle import ENV_POLL_MICROSECONDS

CPU_DEFAULT_KV_BYTES: Final = 1 << 30
_CPU_BLOCK_TOKENS: Final = 32
"""vLLM's CPU attention refuses block sizes that are no multiple of this."""
SHUTDOWN_TIMEOUT_SECONDS: Final = 5
"""How long vLLM itself goes on after SIGTERM: for a request that came between the last scrape and the signal."""

_RPC_DISTANCE: Final = 29550 - PORT_RANKS
"""From the port where ranks find each other to the one where ranks of data parallel on other nodes do (vLLM 0.32)."""
_USUAL: Final = VllmFacts()
_DTYPES: Final = {"auto": "bfloat16", "half": "float16", "float": "float32"}
"""Other names that vLLM's `--dtype` takes."""
_UCX_CPU: Final = {"UCX_TLS": "tcp,self,sm"}
# Transports and thresholds for KV blocks over RDMA: O'Reilly, AI Systems Performance Engineering, ch. 18.
_UCX_GPU: Final = {"UCX_RNDV_THRESH": "16384", "UCX_MAX_EAGER_RAILS": "1"}
_UCX_COPIES: Final = {"nvidia": "cuda_ipc,cuda_copy", "amd": "rocm_ipc,rocm_copy"}
_CPU_DEFAULTS: Final = {
    # Several workers share a machine's cores; OpenMP threads of many engines spinning for two cores cost more than half
    # of the speed (measured). A worker that owns more cores gets OMP_NUM_THREADS in its pool's template.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    ENV_POLL_MICROSECONDS: "10000",
    # `--enforce-eager` leaves functions that are compiled for the first request that wants them (log probabilities),
    # by a C++ compiler that an image may lack, while all others wait: for more than a minute on a busy machine.
    "TORCH_COMPILE_DISABLE": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """What to start: `argv[0]` is a Python interpreter; `environment` is complete, nothing is inherited beside it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def engine_command(
    config: WorkerConfig,
    pod: PodIdentity,
    *,
    model: Path | None,
    environment: Mapping[str, str],
    vllm: str | None = None,
    files: EngineFiles | None = None,
    facts: VllmFacts = _USUAL,
) -> EngineCommand:
    """vLLM's command for this worker.

    `model` is the model's folder on this machine, None when `config.model` is a hub id. `environment` is the agent's
    own: UCX_*, OMP_NUM_THREADS and VLLM_CPU_OMP_THREADS_BIND found there (a pool's template sets them) win over our
    defaults. `vllm` is the version of vLLM; where it is unknown, offloaded KV is loaded as vLLM itself does it. `files`
    are shared with the agent; None: there is none. `facts` are those of this vLLM. Raises BadConfigError.
    """
    check_expert_backend(config, facts.expert_backends)
    argv = (
        *_argv(config, pod, model, files, replace(facts, version=vllm or facts.version)),
        *_executor_argv(config),
        *_in_group(read_place(config, environment), config.ports.ranks),
    )
    return EngineCommand(argv=argv, environment=_environment(config, pod, model is not None, environment))


def _in_group(place: GroupPlace | None, port: int) -> tuple[str, ...]:
    """Arguments of an engine on several nodes. Its ranks find each other at the leader; only that one has an API."""
    if place is None:
        return ()
    argv = ["--nnodes", str(place.nodes), "--node-rank", str(place.rank)]
    argv += ["--master-addr", place.leader]
    if port != PORT_RANKS:
        argv += ["--master-port", str(port)]
        # On a node's network another group may have vLLM's usual one. This keeps the usual distance.
        argv += ["--data-parallel-rpc-port", str(port + _RPC_DISTANCE)]
    return (*argv, *(("--headless",) if place.rank else ()))


def _executor_argv(config: WorkerConfig) -> tuple[str, ...]:
    """Where the model runs. Of several ranks on CPUs each is one process, where vLLM would make it two."""
    if _runs_in_engine(config):
        return ("--distributed-executor-backend", "uni") if config.data_parallel > 1 else ()
    return ("--distributed-executor-backend", "mp") if config.nodes > 1 else ()


def _runs_in_engine(config: WorkerConfig) -> bool:
    """Whether the model runs inside its engine process: one process less, which saves 0.5 GiB and 8 s of CPU time at
    start (measured)."""
    return config.accelerator == CPU and config.tensor_parallel * config.pipeline_parallel == 1


def block_tokens(config: WorkerConfig) -> int | None:
    """Tokens per KV block that the engine is told, on a CPU rounded up to what its kernels can do; None: it chooses.

    A fixed size would exclude attention backends: FlashMLA, for one, takes only blocks of 64.
    """
    size = config.kv_cache.block_size
    if size is None or config.accelerator != CPU:
        return size
    return -(-size // _CPU_BLOCK_TOKENS) * _CPU_BLOCK_TOKENS


def _argv(
    config: WorkerConfig,
    pod: PodIdentity,
    model: Path | None,
    files: EngineFiles | None,
    facts: VllmFacts,
) -> tuple[str, ...]:
    on_cpu = config.accelerator == CPU
    restored = effective_policy(config, facts.version)
    transfer = transfer_config(config, restored, files, facts.roles)
    argv = [sys.executable, "-m", "fulcrum_worker.engine_main"]
    argv += ["--model", str(model or config.model), "--served-model-name", config.served_name]
    if model is None and config.model_revision is not None:
        argv += ["--revision", config.model_revision, "--code-revision", config.model_revision]
    if config.trust_remote_code:
        argv += ["--trust-remote-code"]
    argv += ["--host", pod.ip, "--port", str(config.ports.engine)]
    argv += _kv_cache_argv(config, facts)
    if config.attention_backend is not None:
        argv += ["--attention-backend", config.attention_backend]
    if config.max_model_len is not None:
        argv += ["--max-model-len", str(config.max_model_len)]
    if config.media_domains:
        argv += ["--allowed-media-domains", *config.media_domains]
    if config.traces_url is not None:
        argv += ["--otlp-traces-endpoint", config.traces_url]
    argv += _optional_argv(config)
    argv += ["--tensor-parallel-size", str(config.tensor_parallel)]
    argv += ["--pipeline-parallel-size", str(config.pipeline_parallel)]
    argv += _ranks_argv(config)
    # What a pooling model can do of chunks and prefixes follows from its attention: vLLM knows, and refuses the rest.
    argv += ["--runner", "pooling"] if config.pools else ["--enable-chunked-prefill", "--enable-prefix-caching"]
    argv += ["--scheduling-policy", "priority"]
    if transfer is not None:
        argv += ["--kv-transfer-config", json.dumps(transfer, separators=(",", ":"))]
    argv += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_SECONDS), "--disable-uvicorn-access-log"]
    if restored is OffloadPolicy.PARTIAL_RECOMPUTE:
        argv += ["--scheduler-cls", FRONT_SCHEDULER]
    if config.kv_cache.offload is not None and files is not None:
        argv += ["--kv-events-config", events_config(files.events)]
    argv += ["--middleware", GUARD]
    if on_cpu:
        # Compiling takes longer than small models on CPUs gain by it; without it and with an explicit KV size vLLM
        # skips its warm-up run, too.
        argv += ["--enforce-eager"]
    # Last, so that what the user asked for wins where vLLM takes the last of two.
    return (*argv, *config.engine_args)


def _optional_argv(config: WorkerConfig) -> list[str]:
    argv = ["--enable-sleep-mode"] if config.sleep_mode else []
    if config.adapters is not None:
        argv += ["--enable-lora", "--max-loras", str(config.adapters.max)]
        argv += ["--max-lora-rank", str(config.adapters.max_rank)]
    return argv


def _ranks_argv(config: WorkerConfig) -> list[str]:
    """Ranks of data parallel, of which each has its own requests and KV cache, and the experts that all share."""
    argv: list[str] = []
    if config.data_parallel > 1:
        argv += ["--data-parallel-size", str(config.data_parallel)]
        argv += ["--data-parallel-size-local", str(config.local_ranks)]
    if config.expert_parallel:
        argv += ["--enable-expert-parallel"]
    if config.all2all_backend is not None:
        argv += ["--all2all-backend", config.all2all_backend]
    return argv


def _kv_cache_argv(config: WorkerConfig, facts: VllmFacts) -> list[str]:
    argv = ["--kv-cache-dtype", _kv_cache_dtype(config, facts)]
    if config.kv_cache.skip_layers:
        argv += ["--kv-cache-dtype-skip-layers", *config.kv_cache.skip_layers]
    if (tokens := block_tokens(config)) is not None:
        argv += ["--block-size", str(tokens)]
    if (kv_bytes := _kv_bytes_per_gpu(config)) is not None:
        argv += ["--kv-cache-memory-bytes", str(kv_bytes)]
    return argv


def _kv_cache_dtype(config: WorkerConfig, facts: VllmFacts) -> str:
    """vLLM's name of the type; `auto` for a type that the model computes in anyway, or that this vLLM refuses."""
    dtype = ENGINE_KV_DTYPES[config.kv_cache.dtype]
    if dtype == ENGINE_KV_DTYPES["bf16"] and facts.refuses_unlike_kv_dtype and _computes_in(config) != dtype:
        return ENGINE_KV_DTYPES["auto"]
    return dtype


def _computes_in(config: WorkerConfig) -> str:
    """Type that the spec's arguments let the model compute in; without one, that of nearly all models of today."""
    named = engine_option(config.engine_args, "dtype")
    return ENGINE_KV_DTYPES["bf16"] if named is None else _DTYPES.get(named, named)


def _kv_bytes_per_gpu(config: WorkerConfig) -> int | None:
    """KV cache of each GPU: the spec's is a worker's, vLLM's option a GPU's (`CacheConfig.kv_cache_memory_bytes`)."""
    kv_bytes = config.kv_cache.memory_bytes or (CPU_DEFAULT_KV_BYTES if config.accelerator == CPU else None)
    return None if kv_bytes is None else kv_bytes // config.gpus


def _environment(
    config: WorkerConfig, pod: PodIdentity, model_is_local: bool, environment: Mapping[str, str]
) -> dict[str, str]:
    on_cpu = config.accelerator == CPU
    defaults = {**_UCX_CPU, **_CPU_DEFAULTS} if on_cpu else _ucx_gpu(config)
    if config.exchanges_kv:
        # NIXL moves the states of hybrid models (Mamba, gated delta nets) in this layout only. vLLM sets it by itself
        # on CPUs alone; other models have no such states.
        defaults["VLLM_SSM_CONV_STATE_LAYOUT"] = "DS"
    fixed = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": pod.ip,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(config.ports.nixl),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # A host that may be asked could send the engine to one that may not.
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        # Prefix hashes must agree between workers.
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        # vLLM would set it itself, but not when NIXL is imported already; without it UCX may leak memory.
        "UCX_RCACHE_MAX_UNRELEASED": "1024",
    }
    if config.adapters is not None:
        fixed[_ENV_RUNTIME_LORA] = "True"
    if config.sleep_mode:
        fixed[_ENV_DEVELOPMENT] = "1"  # `EngineGuard` keeps its routes for the agent
    if config.traces_url is not None:
        # vLLM's default is gRPC. Requests without a parent are the agent's own measurements and the gateways' canaries.
        defaults["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
        defaults["OTEL_TRACES_SAMPLER"] = "parentbased_always_off"
        defaults["OTEL_SERVICE_NAME"] = "vllm"
    if config.socket_interface is not None:
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        defaults.update(dict.fromkeys(names, config.socket_interface))
    if config.nodes > 1:
        # The address by which the ranks of other nodes reach those of this one.
        fixed["VLLM_HOST_IP"] = pod.ip
    if model_is_local:
        fixed["HF_HUB_OFFLINE"] = "1"
    if on_cpu and config.data_parallel > 1:
        fixed[ENV_EXPERTS_ON_CPU] = "1"
    if _runs_in_engine(config):
        fixed["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    inherited = {name: text for name, text in environment.items() if name not in _NOT_INHERITED}
    return {**defaults, **inherited, **fixed}


_ENV_RUNTIME_LORA: Final = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
_ENV_DEVELOPMENT: Final = "VLLM_SERVER_DEV_MODE"
_NOT_INHERITED: Final = (
    ENV_WORKER_CONFIG,
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_ENABLE_RESPONSES_API_STORE",
    _ENV_RUNTIME_LORA,
    _ENV_DEVELOPMENT,
)
"""Not the engine's business; would override `--kv-cache-memory-bytes`; a store that grows without bound; the agent
alone says which adapters there are; routes that run any method of the engine."""


def _ucx_gpu(config: WorkerConfig) -> dict[str, str]:
    copies = _UCX_COPIES["amd" if is_amd(config.accelerator) else "nvidia"]
    network = "rc,rdmacm,tcp" if config.rdma else "tcp"
    chosen = {**_UCX_GPU, "UCX_TLS": f"{copies},{network},self,sm"}
    return chosen | {"UCX_NET_DEVICES": ",".join(config.rdma_devices) or "all"} if config.rdma else chosen
