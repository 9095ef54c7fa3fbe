"""Tables: configuration -> vLLM's arguments and environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.vllm_source import code
from tests.worker_image.agents import worker_config

from fulcrum.api.engine_args import check_engine_args
from fulcrum.api.names import PORT_RANKS
from fulcrum.api.ports import Ports
from fulcrum.api.serving_types import ModelTask
from fulcrum.api.worker import KvCacheConfig, OffloadConfig, TransferConfig, WorkerConfig
from fulcrum_worker.config import BadConfigError, PodIdentity
from fulcrum_worker.engine_command import EngineCommand, engine_command
from fulcrum_worker.engine_experts import ENV_EXPERTS_ON_CPU
from fulcrum_worker.engine_start import VllmFacts
from fulcrum_worker.group import GroupPlace, side_channels

POD = PodIdentity(ip="10.1.2.3", name="chat-h100-0", namespace="default")
MODEL = Path("/models/m")


def argv_of(config: WorkerConfig, model: Path | None = MODEL) -> tuple[str, ...]:
    return engine_command(config, POD, model=model, environment={}).argv


def environment_of(config: WorkerConfig, model: Path | None = MODEL, **inherited: str) -> dict[str, str]:
    return dict(engine_command(config, POD, model=model, environment=inherited).environment)


def value(argv: tuple[str, ...], option: str) -> str | None:
    return argv[argv.index(option) + 1] if option in argv else None


def cuda(**changes: Any) -> WorkerConfig:
    return worker_config(accelerator="H100-SXM-80GB", **{"kv_cache": KvCacheConfig(), **changes})


POOLING = cuda(task=ModelTask.POOLING, exchanges_kv=False, kv_cache=KvCacheConfig(dtype="auto"))


def test_vllm_chooses_chunks_and_prefix_cache_of_a_pooling_model() -> None:
    assert {"--enable-chunked-prefill", "--enable-prefix-caching"} <= {*argv_of(cuda())}
    assert {"--enable-chunked-prefill", "--enable-prefix-caching"}.isdisjoint(argv_of(POOLING))


@pytest.mark.parametrize(
    ("config", "option", "expected"),
    [
        (cuda(), "--model", "/models/m"),
        (cuda(), "--served-model-name", "chat"),
        (cuda(), "--host", "10.1.2.3"),
        (cuda(), "--port", "8000"),
        (cuda(), "--middleware", "fulcrum_worker.engine_access.EngineGuard"),
        (cuda(), "--allowed-media-domains", None),
        (cuda(media_domains=("a.example.com", "b.example.com")), "--allowed-media-domains", "a.example.com"),
        (cuda(), "--otlp-traces-endpoint", None),
        (cuda(traces_url="http://c:4318/v1/traces"), "--otlp-traces-endpoint", "http://c:4318/v1/traces"),
        (cuda(), "--api-key", None),  # arguments can be read by everyone on the machine
        (cuda(), "--kv-cache-dtype", "fp8"),
        (cuda(kv_cache=KvCacheConfig(dtype="bf16")), "--kv-cache-dtype", "bfloat16"),
        (cuda(kv_cache=KvCacheConfig(dtype="auto")), "--kv-cache-dtype", "auto"),
        (cuda(), "--block-size", None),
        (worker_config(kv_cache=KvCacheConfig()), "--block-size", None),
        (cuda(kv_cache=KvCacheConfig(block_size=16)), "--block-size", "16"),
        (cuda(kv_cache=KvCacheConfig(block_size=48)), "--block-size", "48"),
        (worker_config(kv_cache=KvCacheConfig(block_size=16)), "--block-size", "32"),
        (worker_config(kv_cache=KvCacheConfig(block_size=33)), "--block-size", "64"),
        (worker_config(kv_cache=KvCacheConfig(block_size=64)), "--block-size", "64"),
        (cuda(), "--kv-cache-memory-bytes", None),
        (cuda(kv_cache=KvCacheConfig(memory_bytes=5)), "--kv-cache-memory-bytes", "5"),
        (worker_config(), "--kv-cache-memory-bytes", str(16 << 20)),
        (worker_config(kv_cache=KvCacheConfig()), "--kv-cache-memory-bytes", str(1 << 30)),
        (cuda(kv_cache=KvCacheConfig(memory_bytes=80), tensor_parallel=4), "--kv-cache-memory-bytes", "20"),
        (
            cuda(kv_cache=KvCacheConfig(memory_bytes=80), tensor_parallel=4, pipeline_parallel=2),
            "--kv-cache-memory-bytes",
            "10",
        ),
        (cuda(), "--kv-cache-dtype-skip-layers", None),
        (
            cuda(kv_cache=KvCacheConfig(skip_layers=("sliding_window",))),
            "--kv-cache-dtype-skip-layers",
            "sliding_window",
        ),
        (cuda(exchanges_kv=False), "--kv-transfer-config", None),
        (cuda(), "--runner", None),
        (POOLING, "--runner", "pooling"),
        (POOLING, "--scheduling-policy", "priority"),
        (POOLING, "--kv-transfer-config", None),
        (cuda(max_model_len=None), "--max-model-len", None),
        (cuda(max_model_len=4096), "--max-model-len", "4096"),
        (cuda(tensor_parallel=4, pipeline_parallel=2), "--tensor-parallel-size", "4"),
        (cuda(tensor_parallel=4, pipeline_parallel=2), "--pipeline-parallel-size", "2"),
        (cuda(), "--attention-backend", None),
        (cuda(attention_backend="FLASHINFER"), "--attention-backend", "FLASHINFER"),
        (cuda(), "--scheduling-policy", "priority"),
    ],
)
def test_options(config: WorkerConfig, option: str, expected: str | None) -> None:
    assert value(argv_of(config), option) == expected


def test_argv_is_python_running_our_main() -> None:
    argv = argv_of(cuda())
    assert argv[:3] == (sys.executable, "-m", "fulcrum_worker.engine_main")
    assert {"--enable-chunked-prefill", "--enable-prefix-caching"} <= set(argv)


def test_eager_on_cpus_only() -> None:
    assert "--enforce-eager" in argv_of(worker_config())
    assert "--enforce-eager" not in argv_of(cuda())


def test_a_hub_id_is_passed_on_and_may_use_the_network() -> None:
    config = cuda(model="org/model")
    assert value(argv_of(config, model=None), "--model") == "org/model"
    assert "HF_HUB_OFFLINE" not in environment_of(config, model=None)
    assert environment_of(config)["HF_HUB_OFFLINE"] == "1"


def test_extra_arguments_come_last() -> None:
    assert argv_of(cuda(engine_args=("--max-num-seqs", "64")))[-2:] == ("--max-num-seqs", "64")


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (cuda(), {"kv_buffer_device": "cuda"}),
        (worker_config(), {"kv_buffer_device": "cpu"}),
        (cuda(transfer=TransferConfig(load_failure_policy="fail")), {"kv_load_failure_policy": "fail"}),
        (
            cuda(transfer=TransferConfig(backends=("UCX", "GDS"))),
            {"kv_connector_extra_config": {"backends": ["UCX", "GDS"]}},
        ),
    ],
)
def test_transfer_config(config: WorkerConfig, changes: dict[str, object]) -> None:
    expected = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cuda",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"backends": ["UCX"]},
        **changes,
    }
    assert json.loads(value(argv_of(config), "--kv-transfer-config") or "") == expected


def test_a_worker_that_exchanges_no_kv_has_only_the_connector_of_its_host_memory() -> None:
    offload = KvCacheConfig(offload=OffloadConfig(host_bytes=1 << 30))
    found = json.loads(value(argv_of(cuda(exchanges_kv=False, kv_cache=offload)), "--kv-transfer-config") or "")
    assert found["kv_connector"] == "TierConnector"
    both = json.loads(value(argv_of(cuda(kv_cache=offload)), "--kv-transfer-config") or "")
    connectors = both["kv_connector_extra_config"]["connectors"]
    assert [each["kv_connector"] for each in connectors] == ["NixlConnector", "TierConnector"]


@pytest.mark.vllm_facts
def test_states_of_hybrid_models_are_laid_out_for_nixl() -> None:
    """NIXL asserts it (vLLM: `NixlBaseConnectorWorker`), and only the CPU platform sets it by itself."""
    assert environment_of(cuda())["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"
    assert "VLLM_SSM_CONV_STATE_LAYOUT" not in environment_of(cuda(exchanges_kv=False))
    assert environment_of(cuda(), VLLM_SSM_CONV_STATE_LAYOUT="SD")["VLLM_SSM_CONV_STATE_LAYOUT"] == "SD"
    nixl = "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py"
    assert "is_conv_state_dim_first()" in code(nixl)
    assert "get_conv_state_layout() == 'DS'" in code("model_executor/layers/mamba/mamba_utils.py")
    assert "VLLM_SSM_CONV_STATE_LAYOUT" not in code("platforms/cuda.py")


def test_an_engine_that_may_sleep_has_the_development_routes_and_no_other() -> None:
    sleeps = cuda(sleep_mode=True, exchanges_kv=False)
    assert "--enable-sleep-mode" in argv_of(sleeps)
    assert environment_of(sleeps)["VLLM_SERVER_DEV_MODE"] == "1"
    assert "--enable-sleep-mode" not in argv_of(cuda())
    assert "VLLM_SERVER_DEV_MODE" not in environment_of(cuda(), VLLM_SERVER_DEV_MODE="1")


def test_environment_of_a_cuda_worker() -> None:
    environment = environment_of(cuda())
    assert environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.1.2.3"
    assert environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert environment["PYTHONHASHSEED"] == "0"
    assert environment["VLLM_NO_USAGE_STATS"] == environment["DO_NOT_TRACK"] == "1"
    assert environment["UCX_TLS"] == "cuda_ipc,cuda_copy,tcp,self,sm"
    assert environment["UCX_RNDV_THRESH"] == "16384"
    assert environment["UCX_MAX_EAGER_RAILS"] == "1"
    assert "OMP_NUM_THREADS" not in environment
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment


def test_rdma_gives_ucx_its_transports_and_devices() -> None:
    environment = environment_of(cuda(rdma=True))
    assert environment["UCX_TLS"] == "cuda_ipc,cuda_copy,rc,rdmacm,tcp,self,sm"
    assert environment["UCX_NET_DEVICES"] == "all"
    assert environment_of(cuda(rdma=True, rdma_devices=("mlx5_0:1", "eth0")))["UCX_NET_DEVICES"] == "mlx5_0:1,eth0"
    assert "UCX_NET_DEVICES" not in environment_of(cuda())
    amd = environment_of(worker_config(accelerator="MI300X-192GB", rdma=True))
    assert amd["UCX_TLS"] == "rocm_ipc,rocm_copy,rc,rdmacm,tcp,self,sm"


def test_environment_of_a_cpu_worker() -> None:
    environment = environment_of(worker_config())
    assert environment["UCX_TLS"] == "tcp,self,sm"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["TORCH_COMPILE_DISABLE"] == "1"
    assert "TORCH_COMPILE_DISABLE" not in environment_of(cuda())
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment_of(worker_config(tensor_parallel=2))


def test_what_the_pod_sets_wins_unless_it_breaks_the_contract() -> None:
    environment = environment_of(
        worker_config(),
        UCX_TLS="rc,tcp",
        OMP_NUM_THREADS="8",
        HOME="/home/fulcrum",
        VLLM_CPU_KVCACHE_SPACE="40",
        VLLM_ENABLE_RESPONSES_API_STORE="1",
        VLLM_NIXL_SIDE_CHANNEL_PORT="1",
        FULCRUM_WORKER_CONFIG="{}",
    )
    assert (environment["UCX_TLS"], environment["OMP_NUM_THREADS"], environment["HOME"]) == (
        "rc,tcp",
        "8",
        "/home/fulcrum",
    )
    assert environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment, "it would override the configured KV size"
    assert "VLLM_ENABLE_RESPONSES_API_STORE" not in environment, "it grows without bound"
    assert "FULCRUM_WORKER_CONFIG" not in environment


def test_the_token_reaches_the_engine_by_its_environment_alone() -> None:
    command = engine_command(cuda(), POD, model=MODEL, environment={"VLLM_API_KEY": "the-token"})
    assert command.environment["VLLM_API_KEY"] == "the-token"
    assert "the-token" not in " ".join(command.argv)


def in_group(rank: str, **changes: Any) -> EngineCommand:
    config = cuda(tensor_parallel=16, nodes=2, **changes)
    environment = {"LWS_LEADER_ADDRESS": "c-p-0-0.c-p-0.ml", "LWS_WORKER_INDEX": rank}
    return engine_command(config, POD, model=MODEL, environment=environment)


def test_the_engine_fetches_from_named_hosts_alone() -> None:
    argv = argv_of(cuda(media_domains=("a.example.com", "b.example.com")))
    at = argv.index("--allowed-media-domains")
    assert argv[at + 1 : at + 3] == ("a.example.com", "b.example.com")
    assert argv[at + 3].startswith("--")
    assert environment_of(cuda())["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert environment_of(cuda(), VLLM_MEDIA_URL_ALLOW_REDIRECTS="1")["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_the_engine_traces_what_the_gateway_samples_and_nothing_else() -> None:
    environment = environment_of(cuda(traces_url="http://c:4318/v1/traces"))
    assert environment["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert environment["OTEL_TRACES_SAMPLER"] == "parentbased_always_off"
    assert not any(name.startswith("OTEL_") for name in environment_of(cuda()))


def test_an_engine_on_one_node_is_told_of_no_other() -> None:
    assert {"--nnodes", "--headless", "--distributed-executor-backend"}.isdisjoint(argv_of(cuda(tensor_parallel=8)))
    assert "VLLM_HOST_IP" not in environment_of(cuda())


def test_the_parts_of_an_engine_on_two_nodes_meet_at_the_leader_which_alone_has_an_api() -> None:
    leader, follower = in_group("0"), in_group("1")
    for command, rank in ((leader, "0"), (follower, "1")):
        assert (value(command.argv, "--nnodes"), value(command.argv, "--node-rank")) == ("2", rank)
        assert value(command.argv, "--master-addr") == "c-p-0-0.c-p-0.ml"
        assert value(command.argv, "--distributed-executor-backend") == "mp"
        assert value(command.argv, "--tensor-parallel-size") == "16"
        assert command.environment["VLLM_HOST_IP"] == POD.ip
    assert ("--headless" in leader.argv, "--headless" in follower.argv) == (False, True)


def test_a_pools_ports_reach_the_engine_and_the_usual_ones_change_no_argument() -> None:
    ports = Ports(engine=9000, agent=9001, nixl=5700, ranks=29777)
    assert value(argv_of(cuda(ports=ports)), "--port") == "9000"
    assert environment_of(cuda(ports=ports))["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5700"
    for rank in ("0", "1"):
        assert value(in_group(rank, ports=ports).argv, "--master-port") == "29777"
        assert value(in_group(rank, ports=ports).argv, "--data-parallel-rpc-port") == "29826"
        assert {"--master-port", "--data-parallel-rpc-port"}.isdisjoint(in_group(rank).argv)
    assert {"--master-port", "--data-parallel-rpc-port"}.isdisjoint(argv_of(cuda(ports=ports)))


def ranks(count: int, **changes: Any) -> WorkerConfig:
    return cuda(data_parallel=count, expert_parallel=True, **changes)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (cuda(), (None, None, False, None)),
        (cuda(tensor_parallel=8, expert_parallel=True), (None, None, True, None)),
        (ranks(8), ("8", "8", True, None)),
        (ranks(8, all2all_backend="deepep_low_latency"), ("8", "8", True, "deepep_low_latency")),
        (cuda(data_parallel=2), ("2", "2", False, None)),
    ],
)
def test_ranks_and_their_experts(config: WorkerConfig, expected: tuple[object, ...]) -> None:
    argv = argv_of(config)
    said = (
        value(argv, "--data-parallel-size"),
        value(argv, "--data-parallel-size-local"),
        "--enable-expert-parallel" in argv,
        value(argv, "--all2all-backend"),
    )
    assert said == expected


@pytest.mark.parametrize(
    ("config", "local"),
    [
        (ranks(16, nodes=2), "8"),
        (ranks(2, tensor_parallel=8, nodes=2), "1"),
        (ranks(2, tensor_parallel=8, nodes=4), "1"),
    ],
)
def test_ranks_on_several_nodes(config: WorkerConfig, local: str) -> None:
    """A rank is on one node, or has nodes of its own: then it is one of each of them."""
    for rank in ("0", "1"):
        environment = {"LWS_LEADER_ADDRESS": "c-p-0-0.c-p-0.ml", "LWS_WORKER_INDEX": rank}
        argv = engine_command(config, POD, model=MODEL, environment=environment).argv
        assert value(argv, "--data-parallel-size") == str(config.data_parallel)
        assert value(argv, "--data-parallel-size-local") == local
        assert (value(argv, "--node-rank"), value(argv, "--distributed-executor-backend")) == (rank, "mp")
        assert ("--headless" in argv) == (rank == "1")


def test_a_rank_on_cpus_is_one_process_that_shares_experts() -> None:
    one, two = worker_config(), worker_config(data_parallel=2, expert_parallel=True)
    assert value(argv_of(one), "--distributed-executor-backend") is None
    assert value(argv_of(two), "--distributed-executor-backend") == "uni"
    assert [ENV_EXPERTS_ON_CPU in environment_of(config) for config in (one, two, ranks(2))] == [False, True, False]


def test_the_kv_cache_of_a_worker_is_shared_by_its_ranks() -> None:
    kv_cache = KvCacheConfig(memory_bytes=16 << 30)
    assert value(argv_of(ranks(4, tensor_parallel=2, kv_cache=kv_cache)), "--kv-cache-memory-bytes") == str(2 << 30)


def test_a_backend_that_this_vllm_does_not_have_is_refused_with_those_it_has() -> None:
    facts = VllmFacts(expert_backends=("allgather_reducescatter", "deepep_v2"))

    def command(backend: str, facts: VllmFacts) -> EngineCommand:
        return engine_command(ranks(2, all2all_backend=backend), POD, model=MODEL, environment={}, facts=facts)

    with pytest.raises(BadConfigError, match=r"'mori'.* allgather_reducescatter, deepep_v2"):
        command("mori", facts)
    assert value(command("deepep_v2", facts).argv, "--all2all-backend") == "deepep_v2"
    assert command("mori", VllmFacts()), "unknown: vLLM says it itself"


@pytest.mark.vllm_facts
def test_the_ports_that_an_engine_listens_on() -> None:
    """One for NIXL, and with data parallelism one for each rank from there on."""
    scheduler = code("distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py")
    added = "envs.VLLM_NIXL_SIDE_CHANNEL_PORT + vllm_config.parallel_config.data_parallel_index"
    assert f"self.side_channel_port = {added}" in scheduler
    assert list(check_engine_args(("--data-parallel-size=2",)))
    assert side_channels(ranks(2), "10.1.2.3", None) == (("10.1.2.3", 5600), ("10.1.2.3", 5601))
    assert f"master_port: int = {PORT_RANKS}" in code("config/parallel.py", "ParallelConfig")
    assert "data_parallel_rpc_port: int = Field(default=29550" in code("config/parallel.py", "ParallelConfig")
    assert "port = parallel_config.master_port" in code("distributed/parallel_state.py", "init_distributed_environment")


@pytest.mark.parametrize(
    ("nodes", "environment", "named"),
    [
        (3, {"LWS_LEADER_ADDRESS": "l", "LWS_WORKER_INDEX": "0"}, "nodes"),
        (2, {"LWS_LEADER_ADDRESS": "l"}, "LWS_WORKER_INDEX"),
        (2, {"LWS_LEADER_ADDRESS": "l", "LWS_WORKER_INDEX": "2"}, "LWS_WORKER_INDEX"),
        (2, {"LWS_WORKER_INDEX": "1"}, "LWS_LEADER_ADDRESS"),
    ],
)
def test_a_group_that_cannot_be_is_refused_by_name(nodes: int, environment: dict[str, str], named: str) -> None:
    with pytest.raises(BadConfigError, match=named):
        engine_command(cuda(tensor_parallel=16, nodes=nodes), POD, model=MODEL, environment=environment)


@pytest.mark.parametrize(
    ("config", "hosts"),
    [
        (cuda(), ["ip"]),
        (cuda(tensor_parallel=16, nodes=2), ["ip"]),
        (ranks(4), ["ip"] * 4),
        (ranks(4, nodes=2), ["ip", "ip", "c-p-0-0-1.c-p-0.ml", "c-p-0-0-1.c-p-0.ml"]),
        (ranks(2, tensor_parallel=16, nodes=4), ["ip", "c-p-0-0-2.c-p-0.ml"]),
    ],
)
def test_peers_ask_each_rank_on_its_own_node(config: WorkerConfig, hosts: list[str]) -> None:
    place = GroupPlace(nodes=config.nodes, rank=0, leader="c-p-0-0.c-p-0.ml") if config.nodes > 1 else None
    assert side_channels(config, "ip", place) == tuple((host, 5600 + rank) for rank, host in enumerate(hosts))
