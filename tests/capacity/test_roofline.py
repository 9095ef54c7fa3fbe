"""Step times grow with work and shrink with hardware; a few are near what was published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.capacity.accelerators import ACCELERATORS, accelerator
from fulcrum.capacity.decode_curve import curve_problem
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.known_models import KNOWN_MODELS, known_model
from fulcrum.capacity.kv import Link
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.profile import distserve_speed
from fulcrum.capacity.roofline import EAGER, Roofline, worker_speed
from fulcrum.capacity.speed import Speed, SpeedSource

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference"
LLAMA_8B = known_model("meta-llama/Llama-3.1-8B-Instruct")
LLAMA_70B = known_model("meta-llama/Llama-3.1-70B-Instruct")
H100 = accelerator("H100")

MODELS = sorted((each for each in KNOWN_MODELS.values() if each.heads % 8 == 0), key=lambda model: model.name)


def engines(
    models: Sequence[ModelConfig] = MODELS,
    pipelines: Sequence[int] = (1, 2, 4),
    batches: Sequence[int] = (1, 4, 256, 1024),
) -> st.SearchStrategy[EngineShape]:
    return st.builds(
        EngineShape,
        model=st.sampled_from(models),
        accelerator=st.sampled_from(sorted(ACCELERATORS.values(), key=lambda each: each.name)),
        tensor=st.sampled_from([1, 2, 4, 8]),
        pipeline=st.sampled_from(pipelines),
        weights=st.sampled_from(Precision),
        kv=st.sampled_from([Precision.BF16, Precision.FP8]),
        max_batch=st.sampled_from(batches),
    )


shapes = engines()
dense = engines([model for model in MODELS if model.moe is None], pipelines=[1], batches=[256, 1024])


@given(shape=shapes, tokens=st.integers(1, 100_000), more=st.integers(1, 100_000))
def test_a_longer_prompt_takes_longer(shape: EngineShape, tokens: int, more: int) -> None:
    roofline = Roofline(shape=shape)
    # A prompt that needs one more chunk fills a pipeline better, so only the linear form grows without exception there.
    if shape.pipeline == 1:
        assert roofline.prefill_seconds((tokens + more,)) > roofline.prefill_seconds((tokens,)) > 0


@given(shape=shapes, batch=st.integers(1, 1000), context=st.integers(1, 10**6), more=st.integers(1, 1000))
def test_a_decode_step_grows_with_batch_and_context(shape: EngineShape, batch: int, context: int, more: int) -> None:
    roofline = Roofline(shape=shape)
    step = roofline.decode_step_seconds(batch, context)
    assert step > 0
    assert roofline.decode_step_seconds(batch + more, context) >= step
    assert roofline.decode_step_seconds(batch, context + more * 1000) >= step


@given(shape=shapes)
def test_coefficients_are_finite_and_not_negative(shape: EngineShape) -> None:
    speed = Roofline(shape=shape).coefficients()
    assert curve_problem(speed.decode_curve) is None
    numbers = msgspec.structs.astuple(speed)[:6]
    assert all(0 <= each < 1e6 for each in numbers)
    assert any(each > 0 for each in numbers[:3])
    assert any(each > 0 for each in numbers[3:])


@given(shape=dense)
def test_the_linear_form_is_near_the_roofline(shape: EngineShape) -> None:
    roofline, k = Roofline(shape=shape), Roofline(shape=shape).coefficients()
    for length in (512, 2048, 8192):
        linear = k.prefill_a + k.prefill_b * length + k.prefill_c * length**2
        assert linear == pytest.approx(roofline.prefill_seconds((length,)), rel=0.5)
    for batch in (16, 64, 256):
        linear = k.decode_a + k.decode_b * batch + k.decode_c * batch * 1024
        assert linear == pytest.approx(roofline.decode_step_seconds(batch, batch * 1024), rel=0.5)


@pytest.mark.parametrize("name", ["H100", "H200", "B200", "A100"])
@pytest.mark.parametrize(("few", "many"), [(1, 2), (2, 4), (4, 8)])
def test_more_gpus_are_quicker_but_not_beyond_reason(name: str, few: int, many: int) -> None:
    slow, fast = (
        Roofline(shape=EngineShape(model=LLAMA_70B, accelerator=accelerator(name), tensor=tensor))
        for tensor in (few, many)
    )
    assert 1.0 < slow.prefill_seconds((4096,)) / fast.prefill_seconds((4096,)) <= 2.0
    assert 1.0 < slow.decode_step_seconds(32, 32 * 2048) / fast.decode_step_seconds(32, 32 * 2048) <= 2.0


def test_pipeline_stages_share_the_work_of_long_prompts_only() -> None:
    one, four = (Roofline(shape=EngineShape(model=LLAMA_70B, accelerator=H100, pipeline=stages)) for stages in (1, 4))
    assert four.prefill_seconds((1024,)) == pytest.approx(one.prefill_seconds((1024,)), rel=0.05)
    assert four.prefill_seconds((131_072,)) < 0.4 * one.prefill_seconds((131_072,))
    # A token passes all stages: the weights are read as often, contexts are spread.
    assert four.decode_step_seconds(1, 1) == pytest.approx(one.decode_step_seconds(1, 1), rel=0.05)
    assert four.decode_step_seconds(128, 128 * 4096) < 0.75 * one.decode_step_seconds(128, 128 * 4096)


def test_a_group_over_two_machines_pays_for_the_network() -> None:
    model = known_model("deepseek-ai/DeepSeek-V3")
    eight, sixteen = (
        Roofline(shape=EngineShape(model=model, accelerator=H100, tensor=tensor, weights=Precision.FP8))
        for tensor in (8, 16)
    )
    assert sixteen.prefill_seconds((8192,)) > 0.6 * eight.prefill_seconds((8192,))


def test_fp8_is_quicker_where_the_chip_has_it() -> None:
    def prefill(name: str, weights: Precision) -> float:
        shape = EngineShape(model=LLAMA_8B, accelerator=accelerator(name), weights=weights)
        return Roofline(shape=shape).prefill_seconds((8192,))

    assert prefill("H100", Precision.FP8) < 0.85 * prefill("H100", Precision.BF16)
    assert prefill("A100", Precision.FP8) == pytest.approx(prefill("A100", Precision.BF16), rel=0.01)


def test_decode_is_bound_by_reading_the_weights() -> None:
    roofline = Roofline(shape=EngineShape(model=LLAMA_8B, accelerator=H100, kv=Precision.BF16))
    reading = 15.0e9 / 3350e9  # 16 GB without the embedding table
    assert reading < roofline.decode_step_seconds(1, 100) < 1.6 * reading
    per_context_token = roofline.decode_step_seconds(8, 100_000) - roofline.decode_step_seconds(8, 0)
    assert per_context_token == pytest.approx(100_000 * 131_072 / 3350e9 / 0.9, rel=0.01)


def test_few_requests_read_few_experts() -> None:
    roofline = Roofline(shape=EngineShape(model=known_model("Qwen3-235B-A22B"), accelerator=H100, tensor=8))
    assert roofline.decode_step_seconds(64, 0) > 2.5 * roofline.decode_step_seconds(1, 0)


def test_a_sliding_window_bounds_what_decode_reads() -> None:
    model = known_model("openai/gpt-oss-120b")
    roofline = Roofline(shape=EngineShape(model=model, accelerator=H100, weights=Precision.FP4, kv=Precision.BF16))
    grown = roofline.decode_step_seconds(1, 100_128) - roofline.decode_step_seconds(1, 128)
    assert grown == pytest.approx(100_000 * 73_728 / 2 / 3350e9 / 0.9, rel=0.01)


def test_worker_speed_is_complete() -> None:
    speed: Speed = worker_speed(LLAMA_8B, H100, link=Link.NETWORK)
    assert speed.max_batch == 1024
    assert speed.max_batched_tokens == 8192
    assert 700_000 < speed.kv_capacity_tokens < 1_100_000  # (72 - 16 - 3) GB of 64 KiB
    assert 0.040 < speed.prefill_seconds(1024, 1024**2) < 0.070  # 30 ms of it serving
    assert 0.005 < speed.decode_step_seconds(8, 8 * 1024) < 0.012
    assert 0.002 < speed.transfer_seconds(1024) < 0.010
    assert worker_speed(LLAMA_8B, H100).source is SpeedSource.ROOFLINE


def test_published_weights_are_the_default() -> None:
    by_default = worker_speed(known_model("Qwen/Qwen3-235B-A22B-FP8"), H100, tensor=4)
    assert by_default == worker_speed(known_model("Qwen/Qwen3-235B-A22B"), H100, tensor=4, weights=Precision.FP8)
    with pytest.raises(EngineShapeError, match="does not fit"):
        worker_speed(known_model("Qwen/Qwen3-235B-A22B"), H100, tensor=4)


def test_opt_13b_on_an_a100_is_near_distserve() -> None:
    """An engine of 2023 too: within 40 %, over the sizes that its fits were made from."""
    path = REFERENCE / "distserve_profile_a100.json"
    if not path.is_file():
        pytest.skip("no reference data")
    document = json.loads(path.read_text())
    for tensor in (1, 2):
        fit = distserve_speed(document, "facebook/opt-13b", tensor=tensor, kv_capacity_tokens=60_000)
        own = worker_speed(
            known_model("facebook/opt-13b"), accelerator("A100"), tensor=tensor, kv=Precision.BF16, efficiency=EAGER
        )
        for length in (512, 1024, 2048):
            assert own.prefill_seconds(length, length**2) == pytest.approx(
                fit.prefill_seconds(length, length**2), rel=0.4
            )
        for batch in (8, 32, 64):
            context = batch * 512
            assert own.decode_step_seconds(batch, context) == pytest.approx(
                fit.decode_step_seconds(batch, context), rel=0.6
            ), batch
