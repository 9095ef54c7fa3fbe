"""Experts over the GPUs of a worker: the busiest GPU, tokens that travel, and what a rank of such a worker is."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, RankReport, SpeedCoefficients, WorkCounters
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.engine import EngineShape
from fulcrum.capacity.experts import Exchange, busiest_reads, busiest_tokens
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.kv import kv_capacity_tokens
from fulcrum.capacity.model import MoeConfig
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.roofline import GRAPHS, Roofline, shape_speed
from fulcrum.capacity.rows import decode_row
from fulcrum.capacity.trust import measured_speed
from fulcrum.load.demand import Demand, LatencyTargets, Load
from fulcrum.performance.fluid import FluidModel
from fulcrum.performance.layout import Layout

DEEPSEEK = known_model("deepseek-ai/DeepSeek-V3")
H200, H800 = accelerator("H200"), accelerator("H800")


def moe_of(**fields: Any) -> MoeConfig:
    return MoeConfig(**{"experts": 256, "active_experts": 8, "expert_intermediate": 2048, **fields})


def shape_of(**fields: Any) -> EngineShape:
    usual = {"model": DEEPSEEK, "accelerator": H200, "weights": Precision.FP8, "experts": True, "max_batch": 256}
    return EngineShape(**{**usual, **fields})


@pytest.mark.parametrize(("tokens", "gpus"), [(2, 16), (20, 16), (64, 4), (128, 8), (512, 32)])
def test_the_busiest_gpu_is_that_of_drawn_tokens(tokens: int, gpus: int) -> None:
    moe, draw = moe_of(), random.Random(7)
    here = moe.experts // gpus
    reads, loads = 0.0, 0.0
    for _ in range(200):
        chosen = [draw.sample(range(moe.experts), moe.active_experts) for _ in range(tokens)]
        counts = [0] * gpus
        for each in chosen:
            for expert in each:
                counts[expert // here] += 1
        touched = {expert for each in chosen for expert in each}
        of_gpu = [sum(1 for expert in touched if expert // here == gpu) for gpu in range(gpus)]
        reads += max(of_gpu) / (len(touched) / gpus) / 200
        loads += max(counts) / (tokens * moe.active_experts / gpus) / 200
    assert busiest_reads(moe, tokens, gpus) == pytest.approx(reads, rel=0.12)
    assert busiest_tokens(moe, tokens, gpus) == pytest.approx(loads, rel=0.12)


def test_routing_that_is_uneven_beyond_chance_is_a_number_of_the_model() -> None:
    even, uneven = moe_of(), moe_of(imbalance=1.5)
    assert busiest_tokens(uneven, 128, 8) == pytest.approx(1.5 * busiest_tokens(even, 128, 8))
    hot = dataclasses.replace(DEEPSEEK, moe=dataclasses.replace(DEEPSEEK.moe or even, imbalance=1.5))
    lengths = [8192]
    prefill = [Roofline(shape=shape_of(model=model, data=8)).prefill_seconds(lengths) for model in (DEEPSEEK, hot)]
    assert prefill[1] > 1.2 * prefill[0]


def exchange_seconds(backend: str, gpus: int, tokens: int) -> float:
    network = GRAPHS.exchange_network_seconds if gpus > 8 else 0.0
    return Exchange(accelerator=H800, gpus=gpus, backend=backend).seconds(
        moe_of(),
        tokens=tokens,
        hidden=7168,
        sent=Precision.FP8,
        bandwidth=GRAPHS.exchange_bandwidth,
        latency_seconds=GRAPHS.exchange_seconds + network,
    )


@pytest.mark.parametrize(("gpus", "microseconds"), [(16, 118 + 195), (32, 155 + 273), (64, 173 + 314)])
def test_all_to_alls_take_what_deepep_measured(gpus: int, microseconds: float) -> None:
    assert exchange_seconds("deepep_low_latency", gpus, 128) * 1e6 == pytest.approx(microseconds, rel=0.03)


def test_over_machines_a_token_that_is_sent_once_to_each_is_quicker_than_one_for_each_expert() -> None:
    throughput, latency, plain = (
        exchange_seconds(backend, 16, 4096)
        for backend in ("deepep_high_throughput", "deepep_low_latency", "allgather_reducescatter")
    )
    assert throughput < latency
    assert throughput < plain
    assert exchange_seconds("nixl_ep", 16, 4096) == latency


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 64), st.integers(1, 4096))
def test_a_step_takes_no_less_with_more_requests(data: int, batch: int, context: int) -> None:
    step = Roofline(shape=shape_of(data=data)).decode_step_seconds
    assert step(batch, batch * context) <= step(batch + 1, (batch + 1) * context)


def test_ranks_have_a_cache_of_their_own_and_share_the_experts() -> None:
    eight, sixteen = shape_of(data=8), shape_of(data=16)
    assert kv_capacity_tokens(sixteen) > kv_capacity_tokens(eight) > 0
    speed = shape_speed(eight)
    assert (speed.ranks, speed.max_batch) == (8, 256)
    # Experts that fewer requests use on each of more GPUs are read in less time; the way there is longer.
    assert shape_speed(sixteen).decode_step_seconds(64, 64 * 2048) < speed.decode_step_seconds(64, 64 * 2048)


LOAD = Load(
    rate=2.0,
    prefill=Demand(rate=2.0, isl_tokens=4000.0, osl_tokens=1000.0, isl_cv2=0.1, osl_cv2=0.1),
    decode=Demand(rate=2.0, isl_tokens=4000.0, osl_tokens=1000.0, isl_cv2=0.1, osl_cv2=0.1),
)


def test_a_worker_of_ranks_carries_what_as_many_workers_do() -> None:
    slo = LatencyTargets(ttft_seconds=5.0, tpot_seconds=0.05, attainment=0.95)
    speed = shape_speed(shape_of(data=8))
    grouped = FluidModel({"p": speed}, slo)
    apart = FluidModel({"p": dataclasses.replace(speed, ranks=1)}, slo)
    for role in (Role.PREFILL, Role.DECODE, Role.MIXED):
        one, eight = (model.unit_rates("p", LOAD).of_role(role) for model in (apart, grouped))
        assert eight == pytest.approx(8 * one)
    group, workers = Layout(prefill=(("p", 1),), decode=(("p", 2),)), Layout(prefill=(("p", 8),), decode=(("p", 16),))
    assert grouped.room(group, LOAD) == pytest.approx(apart.room(workers, LOAD))


def report(ranks: int, *, running: int, decode_seconds: float, tokens: int) -> LoadReport:
    """A worker in whose `ranks` together so many requests ran; each rank has room for 1,000 tokens."""
    work = WorkCounters(
        prompts=0,
        prompt_tokens=0,
        cached_tokens=0,
        prefill_seconds=0.0,
        decode_tokens=tokens,
        decode_seconds=decode_seconds,
    )
    return LoadReport(
        role=Role.DECODE,
        role_epoch=0,
        ready=True,
        draining=False,
        running=running,
        waiting=0,
        kv_usage=0.5,
        kv_capacity_tokens=1000 * ranks,
        max_batch=16,
        speed=SpeedCoefficients.of(prefill=(1e-3, 1e-5, 0.0), decode=(1e-3, 1e-5, 1e-8)),
        work=work,
        **({"ranks": tuple(RankReport(rank=rank) for rank in range(ranks))} if ranks > 1 else {}),
    )


def test_what_a_group_reports_is_read_as_one_of_its_ranks() -> None:
    """Four ranks with 8 requests each, whose steps take 10 ms, for 10 s."""
    rows = []
    for ranks in (1, 4):
        before = report(ranks, running=8 * ranks, decode_seconds=0.0, tokens=0)
        after = report(ranks, running=8 * ranks, decode_seconds=80.0 * ranks, tokens=8000 * ranks)
        rows.append(decode_row(before, after, seconds=10.0))
    assert rows[0] == rows[1]
    assert rows[1] is not None
    assert (rows[1].batch, rows[1].context_tokens, rows[1].seconds_per_step) == (8.0, 500.0, 0.01)
    idle = [
        decode_row(
            report(ranks, running=2 * ranks, decode_seconds=0.0, tokens=0),
            report(ranks, running=0, decode_seconds=5.0 * ranks, tokens=500 * ranks),
            seconds=10.0,
        )
        for ranks in (1, 4)
    ]
    assert idle[0] == idle[1]
    speed = measured_speed(report(4, running=0, decode_seconds=0.0, tokens=0))
    assert speed is not None
    assert (speed.ranks, speed.kv_capacity_tokens, speed.max_batch) == (4, 1000, 16)
    bare = measured_speed(
        msgspec.structs.replace(report(1, running=0, decode_seconds=0.0, tokens=0), ranks=msgspec.UNSET)
    )
    assert bare is not None
    assert bare.ranks == 1
