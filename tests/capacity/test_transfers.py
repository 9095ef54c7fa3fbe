"""What moving KV costs is learnt from transfers: few of them, with noise, outliers, and links that change."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.kv import UNKNOWN_TRANSFER, TransferCost
from fulcrum.capacity.transfers import LearntTransfer, pool_transfer

PRIOR = TransferCost(base_seconds=0.002, seconds_per_token=2e-4)


def seen(
    found: LearntTransfer,
    truth: TransferCost,
    *,
    count: int = 16,
    seed: int = 1,
    lengths: tuple[float, float] = (200.0, 8000.0),
    noise: float = 0.15,
    disturbed: float = 0.0,
    start: float = 0.0,
) -> LearntTransfer:
    """Learn `count` transfers over the link `truth`, one a second; a share of them is disturbed by 5 to 50 times."""
    random = Random(seed)
    for number in range(count):
        tokens = random.uniform(*lengths)
        seconds = truth.seconds(tokens) * random.lognormvariate(0.0, noise)
        if random.random() < disturbed:
            seconds *= random.uniform(5.0, 50.0)
        found.learn(tokens=tokens, seconds=seconds, now_seconds=start + number)
    return found


@pytest.mark.parametrize("prior", [PRIOR, UNKNOWN_TRANSFER], ids=["known model", "unknown model"])
@pytest.mark.parametrize(
    "truth",
    [
        TransferCost(base_seconds=0.005, seconds_per_token=2e-4),
        TransferCost(base_seconds=0.002, seconds_per_token=4e-3),
        TransferCost(base_seconds=0.004, seconds_per_token=5e-6),
        TransferCost(base_seconds=0.1, seconds_per_token=1e-4),
    ],
    ids=["as expected", "20 times slower", "40 times faster", "slow to begin"],
)
@pytest.mark.parametrize("seed", range(5))
def test_it_is_near_the_truth_after_16_transfers(prior: TransferCost, truth: TransferCost, seed: int) -> None:
    cost = seen(LearntTransfer(prior), truth, seed=seed).cost
    for tokens in (1000, 4000, 8000):
        assert cost.seconds(tokens) == pytest.approx(truth.seconds(tokens), rel=0.35, abs=0.003)


@pytest.mark.parametrize("seed", range(8))
def test_an_eighth_of_disturbed_transfers_does_no_harm(seed: int) -> None:
    truth = TransferCost(base_seconds=0.002, seconds_per_token=1e-3)
    cost = seen(LearntTransfer(PRIOR), truth, seed=seed, disturbed=0.125).cost
    assert cost.seconds(4000) == pytest.approx(truth.seconds(4000), rel=0.4)


@pytest.mark.parametrize("prior", [PRIOR, UNKNOWN_TRANSFER], ids=["known model", "unknown model"])
def test_prompts_of_one_length_tell_the_cost_of_that_length(prior: TransferCost) -> None:
    truth = TransferCost(base_seconds=0.01, seconds_per_token=1e-3)
    cost = seen(LearntTransfer(prior), truth, lengths=(3000.0, 3000.0)).cost
    assert cost.seconds(3000) == pytest.approx(truth.seconds(3000), rel=0.15)
    assert cost.base_seconds < 0.5 * cost.seconds(3000)


def test_two_transfers_change_nothing() -> None:
    """The first one of a pair of engines waits for their handshake, for seconds."""
    found = LearntTransfer(PRIOR)
    for now in (1.0, 2.0):
        found.learn(tokens=100.0, seconds=9.0, now_seconds=now)
        assert found.cost == PRIOR
        assert found.rows == 0
    seen(found, PRIOR, count=3, start=3.0, noise=0.0)
    assert found.cost.seconds(2000) == pytest.approx(PRIOR.seconds(2000), rel=0.05)


def test_a_link_that_changes_is_known_after_half_of_the_window() -> None:
    slow = TransferCost(base_seconds=0.002, seconds_per_token=5e-3)
    found = seen(LearntTransfer(PRIOR), PRIOR)
    seen(found, slow, count=12, start=20.0, seed=2)
    assert found.cost.seconds(4000) == pytest.approx(slow.seconds(4000), rel=0.5)
    seen(found, PRIOR, count=16, start=40.0, seed=3)
    assert found.cost.seconds(4000) == pytest.approx(PRIOR.seconds(4000), rel=0.3)


def test_old_transfers_are_forgotten() -> None:
    found = seen(LearntTransfer(PRIOR), TransferCost(base_seconds=0.0, seconds_per_token=1.0))
    assert not found.stale(100.0)
    assert found.stale(10_000.0)
    found.learn(tokens=10.0, seconds=0.1, now_seconds=10_000.0)
    assert found.rows == 0


@given(
    rows=st.lists(
        st.tuples(
            st.floats(allow_nan=True, allow_infinity=True, min_value=None, max_value=None),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(min_value=0.0, max_value=10.0),
        ),
        max_size=40,
    ),
    rate=st.sampled_from([0.0, 1e-6, 1e-2]),
)
def test_whatever_comes_the_cost_is_a_time(rows: list[tuple[float, float, float]], rate: float) -> None:
    found, now = LearntTransfer(TransferCost(base_seconds=0.002, seconds_per_token=rate)), 0.0
    for tokens, seconds, later in rows:
        now += later
        found.learn(tokens=tokens, seconds=seconds, now_seconds=now)
        assert found.cost.base_seconds >= 0
        assert found.cost.seconds_per_token >= 0
        assert not math.isnan(found.cost.seconds(1000.0))
        assert found.rows <= 16


def spec(model: str = "meta-llama/Llama-3.1-8B-Instruct", block_size: int | None = None, **pool: Any) -> Any:
    cache = {"dtype": "fp8"} | ({} if block_size is None else {"blockSize": block_size})
    made = {"name": "a", "accelerator": "H100-SXM-80GB", "workers": {"min": 1, "max": 1}} | pool
    return msgspec.convert(
        {
            "model": {"name": model},
            "slo": {"ttft": "1s", "tpot": "50ms"},
            "pools": [made],
            "engine": {"image": "i", "kvCache": cache},
        },
        InferenceClusterSpec,
    )


def prior(of: InferenceClusterSpec) -> TransferCost:
    found = pool_transfer(of, of.pools[0])
    assert found is not None
    return found


def test_before_any_transfer_the_link_and_the_block_size_count() -> None:
    """Llama 3.1 8B in FP8 has 64 KiB a token: at 0.5 GB/s 0.13 ms, over RDMA of 400 Gb/s 0.002 ms."""
    tcp, rdma = prior(spec()), prior(spec(rdma={}))
    assert tcp.seconds_per_token == pytest.approx(65536 / 0.5e9, rel=0.05)
    assert rdma.seconds_per_token < tcp.seconds_per_token / 20
    larger = prior(spec(rdma={}, block_size=64))
    assert larger.seconds_per_token < rdma.seconds_per_token
    two = prior(spec(parallelism={"tensor": 2}))
    assert two.seconds_per_token == pytest.approx(tcp.seconds_per_token / 2, rel=0.05)


@pytest.mark.parametrize(
    ("accelerator", "backend", "tokens"),
    [
        ("H200-SXM-141GB", None, 64),  # FLASHMLA
        ("B200-SXM-180GB", None, 32),  # FLASHINFER_MLA
        ("A100-SXM-80GB", None, 16),
        ("H200-SXM-141GB", "TRITON_MLA", 16),
    ],
)
def test_blocks_are_those_of_the_attention_backend(accelerator: str, backend: str | None, tokens: int) -> None:
    engine = {} if backend is None else {"engine": {"attentionBackend": backend}}
    pool: dict[str, Any] = {"accelerator": accelerator, "parallelism": {"tensor": 8}, "rdma": {}, **engine}
    model = "deepseek-ai/DeepSeek-V3"
    assert prior(spec(model, **pool)) == prior(spec(model, tokens, **pool))


def test_a_model_that_is_not_known_has_no_prior() -> None:
    unknown = spec("somebody/else")
    assert pool_transfer(unknown, unknown.pools[0]) is None


def test_a_cpu_moves_kv_over_tcp() -> None:
    assert prior(spec(accelerator="cpu")).seconds_per_token == pytest.approx(65536 / 0.5e9, rel=0.05)
