"""A real engine with a host tier: what left the device comes back from host memory, and gives the same tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.machine import undisturbed
from tests.worker_image.tiered_engine import TieredEngine, computes_light, tiered_engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

SURE = 8
"""First tokens of an answer that rounding cannot change, at least."""
SHARE_OF_COLD = 0.15
"""Of the cold TTFT, for 2,000 tokens from host memory; measured 0.03 to 0.05."""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TieredEngine]]:
    """By type of the KV cache (a light one's is float32); started together, as most of a start is one core's."""
    dtypes = ["bf16"] if computes_light() else ["bf16", "fp8"]
    folders = {dtype: tmp_path_factory.mktemp(dtype) for dtype in dtypes}  # mktemp is not thread-safe
    with ExitStack() as stack, ThreadPoolExecutor(len(dtypes)) as threads:

        def start(dtype: str) -> TieredEngine:
            return stack.enter_context(tiered_engine(folders[dtype], dtype=dtype, policy="load", light=True))

        yield dict(zip(dtypes, threads.map(start, dtypes), strict=True))


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_an_evicted_prefix_comes_back_from_host_memory(engines: dict[str, TieredEngine], dtype: str) -> None:
    if dtype not in engines:
        pytest.skip("this CPU has no kernels for an FP8 KV cache")
    engine = engines[dtype]
    engine.ask(engine.prompt(500), max_tokens=2)  # the first prompt of an engine is slow
    prompt = engine.prompt(2016)
    while len((cold := engine.ask(prompt, logprobs=2)).decided_tokens) < SURE:
        prompt = engine.prompt(2016)
    on_device = engine.ask(prompt)
    times = itertools.count(1)

    def restored_by_cold() -> float:
        engine.evict()
        restored = engine.ask(prompt)
        from_host = engine.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        assert from_host >= next(times) * 1500, "the prompt was in host memory, and not on the device"
        # FP8 rounds what a prompt attends to later, so a cold answer may differ from any cached one.
        expected = cold.decided_tokens if dtype == "bf16" else on_device.tokens
        assert restored.tokens[: len(expected)] == expected
        return restored.ttft_seconds / cold.ttft_seconds

    undisturbed(restored_by_cold, at_most=SHARE_OF_COLD)
