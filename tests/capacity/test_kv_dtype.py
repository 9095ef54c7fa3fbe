"""What `kvCache.dtype` comes to, by model and accelerator, and what is said against it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fulcrum.api.types import InferenceClusterSpec, ModelTask
from fulcrum.capacity.kv_dtype import kv_precision, resolved_kv_dtype
from fulcrum.capacity.model_kinds import ModelKind
from fulcrum.capacity.precision import Precision

LLAMA, QWEN = "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen2.5-72B-Instruct"
GEMMA, V3 = "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3"
H100, A100, L40S, MI300 = "H100-SXM-80GB", "A100-SXM-80GB", "L40S-48GB", "MI300X-192GB"


def spec_of(model: str, *accelerators: str, dtype: str | None = None) -> InferenceClusterSpec:
    pools = [{"name": f"p{n}", "accelerator": each, "workers": {"max": 2}} for n, each in enumerate(accelerators)]
    document: dict[str, Any] = {"model": {"name": model}, "pools": pools}
    if dtype is not None:
        document["engine"] = {"kvCache": {"dtype": dtype}}
    return msgspec.convert(document, InferenceClusterSpec)


@pytest.mark.parametrize(
    ("model", "accelerators", "dtype", "why"),
    [
        (LLAMA, (H100,), "fp8", "known to be good"),
        (LLAMA, (H100, L40S), "fp8", "known to be good"),
        (LLAMA, (H100, A100), "auto", "A100-SXM-80GB would not compute in it"),
        (LLAMA, (MI300,), "auto", "MI300X"),  # another format of FP8
        (LLAMA, ("cpu",), "auto", "cpu"),
        (QWEN, (H100,), "auto", "vllm #41343"),
        (GEMMA, (H100,), "auto", "nothing is known"),
        ("own/model", (H100,), "auto", "nothing is known"),
    ],
)
def test_auto(model: str, accelerators: tuple[str, ...], dtype: str, why: str) -> None:
    spec = spec_of(model, *accelerators)
    found = resolved_kv_dtype(spec)
    assert (found.dtype.value, found.problem) == (dtype, None)
    assert why in found.why
    assert kv_precision(spec) is (Precision.FP8 if dtype == "fp8" else Precision.BF16)


def test_pools_that_are_switched_off_do_not_count() -> None:
    spec = spec_of(LLAMA, H100, A100)
    off = msgspec.structs.replace(spec.pools[1], workers=msgspec.structs.replace(spec.pools[1].workers, max=0))
    assert resolved_kv_dtype(msgspec.structs.replace(spec, pools=(spec.pools[0], off))).dtype.value == "fp8"


@pytest.mark.parametrize(
    ("model", "accelerator", "dtype", "problem"),
    [
        (LLAMA, H100, "fp8", None),
        (LLAMA, A100, "fp8", None),
        (QWEN, H100, "fp8", "answers badly"),
        (QWEN, H100, "bf16", None),
        (QWEN, "cpu", "fp8", "answers badly"),
        (V3, A100, "fp8", "slow with FP8 KV on A100"),
        (V3, H100, "fp8", None),
        (GEMMA, H100, "fp8", "quick attention kernels"),
        ("own/model", A100, "fp8", None),
    ],
)
def test_what_is_forced_stays_and_is_judged(model: str, accelerator: str, dtype: str, problem: str | None) -> None:
    found = resolved_kv_dtype(spec_of(model, accelerator, dtype=dtype))
    assert (found.dtype.value, found.why) == (dtype, f"spec.engine.kvCache.dtype is {dtype}")
    assert found.problem is None if problem is None else problem in (found.problem or "")


def test_a_checkpoint_with_scales_is_left_to_vllm_and_may_be_forced() -> None:
    kind = ModelKind(fp8=False, source="s", scaled=True)
    assert resolved_kv_dtype(spec_of(QWEN, H100), kind).dtype.value == "auto"
    assert "own scheme" in resolved_kv_dtype(spec_of(QWEN, H100), kind).why
    assert resolved_kv_dtype(spec_of(QWEN, H100, dtype="fp8"), kind).problem is None
    for dtype, counted in ((None, Precision.FP8), ("fp8", Precision.FP8), ("bf16", Precision.BF16)):
        assert kv_precision(spec_of(QWEN, H100, dtype=dtype), kind) is counted


def test_a_pooling_model_keeps_no_kv_whose_type_would_matter() -> None:
    spec = spec_of(LLAMA, H100)
    spec = msgspec.structs.replace(spec, model=msgspec.structs.replace(spec.model, task=ModelTask.POOLING))
    assert resolved_kv_dtype(spec).dtype.value == "auto"
