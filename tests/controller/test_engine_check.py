"""What is refused before a worker is made: ten models on many pools, with the facts of vLLM behind it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from tests.vllm_source import code

from fulcrum.api.attention import usual_block_tokens
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec, KvCacheDtype
from fulcrum.controller.children.engine_check import refused_engines
from fulcrum.controller.installation import Installation

UTILS = "distributed/kv_transfer/kv_connector/utils.py"
NIXL = "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py"
A100, L40S, H100, B200 = "A100-SXM-80GB", "L40S-48GB", "H100-SXM-80GB", "B200-SXM-180GB"
ALLOWED = Installation(allow_remote_code=True, allow_host_access=True)


def pool(name: str, accelerator: str = H100, tensor: int = 1, roles: str = "prefill decode mixed") -> dict[str, Any]:
    return {
        "name": name, "accelerator": accelerator, "workers": {"max": 2}, "parallelism": {"tensor": tensor},
        "roles": roles.split(),
    }  # fmt: skip


def spec_of(model: str, *pools: dict[str, Any], **changes: Any) -> InferenceClusterSpec:
    document = {"model": {"name": model}, "pools": list(pools), **changes}
    return msgspec.convert(document, InferenceClusterSpec)


def refused(spec: InferenceClusterSpec, installation: Installation = ALLOWED) -> dict[str, str]:
    found = refused_engines(spec, installation)
    assert all(each.reason is Reason.ENGINE_REFUSED for each in found.values())
    return {name: each.message for name, each in found.items()}


ONE = (pool("p"),)
UNLIKE = (pool("p", H100), pool("q", A100))
NEW = (pool("p", H100), pool("q", B200))
P8_D4 = (pool("p", tensor=8, roles="prefill"), pool("d", tensor=4, roles="decode"))
P4_D8 = (pool("p", tensor=4, roles="prefill"), pool("d", tensor=8, roles="decode"))
BOTH_8_4 = (pool("p", tensor=8), pool("d", tensor=4))
MIXED = (pool("p", H100, 8, "mixed"), pool("q", A100, 4, "mixed"))
NO_COMMON, NO_BACKEND, HEADS = "no attention backend in common", "has no attention backend for", "cannot pull their KV"
BACKENDS = {
    "FLASH_ATTN_MLA": ("mla/flashattn_mla.py", "FlashAttnMLABackend"),
    "FLASHMLA": ("mla/flashmla.py", "FlashMLABackend"),
    "FLASHINFER_MLA": ("mla/flashinfer_mla.py", "FlashInferMLABackend"),
    "TRITON_MLA": ("mla/triton_mla.py", "TritonMLABackend"),
    "FLASHMLA_SPARSE": ("mla/flashmla_sparse.py", "FlashMLASparseBackend"),
    "TRITON_ATTN": ("triton_attn.py", "TritonAttentionBackend"),
}
REMOTE = "is code in its own repository"

MATRIX: dict[str, dict[str, str | None]] = {
    # model -> pools -> what is refused; None: starts and pairs
    "meta-llama/Llama-3.1-8B-Instruct": {"P8_D4": None, "P4_D8": None, "UNLIKE": None},
    "Qwen/Qwen3-30B-A3B": {"P8_D4": HEADS, "P4_D8": None, "UNLIKE": None, "BOTH_8_4": HEADS},
    "Qwen/Qwen2.5-7B-Instruct": {"P8_D4": HEADS, "P4_D8": None},
    "deepseek-ai/DeepSeek-V3": {"P8_D4": None, "BOTH_8_4": None, "UNLIKE": None, "NEW": None},
    "deepseek-ai/DeepSeek-V3.2": {"UNLIKE": NO_BACKEND, "NEW": None, "MIXED": NO_BACKEND},
    "moonshotai/Kimi-K2-Instruct": {"ONE": REMOTE, "UNLIKE": REMOTE},
    "openai/gpt-oss-120b": {"UNLIKE": None, "NEW": None, "P8_D4": None},
    "google/gemma-3-27b-it": {"UNLIKE": None, "P8_D4": None},
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {"P8_D4": None, "UNLIKE": None},
    "own/model": {"P8_D4": None, "UNLIKE": None},
}


@pytest.mark.parametrize(("model", "pools"), [(model, pools) for model, row in MATRIX.items() for pools in row])
def test_matrix(model: str, pools: str) -> None:
    found, expected = refused(spec_of(model, *globals()[pools])), MATRIX[model][pools]
    if expected is None:
        assert found == {}
    else:
        assert any(expected in message for message in found.values()), found


def test_a_model_without_a_common_backend_and_how_to_serve_it_all_the_same() -> None:
    """No sparse latent attention of vLLM runs on both Hopper and consumer GPUs: nothing above claims one."""
    spec = spec_of("deepseek-ai/DeepSeek-V3.2", *NEW)
    assert refused(spec) == {}
    assert list(refused(spec_of("deepseek-ai/DeepSeek-V3.2", pool("p", H100), pool("q", L40S)))) == ["q"]


def test_flags_of_the_operator() -> None:
    spec = spec_of("moonshotai/Kimi-K2-Instruct", pool("p"))
    trusting = msgspec.structs.replace(spec.model, trust_remote_code=True, revision="abc")
    spec = msgspec.structs.replace(spec, model=trusting)
    assert "--allow-remote-code" in refused(spec, Installation())["p"]
    assert refused(spec) == {}
    root = spec_of("m", {**pool("p"), "rdma": {"runAsRoot": True}}, pool("q"))
    assert "--allow-host-access" in refused(root, Installation())["p"]
    assert "q" not in refused(root, Installation()), "the others go on"
    assert refused(root) == {}


def test_a_pool_that_is_switched_off_is_not_judged() -> None:
    off = {**pool("d", tensor=4), "workers": {"max": 0}}
    assert refused(spec_of("Qwen/Qwen2.5-7B-Instruct", pool("p", tensor=8), off)) == {}


def test_fp8_counts_as_it_came_out() -> None:
    spec = spec_of("deepseek-ai/DeepSeek-V3.2", pool("p", H100))
    assert refused_engines(spec, ALLOWED, KvCacheDtype.FP8) == {}


@pytest.mark.parametrize(
    ("model", "accelerator", "size", "least"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", H100, 17, 16),
        ("meta-llama/Llama-3.1-70B-Instruct", H100, 8, 16),
        ("meta-llama/Llama-3.1-70B-Instruct", H100, 48, None),
        ("deepseek-ai/DeepSeek-V3", "H200-SXM-141GB", 32, 64),
        ("deepseek-ai/DeepSeek-V3", "H200-SXM-141GB", 128, None),
        ("meta-llama/Llama-3.1-8B-Instruct", "MI300X-192GB", 1, None),
        ("own/model", "cpu", 24, None),
    ],
)
def test_blocks_that_no_kernel_takes(model: str, accelerator: str, size: int, least: int | None) -> None:
    cache = {"kvCache": {"blockSize": size, "dtype": "fp8"}}
    found = refused(spec_of(model, pool("p", accelerator, 8), engine=cache))
    said = [message for message in found.values() if "blockSize" in message]
    assert (f"takes blocks of {least} tokens" in said[0]) if least else not said, found


@pytest.mark.vllm_facts
@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_block_sizes_of_backends(backend: str) -> None:
    """Each takes the size that we know and its multiples, and none that is smaller."""
    path, of_class = BACKENDS[backend]
    text = code(f"v1/attention/backends/{path}", of_class, "get_supported_kernel_block_sizes")
    sizes = [int(size) for listed in re.findall(r"return \[(.*)\]", text) for size in re.findall(r"\d+", listed)]
    usual = usual_block_tokens(backend)
    assert usual in sizes
    assert all(size % usual == 0 for size in sizes)


@pytest.mark.vllm_facts
def test_what_vllm_can_pull() -> None:
    """The handshake asserts it; ratios must be whole."""
    handshake = code(NIXL, "NixlBaseConnectorWorker", "_validate_remote_agent_handshake")
    assert "if not self.use_mla and (not self._has_mamba):" in handshake
    assert "tp_ratio < 0 and self.transfer_topo.is_kv_replicated(remote_engine_id)" in handshake
    assert "> self.total_num_kv_heads" in code(UTILS, "TransferTopology", "is_kv_replicated")
    assert code(UTILS, "TransferTopology", "tp_ratio").count("% ") == 2
