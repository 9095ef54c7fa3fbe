"""What `/load` tells of ranks, from vLLM's metrics as an engine with two of them writes them."""

from __future__ import annotations

import msgspec
import pytest
from tests.vllm_source import code

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, RankReport, WorkCounters
from fulcrum_worker.engine_metrics import parse_engine_metrics
from fulcrum_worker.rank_reports import rank_reports

_HISTOGRAMS = (
    "request_prefill_time_seconds",
    "request_prompt_tokens",
    "request_prefill_kv_computed_tokens",
    "inter_token_latency_seconds",
)


def of_rank(rank: int, *, running: int = 0, waiting: int = 0, usage: float = 0.0, hits: int = 0, scale: int = 1) -> str:
    """Lines of one rank. vLLM says the blocks of both ranks for each."""
    labels = f'engine="{rank}",model_name="chat"'
    histograms = "".join(
        f"vllm:{name}_count{{{labels}}} {2 * scale}\nvllm:{name}_sum{{{labels}}} {100 * scale}\n"
        for name in _HISTOGRAMS
    )
    return (
        f"vllm:num_requests_running{{{labels}}} {running}\nvllm:num_requests_waiting{{{labels}}} {waiting}\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} {usage}\n"
        f'vllm:cache_config_info{{block_size="32",cache_dtype="auto",num_gpu_blocks="2048",{labels}}} 1.0\n'
        f"vllm:prefix_cache_queries_total{{{labels}}} 800\nvllm:prefix_cache_hits_total{{{labels}}} {hits}\n"
        f"vllm:iteration_tokens_total_count{{{labels}}} {9 * scale}\n"
        f"vllm:prompt_tokens_total{{{labels}}} 30\nvllm:generation_tokens_total{{{labels}}} 5\n{histograms}"
    )


def test_each_rank_has_its_own_figures_and_the_totals_are_those_of_all() -> None:
    metrics = parse_engine_metrics(
        of_rank(0, running=3, usage=0.5, hits=640) + of_rank(1, waiting=2, usage=0.1, scale=2)
    )
    assert (metrics.running, metrics.waiting, metrics.kv_usage) == (3, 2, pytest.approx(0.3))
    assert metrics.kv_capacity_tokens == 2048 * 32
    assert metrics.work is not None
    assert (metrics.work.prompts, metrics.work.prefill_seconds) == (6, 300.0)
    work = {"cached_tokens": 0, "computed_tokens": None}
    assert rank_reports(metrics.ranks) == (
        RankReport(
            rank=0,
            running=3,
            waiting=0,
            queued_prompt_tokens=0,
            kv_usage=0.5,
            kv_capacity_tokens=1024 * 32,
            prefix_tokens=800,
            prefix_hit_tokens=640,
            steps=9,
            work=WorkCounters(
                prompts=2, prompt_tokens=100, prefill_seconds=100.0, decode_tokens=2, decode_seconds=100.0, **work
            ),
        ),
        RankReport(
            rank=1,
            running=0,
            waiting=2,
            kv_usage=0.1,
            kv_capacity_tokens=1024 * 32,
            prefix_tokens=800,
            prefix_hit_tokens=0,
            steps=18,
            work=WorkCounters(
                prompts=4, prompt_tokens=200, prefill_seconds=200.0, decode_tokens=4, decode_seconds=200.0, **work
            ),
        ),
    )


def test_a_worker_is_idle_only_where_each_rank_is() -> None:
    assert parse_engine_metrics(of_rank(0) + of_rank(1)).idle
    for busy in (of_rank(1, running=1), of_rank(1, waiting=1), of_rank(1, usage=0.1)):
        assert not parse_engine_metrics(of_rank(0) + busy).idle


def test_what_a_rank_holds_for_peers_is_known_while_another_one_works() -> None:
    held = parse_engine_metrics(of_rank(0, running=1, usage=0.2) + of_rank(1, usage=0.25))
    assert held.kv_held_for_peers is None
    assert [rank.kv_held_for_peers for rank in held.ranks] == [None, 0.25]


def test_the_report_of_one_rank_has_no_list() -> None:
    """Gateways of before know no ranks: what they get stays as it was."""
    one = LoadReport(role=Role.MIXED, role_epoch=1, ready=True, draining=False, ranks=rank_reports(()))
    assert b"ranks" not in msgspec.json.encode(one)
    two = msgspec.structs.replace(one, ranks=rank_reports(parse_engine_metrics(of_rank(0) + of_rank(1)).ranks))
    written = msgspec.json.decode(msgspec.json.encode(two))["ranks"]
    assert [rank["rank"] for rank in written] == [0, 1]
    assert msgspec.json.decode(msgspec.json.encode(two), type=LoadReport) == two


@pytest.mark.vllm_facts
def test_vllm_adds_up_the_blocks_of_all_ranks() -> None:
    """With a vLLM in which this fails, `parse_engine_metrics` need not divide them."""
    merged = code("v1/engine/core_client.py", "MPClient")
    assert "num_gpu_blocks += response.num_gpu_blocks" in merged
