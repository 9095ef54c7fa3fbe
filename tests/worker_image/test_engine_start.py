"""How vLLM is started and how roles are given, told by symbol: on the installed vLLM, and on the next one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.vllm_source import code, root
from tests.worker_image.agents import worker_config

from fulcrum.api.names import Role
from fulcrum.api.worker import KvCacheConfig, OffloadConfig
from fulcrum_worker.config import PodIdentity
from fulcrum_worker.engine_command import engine_command
from fulcrum_worker.engine_start import (
    ARGUMENT_MODULES,
    ENVIRONMENT_MODULES,
    SERVER_ENTRY,
    Roles,
    VllmFacts,
    kv_role,
    vllm_facts,
)
from fulcrum_worker.engine_transfer import transfer_config
from fulcrum_worker.start_progress import SIGNS

AT_START = Roles.AT_START
POD = PodIdentity(ip="10.1.2.3", name="w", namespace="default")


def path_of(module: str) -> str:
    return module.removeprefix("vllm.").replace(".", "/") + ".py"


@pytest.mark.vllm_facts
def test_this_vllm() -> None:
    """A tree without `kv_both` or with another float check changes what is found here, and nothing else has to."""
    facts = vllm_facts(root())
    assert facts.roles is Roles.LIVE
    assert "allgather_reducescatter" in (facts.expert_backends or ())
    assert facts.refuses_unlike_kv_dtype == ("_reject_mismatched_float_kv_cache" in code("config/vllm.py"))


@pytest.mark.vllm_facts
def test_symbols_are_where_they_are_looked_for() -> None:
    assert "def main()" in code(path_of(SERVER_ENTRY))
    for modules, symbol in ((ENVIRONMENT_MODULES, "cli_env_setup"), (ARGUMENT_MODULES, "make_arg_parser")):
        files = [root() / path_of(module) for module in modules]
        assert any(f"def {symbol}(" in file.read_text() for file in files if file.is_file()), symbol


def without_both(folder: Path) -> Path:
    """vLLM's own file of roles, without `kv_both`."""
    (folder / "config").mkdir(parents=True)
    own = (root() / "config" / "kv_transfer.py").read_text()
    (folder / "config" / "kv_transfer.py").write_text(re.sub(r',\s*"kv_both"', "", own))
    return folder


@pytest.mark.vllm_facts
def test_a_vllm_without_a_role_for_both(tmp_path: Path) -> None:
    assert vllm_facts(without_both(tmp_path / "vllm")).roles is AT_START


@pytest.mark.parametrize("content", [None, "", "KVRole = object"])
def test_what_cannot_be_read(tmp_path: Path, content: str | None) -> None:
    """No file: as in 0.32. A file that has no such role: there is none."""
    if content is not None:
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "kv_transfer.py").write_text(content)
    assert vllm_facts(tmp_path).roles is (Roles.LIVE if content is None else AT_START)


@pytest.mark.parametrize(
    ("roles", "role", "expected"),
    [
        *((Roles.LIVE, role, "kv_both") for role in (Role.PREFILL, Role.DECODE, Role.MIXED)),
        (AT_START, Role.PREFILL, "kv_producer"),
        (AT_START, Role.DECODE, "kv_consumer"),
        (AT_START, Role.MIXED, None),
    ],
)
def test_roles(roles: Roles, role: Role, expected: str | None) -> None:
    assert kv_role(roles, role) == expected


def transfer_of(role: Role, **changes: Any) -> dict[str, Any] | None:
    return transfer_config(worker_config(role=role, **changes), None, None, AT_START)


def test_an_engine_of_one_role_is_told_that_alone() -> None:
    prefill, decode = transfer_of(Role.PREFILL), transfer_of(Role.DECODE)
    assert prefill is not None
    assert decode is not None
    assert (prefill["kv_role"], decode["kv_role"]) == ("kv_producer", "kv_consumer")
    assert transfer_of(Role.MIXED) is None
    tiered = KvCacheConfig(offload=OffloadConfig(host_bytes=1 << 30))
    alone, both = transfer_of(Role.MIXED, kv_cache=tiered), transfer_of(Role.DECODE, kv_cache=tiered)
    assert alone is not None
    assert both is not None
    assert alone["kv_connector"] == "TierConnector"
    found = [each["kv_role"] for each in both["kv_connector_extra_config"]["connectors"]]
    assert (both["kv_role"], found) == ("kv_consumer", ["kv_consumer"] * 2)


@pytest.mark.parametrize(
    ("dtype", "args", "refuses", "expected"),
    [
        ("bf16", (), False, "bfloat16"),
        ("bf16", ("--dtype", "float32"), False, "bfloat16"),
        ("bf16", ("--dtype", "float32"), True, "auto"),
        ("bf16", ("--dtype=half",), True, "auto"),
        ("bf16", ("--dtype", "bfloat16"), True, "bfloat16"),
        ("bf16", ("--dtype=auto",), True, "bfloat16"),
        ("bf16", (), True, "bfloat16"),
        ("fp8", ("--dtype", "float32"), True, "fp8"),
    ],
)
def test_a_kv_type_that_the_model_does_not_compute_in(
    dtype: str, args: tuple[str, ...], refuses: bool, expected: str
) -> None:
    config = worker_config(kv_cache=KvCacheConfig(dtype=dtype), engine_args=args)
    facts = VllmFacts(refuses_unlike_kv_dtype=refuses)
    argv = engine_command(config, POD, model=None, environment={}, facts=facts).argv
    assert argv[argv.index("--kv-cache-dtype") + 1] == expected


@pytest.mark.vllm_facts
def test_what_the_agent_knows_of_vllm_by_name() -> None:
    """Log lines, metrics, options and messages that it reads or writes: each is still in vLLM's source."""
    facts = {
        "v1/metrics/loggers.py": ("vllm:cache_config_info", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"),
        "config/cache.py": ("kv_cache_dtype_skip_layers", "kv_cache_memory_bytes", "Size of KV Cache per GPU in bytes"),
        "distributed/kv_transfer/kv_connector/v1/nixl/metadata.py": (
            "attn_backend_name",
            "cache_dtype",
            "get_meta_msg",
        ),
        "engine/arg_utils.py": ("--kv-cache-dtype-skip-layers", "--code-revision", "--trust-remote-code"),
    }
    for path, known in facts.items():
        source = (root() / path).read_text()
        assert [each for each in known if each not in source] == [], path
    folders = ("v1/engine", "v1/worker", "v1/core", "model_executor/model_loader")
    sources = [file.read_text() for folder in folders for file in (root() / folder).rglob("*.py")]
    assert [sign for sign, _ in SIGNS if not any(sign in source for source in sources)] == []
