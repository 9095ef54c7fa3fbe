"""Several gateways on the same workers: each predicts with what the others send, too."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.routing.cluster import SPEED, ask, cluster, find, report, send

from fulcrum.api.worker import LoadReport, WorkCounters
from fulcrum.routing import ClusterView


def computed(tokens: int | None) -> LoadReport:
    work = WorkCounters(
        prompts=0,
        prompt_tokens=0,
        cached_tokens=0,
        prefill_seconds=0.0,
        decode_tokens=0,
        decode_seconds=0.0,
        computed_tokens=tokens,
    )
    return report(work=work)


def busy(gateways: int, *, seconds: int = 40) -> ClusterView:
    """One mixed worker that prefills 5 prompts of 1,000 tokens a second, half of its time, as one gateway sees it."""
    view = cluster(0, 0, 1)
    for second in range(seconds):
        for number in range(5):
            if number % gateways == 0:
                now = second + number / 5
                flight = send(view, ask(output_tokens=2), now)
                view.prefill_done(flight, now + 0.1)
                view.finish(flight, now + 0.15)
        view.report("m0", computed(5000 * (second + 1)), second + 0.99)
    return view


@pytest.mark.parametrize("gateways", [1, 5])
def test_prompts_of_all_gateways_take_the_time_of_a_worker(gateways: int) -> None:
    view = busy(gateways)
    assert view.workers.by_name["m0"].prompts.prefill_share(40.0) == pytest.approx(0.5, abs=0.05)


def test_a_request_is_told_of_the_prompts_that_others_send() -> None:
    """Steps take twice as long where half of the time goes into prompts, whoever sent them."""
    alone, shared = (find(busy(gateways), ask(), 40.0).tpot_seconds for gateways in (1, 5))
    assert shared == pytest.approx(alone, rel=0.1)
    assert shared > 1.8 * find(cluster(0, 0, 1)).tpot_seconds


def test_an_engine_that_starts_anew_or_does_not_say_what_it_computed_tells_nothing() -> None:
    view = busy(5, seconds=1)
    before = view.workers.by_name["m0"].prompts.prefill_share(1.0)
    view.report("m0", computed(None), 1.0)
    view.report("m0", computed(10), 1.0)
    assert view.workers.by_name["m0"].prompts.prefill_share(1.0) == before


def test_prompts_that_were_cached_after_all_took_no_time() -> None:
    """What a gateway expected of its own prompts is put right by what the engine computed."""
    view = cluster(0, 0, 1)
    view.report("m0", computed(0), 0.0)
    flight = send(view, ask(), 0.0)
    view.prefill_done(flight, 0.1)
    view.report("m0", computed(100), 0.5)
    assert view.workers.by_name["m0"].prompts.prefill_share(0.5) == pytest.approx(0.001, abs=0.0005)
    view.report("m0", computed(100), 0.6)
    assert view.workers.by_name["m0"].prompts.prefill_share(0.6) >= 0.0


def prefilled(prompts: int, tokens: int, cached: int, *, computed: bool = False) -> WorkCounters:
    return WorkCounters(
        prompts=prompts,
        prompt_tokens=prompts * tokens,
        cached_tokens=prompts * cached,
        prefill_seconds=0.0,
        decode_tokens=0,
        decode_seconds=0.0,
        computed_tokens=prompts * (tokens - cached) if computed else None,
    )


@pytest.mark.parametrize("cached", [0, 900])
def test_prompts_of_others_are_like_those_that_the_engine_prefilled(cached: int) -> None:
    """Ten that wait take the time of ten: not that of one prompt of their sum, nor of prompts that no cache knows."""
    view = cluster(1, 1)
    worker = view.workers.by_name["p0"]
    send(view, ask(8000), 0.0)
    own = worker.prompts.backlog_seconds(0.0)
    view.report("p0", report(running=0, waiting=1, work=prefilled(0, 1000, cached)), 0.0)
    view.report("p0", report(running=0, waiting=11, work=prefilled(50, 1000, cached)), 0.0)
    expected = 10 * worker.engine.work_seconds(1000.0, float(cached))
    assert worker.prompts.backlog_seconds(0.0) - own == pytest.approx(expected, rel=0.01)


def test_uneven_prompts_of_others_take_longer_than_even_ones() -> None:
    """An engine counts tokens alone; how uneven prompts are is seen on the own ones."""
    view = cluster(1, 1)
    worker = view.workers.by_name["p0"]
    speed = replace(SPEED, coefficients=msgspec.structs.replace(SPEED.coefficients, prefill_c=1e-8))
    view.workers.set_speed("pool", speed)
    for number in range(200):
        view.finish(send(view, ask((1000, 9000)[number % 2]), 0.0), 0.0)
    view.report("p0", report(running=0, waiting=0, work=prefilled(0, 5000, 0)), 0.0)
    view.report("p0", report(running=0, waiting=10, work=prefilled(50, 5000, 0)), 0.0)
    expected = 5 * worker.engine.work_seconds(1000.0, 0.0) + 5 * worker.engine.work_seconds(9000.0, 0.0)
    assert expected > 11 * worker.engine.work_seconds(5000.0, 0.0)
    assert worker.prompts.foreign_seconds == pytest.approx(expected, rel=0.03)


def test_time_that_went_to_prompts_of_others_brought_own_ones_no_nearer() -> None:
    """What the engine has left is reported; the time since the last own answer is not taken off that once more."""
    view = cluster(1, 1)
    worker = view.workers.by_name["p0"]
    view.report("p0", report(running=0, waiting=0, work=prefilled(0, 1000, 0, computed=True)), 0.0)
    send(view, ask(8000), 0.0)
    view.report("p0", report(running=0, waiting=6, work=prefilled(50, 1000, 0, computed=True)), 0.0)
    each = worker.engine.work_seconds(1000.0, 0.0)
    now = 3 * each
    view.report("p0", report(running=0, waiting=3, work=prefilled(53, 1000, 0, computed=True)), now)
    left = worker.engine.work_seconds(8000.0, 0.0) + 2 * each + SPEED.coefficients.prefill_a
    assert worker.prompts.backlog_seconds(now) == pytest.approx(left, rel=0.01)


def test_what_others_decode_does_not_fade() -> None:
    """As answers of theirs end others begin; own ones are known to begin or not."""
    speeds = replace(SPEED, kv_capacity_tokens=0)
    found = []
    for running in (0, 40):
        view = cluster(1, 1)
        view.workers.set_speed("pool", speeds)
        view.report("d0", report(running=running, waiting=0), 0.0)
        found.append(find(view, ask(output_tokens=2000), 0.0).tpot_seconds)
    assert found[1] - found[0] == pytest.approx(40 * SPEED.coefficients.decode_b, rel=0.01)
