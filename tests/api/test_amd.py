"""What differs on AMD: resource, image, and an FP8 that is never handed to another kind of GPU."""

from __future__ import annotations

import ast
from itertools import combinations
from typing import Any

import msgspec
import pytest
from tests import vllm_source

from fulcrum.api.amd import has_fnuz, is_amd
from fulcrum.api.kv_format import kv_format
from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import KvCacheConfig, WorkerConfig
from fulcrum.capacity.accelerators import ACCELERATORS
from fulcrum.controller.children import Owner, worker_pod
from fulcrum.controller.children.engine_check import refused_engines
from fulcrum.controller.installation import Installation

FNUZ = {"MI300X-192GB", "MI325X-256GB"}
AMD = FNUZ | {"MI355X-288GB"}


def config(accelerator: str, dtype: str) -> WorkerConfig:
    return WorkerConfig(
        cluster="c",
        pool="p",
        model="m",
        served_name="m",
        accelerator=accelerator,
        attention_backend="TRITON_ATTN",
        kv_cache=KvCacheConfig(dtype=dtype),
    )


def spec_of(*pools: dict[str, Any], **engine: Any) -> InferenceClusterSpec:
    document = {"model": {"name": "meta-llama/Llama-3.1-8B-Instruct"}, "pools": list(pools), "engine": engine}
    return msgspec.convert(document, InferenceClusterSpec)


def pool(name: str, accelerator: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "accelerator": accelerator, "workers": {"max": 2}, **more}


def test_whose_accelerators_are_amds_and_which_have_fnuz() -> None:
    assert {name for name in ACCELERATORS if is_amd(name)} == AMD
    assert {name for name in ACCELERATORS if has_fnuz(name)} == FNUZ


@pytest.mark.vllm_facts
def test_vllm_says_of_the_same_gpus_that_their_fp8_is_fnuz() -> None:
    """`is_fp8_fnuz` is true for gfx94*, which MI300X and MI325X are, and false for gfx950, which MI355X is."""
    tree = vllm_source.module("platforms/rocm.py")
    (platform,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "RocmPlatform")
    (method,) = (node for node in platform.body if isinstance(node, ast.FunctionDef) and node.name == "is_fp8_fnuz")
    returned = method.body[-1]
    assert isinstance(returned, ast.Return)
    assert returned.value is not None
    assert ast.unparse(returned.value) == "'gfx94' in _GCN_ARCH"
    source = (vllm_source.root() / "platforms/rocm.py").read_text()
    assert "'gfx942' for MI300X/MI325X" in source
    interface = vllm_source.module("platforms/interface.py")
    (default,) = (
        node for node in ast.walk(interface) if isinstance(node, ast.FunctionDef) and node.name == "is_fp8_fnuz"
    )
    assert ast.unparse(default.body[-1]) == "return False", "and for all others"


@pytest.mark.parametrize("dtype", ["fp8", "auto", "bf16"])
def test_fnuz_never_pairs_with_another_fp8(dtype: str) -> None:
    """vLLM's handshake compares the type's name, which is `fp8` on both sides."""
    for one, other in combinations(sorted(AMD | {"H100-SXM-80GB", "B200-SXM-180GB"}), 2):
        pairs = kv_format(config(one, dtype), "i") == kv_format(config(other, dtype), "i")
        assert pairs == (dtype == "bf16" or has_fnuz(one) == has_fnuz(other)), (one, other)


def test_workers_of_before_pair_with_those_of_now() -> None:
    """Nothing is added to the format of GPUs whose FP8 is the usual one."""
    told = kv_format(config("H100-SXM-80GB", "fp8"), "i")
    assert told == repr(("i", "m", None, "fp8", (), None, "nixl", "TRITON_ATTN", ()))


@pytest.mark.parametrize(
    ("first", "second", "roles", "dtype", "refused"),
    [
        ("MI300X-192GB", "H100-SXM-80GB", ("prefill", "decode"), "fp8", {"a"}),
        ("MI300X-192GB", "MI355X-288GB", ("prefill", "decode"), "fp8", {"a"}),
        ("MI300X-192GB", "MI325X-256GB", ("prefill", "decode"), "fp8", set()),
        ("MI355X-288GB", "H100-SXM-80GB", ("prefill", "decode"), "fp8", set()),
        ("MI300X-192GB", "H100-SXM-80GB", ("prefill", "decode"), "bf16", set()),
        ("MI300X-192GB", "H100-SXM-80GB", ("mixed",), "fp8", set()),
    ],
)
def test_pools_that_could_hand_over_nothing_are_refused(
    first: str, second: str, roles: tuple[str, ...], dtype: str, refused: set[str]
) -> None:
    pools = (pool("a", first, roles=list(roles)), pool("b", second, roles=["prefill", "decode"]))
    spec = spec_of(*pools, kvCache={"dtype": dtype}, attentionBackend="TRITON_ATTN")
    found = refused_engines(spec, Installation())
    assert found.keys() == refused
    assert all("FNUZ" in each.message for each in found.values())


@pytest.mark.parametrize(
    ("gpu", "accelerator", "resource"),
    [
        ({}, "MI300X-192GB", "amd.com/gpu"),
        ({"resource": "nvidia.com/gpu"}, "MI355X-288GB", "amd.com/gpu"),  # what the API server writes for nothing
        ({"resource": "amd.com/gpu"}, "MI300X-192GB", "amd.com/gpu"),
        ({"resource": "example.com/gpu"}, "MI300X-192GB", "example.com/gpu"),
        ({}, "H100-SXM-80GB", "nvidia.com/gpu"),
    ],
)
def test_a_worker_asks_for_the_gpus_of_its_maker(gpu: dict[str, str], accelerator: str, resource: str) -> None:
    spec = spec_of(pool("a", accelerator, gpu=gpu))
    pod = worker_pod(
        Owner(name="c", namespace="ns", uid="u"), spec, spec.pools[0], ordinal=0, role=Role.DECODE, image="i"
    )
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {resource: "1"}


def test_the_release_has_an_image_for_each_maker() -> None:
    release = Installation()
    assert release.worker_image_for("H100-SXM-80GB") == release.worker_image_for("cpu") == release.worker_image
    assert "worker-rocm:" in release.worker_image_for("MI300X-192GB")
