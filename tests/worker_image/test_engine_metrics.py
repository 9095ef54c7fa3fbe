"""vLLM's Prometheus text -> what is known about its load."""

from __future__ import annotations

import msgspec
import pytest
from aiohttp import ClientSession
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.api.worker import EngineProgress, KvPoolReport, OffloadReport, TransferCounters, WorkCounters
from fulcrum_worker.engine_metrics import EngineMetrics, parse_engine_metrics, scrape_engine

LABELS = '{engine="0",model_name="chat"}'
NEW = f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{LABELS} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{LABELS} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{{engine="0",model_name="chat",reason="capacity"}} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{LABELS} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="32",cache_dtype="fp8",engine="0",num_gpu_blocks="728"}} 1.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{{le="0.3"}} 1.0
"""
WORK = f"""vllm:request_prefill_time_seconds_bucket{{le="0.3"}} 4.0
vllm:request_prefill_time_seconds_count{LABELS} 5.0
vllm:request_prefill_time_seconds_sum{LABELS} 1.5
vllm:request_prompt_tokens_sum{LABELS} 700.0
vllm:request_prompt_tokens_count{LABELS} 5.0
vllm:request_prefill_kv_computed_tokens_sum{LABELS} 500.0
vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} 400.0
vllm:prompt_tokens_by_source_total{{engine="0",source="local_cache_hit"}} 150.0
vllm:prompt_tokens_by_source_total{{engine="0",source="external_kv_transfer"}} 250.0
vllm:inter_token_latency_seconds_sum{LABELS} 2.5
vllm:inter_token_latency_seconds_count{LABELS} 90.0
fulcrum_engine_max_num_seqs 128.0
fulcrum_engine_max_num_batched_tokens 2048.0
"""
DONE = WorkCounters(
    prompts=5,
    prompt_tokens=700,
    cached_tokens=200,
    prefill_seconds=1.5,
    decode_tokens=90,
    decode_seconds=2.5,
    computed_tokens=400,
)
MOVED = f"""vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} 400.0
vllm:prompt_tokens_by_source_total{{engine="0",source="external_kv_transfer"}} 250.0
vllm:nixl_num_failed_transfers_total{LABELS} 3.0
vllm:nixl_num_failed_notifications_total{LABELS} 1.0
vllm:nixl_num_kv_expired_reqs_total{LABELS} 2.0
"""
STEPPED = f"""vllm:iteration_tokens_total_bucket{{le="8"}} 4.0
vllm:iteration_tokens_total_count{LABELS} 40.0
vllm:iteration_tokens_total_sum{LABELS} 740.0
vllm:prompt_tokens_total{LABELS} 700.0
vllm:generation_tokens_total{LABELS} 95.0
"""
TRANSFERS = TransferCounters(
    pulled_tokens=250, computed_tokens=400, failed_transfers=3, failed_notifications=1, expired_requests=2
)
TIER = f"""
fulcrum_engine_kv_host_used_ratio{LABELS} 0.25
fulcrum_engine_kv_host_tokens{LABELS} 11648.0
vllm:kv_offload_load_bytes_total{LABELS} 4.6e+07
vllm:kv_offload_load_time_total{LABELS} 0.5
vllm:kv_offload_store_bytes_total{LABELS} 9.2e+07
vllm:prompt_tokens_by_source_total{{source="local_compute"}} 400.0
vllm:prompt_tokens_by_source_total{{source="local_cache_hit"}} 150.0
vllm:prompt_tokens_by_source_total{{source="external_kv_transfer"}} 250.0
vllm:prompt_tokens_cached_by_source_total{{source="host"}} 64.0
"""
POOL = f"""
vllm:prompt_tokens_cached_by_source_total{{source="disk"}} 1984.0
vllm:prompt_tokens_cached_by_source_total{{source="host"}} 64.0
vllm:kv_offload_tiering_read_bytes_total{LABELS} 4.7e+07
vllm:kv_offload_tiering_read_time_total{LABELS} 0.25
vllm:kv_offload_tiering_write_bytes_total{LABELS} 8.5e+07
fulcrum_engine_kv_pool_used_bytes{LABELS} 8.6e+07
fulcrum_engine_kv_pool_bad_blocks_total{{flaw="truncated"}} 2.0
fulcrum_engine_kv_pool_bad_blocks_total{{flaw="corrupt"}} 1.0
fulcrum_engine_kv_pool_dropped_blocks_total{LABELS} 4.0
fulcrum_engine_kv_pool_problem{{problem="readOnly"}} 0.0
fulcrum_engine_kv_pool_problem{{problem="slow"}} 1.0
"""
POOL_REPORT = KvPoolReport(
    size_bytes=0,
    used_bytes=86_000_000,
    hit_tokens=1984,
    read_bytes=47_000_000,
    read_seconds=0.25,
    written_bytes=85_000_000,
    bad_blocks=3,
    dropped_blocks=4,
    problem="slow",
)
OLDER = msgspec.structs.replace(DONE, computed_tokens=None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NEW, EngineMetrics(running=3, waiting=2, kv_usage=0.25, kv_capacity_tokens=728 * 32, kv_cache_dtype="fp8")),
        (
            NEW.replace("kv_cache_usage_perc", "gpu_cache_usage_perc"),
            EngineMetrics(running=3, waiting=2, kv_usage=0.25, kv_capacity_tokens=728 * 32, kv_cache_dtype="fp8"),
        ),
        (
            NEW.replace('num_gpu_blocks="728"', 'num_gpu_blocks="None"'),
            EngineMetrics(running=3, waiting=2, kv_usage=0.25, kv_cache_dtype="fp8"),
        ),
        (WORK, EngineMetrics(work=DONE, max_batch=128, max_batched_tokens=2048)),
        (
            WORK.replace("inter_token_latency", "time_per_output_token"),
            EngineMetrics(work=DONE, max_batch=128, max_batched_tokens=2048),
        ),
        (
            WORK.replace("tokens_by_source", "tokens_else"),
            EngineMetrics(work=OLDER, max_batch=128, max_batched_tokens=2048),
        ),
        (WORK.replace("kv_computed_tokens_sum", "else"), EngineMetrics(max_batch=128, max_batched_tokens=2048)),
        (MOVED, EngineMetrics(transfers=TRANSFERS)),
        (MOVED.replace("kv_expired_reqs", "else"), EngineMetrics()),
        (STEPPED, EngineMetrics(progress=EngineProgress(steps=40, tokens=795))),
        (STEPPED.replace("generation", "other"), EngineMetrics()),
        ("vllm:num_requests_running 0\n", EngineMetrics(running=0)),
        (
            'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 4\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.1\nvllm:kv_cache_usage_perc{engine="1"} 0.3\n',
            EngineMetrics(
                running=5,
                kv_usage=0.2,
                ranks=(EngineMetrics(running=1, kv_usage=0.1), EngineMetrics(running=4, kv_usage=0.3)),
            ),
        ),
        (
            TIER,
            EngineMetrics(
                host_used=0.25,
                host_tokens=11648,
                loaded_bytes=46_000_000,
                load_seconds=0.5,
                stored_bytes=92_000_000,
                device_hit_tokens=150,
                external_hit_tokens=250,
                host_hit_tokens=64,
            ),
        ),
        (POOL, EngineMetrics(pool=POOL_REPORT)),
        ("", EngineMetrics()),
        ("<html>not metrics</html>", EngineMetrics()),
    ],
)
def test_parse(text: str, expected: EngineMetrics) -> None:
    assert parse_engine_metrics(text) == expected


@pytest.mark.parametrize("text", ["vllm:num_requests_running NaN\n", "vllm:num_requests_running{ 1\n"])
def test_broken_text_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_engine_metrics(text)


@settings(deadline=None)
@given(st.text())
def test_parse_never_fails_otherwise(text: str) -> None:
    try:
        metrics = parse_engine_metrics(text)
    except ValueError:
        return
    assert not metrics.idle


@pytest.mark.parametrize(
    ("metrics", "held", "idle"),
    [
        (EngineMetrics(running=0, waiting=0, kv_usage=0.0), 0.0, True),
        (EngineMetrics(running=0, waiting=0, kv_usage=0.1), 0.1, False),
        (EngineMetrics(running=1, waiting=0, kv_usage=0.1), None, False),
        (EngineMetrics(running=0, waiting=1, kv_usage=0.1), None, False),
        (EngineMetrics(running=0, waiting=1, kv_usage=0.0), 0.0, False),
        (EngineMetrics(running=0, waiting=0), None, False),
        (EngineMetrics(kv_usage=0.1), None, False),
        (EngineMetrics(running=0, kv_usage=0.0), 0.0, False),
        (EngineMetrics(), None, False),
    ],
)
def test_held_for_peers(metrics: EngineMetrics, held: float | None, idle: bool) -> None:
    assert metrics.kv_held_for_peers == held
    assert metrics.idle is idle


async def test_a_failed_scrape_leaves_everything_unknown(unused_tcp_port: int) -> None:
    async with ClientSession() as session:
        url = f"http://127.0.0.1:{unused_tcp_port}"
        assert await scrape_engine(session, url, timeout_seconds=1) == EngineMetrics()


def test_a_host_tier_is_reported_with_its_setting_and_its_rate() -> None:
    setting = OffloadReport(policy="load", reason="not on this runner", host_bytes=1 << 30)
    report = parse_engine_metrics(TIER).with_counts(setting)
    assert (report.policy, report.reason, report.host_bytes) == ("load", "not on this runner", 1 << 30)
    assert report.bytes_per_second == 92e6
    assert EngineMetrics().with_counts(setting).bytes_per_second is None


def test_the_pool_keeps_its_size_and_gets_its_counts() -> None:
    pooled = OffloadReport(policy="load", host_bytes=1, pool=KvPoolReport(size_bytes=1 << 40))
    told = parse_engine_metrics(POOL).with_counts(pooled)
    assert told.pool == msgspec.structs.replace(POOL_REPORT, size_bytes=1 << 40)
    assert EngineMetrics().with_counts(pooled).pool == pooled.pool, "an engine that does not answer"
