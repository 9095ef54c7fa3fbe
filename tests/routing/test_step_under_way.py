"""A prompt that comes while a step is under way waits for its end, however short the prompts in it are."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from fulcrum.api.names import Role
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import ClusterView, Incoming, Route, route

BASE, TOKEN = 0.1, 0.001
SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=BASE, prefill_b=TOKEN, prefill_c=0.0, decode_a=0.01, decode_b=0.0, decode_c=0.0
    ),
    kv_capacity_tokens=100_000,
    max_batched_tokens=1_000_000,
)
AT_ONCE = TransferCost(base_seconds=0.0, seconds_per_token=0.0)
NEW = Incoming(prompt_tokens=10.0, output_tokens=1.0)


def found(view: ClusterView, now: float, incoming: Incoming = NEW) -> Route:
    path = route(incoming, view, now)
    assert isinstance(path, Route)
    return path


@pytest.mark.parametrize(
    ("waiting", "after", "wait"),
    [
        (0, 0.0, 0.0),
        (1, 0.0, 0.11),
        (1, 0.06, 0.05),
        (3, 0.06, 0.07),  # those that wait, too, will be in its own step
    ],
)
def test_it_waits_for_the_end_of_the_step(waiting: int, after: float, wait: float) -> None:
    view = ClusterView(ttft_seconds=100.0)
    view.workers.set_speed("pool", SPEED)
    view.transfers.expect("pool", AT_ONCE)
    view.workers.put("p", Role.PREFILL, pool="pool")
    view.workers.put("d", Role.DECODE, pool="pool")
    for _ in range(waiting):
        view.start(NEW, found(view, 0.0), 0.0)
    path = found(view, after)
    assert path.wait_seconds == pytest.approx(wait, abs=1e-3)
    assert path.ttft_seconds == pytest.approx(wait + BASE + 10 * TOKEN + 0.01, abs=1e-3)


@pytest.mark.parametrize(
    ("step_tokens", "after", "wait"),
    [
        (1000, 0.0, 0.3),
        (1000, 0.2, 0.1),
        (1000, 0.29, 0.01),
        (1000, 0.4, 0.05),  # the longer it hangs, the longer it will go on to
        # Two and a half of them are in it; what is left of the third comes before a new one.
        (250, 0.2, 0.1),
        (250, 0.25, 0.05),
        (250, 0.35, 0.1),
        # A prompt that takes several steps by itself goes on until its answer.
        (50, 0.05, 0.25),
        (50, 0.1, 0.2),
    ],
)
def test_all_prompts_of_the_step_under_way_are_being_computed(step_tokens: int, after: float, wait: float) -> None:
    """Three prompts of 0.1 s waited for a first one, and began together when it was answered."""
    view = ClusterView(ttft_seconds=100.0)
    steps_only = msgspec.structs.replace(SPEED.coefficients, prefill_a=0.0)
    view.workers.set_speed("pool", replace(SPEED, max_batched_tokens=step_tokens, coefficients=steps_only))
    view.transfers.expect("pool", AT_ONCE)
    view.workers.put("p", Role.PREFILL, pool="pool")
    view.workers.put("d", Role.DECODE, pool="pool")
    long = Incoming(prompt_tokens=100.0, output_tokens=1.0)
    first, *_ = [view.start(long, found(view, at, long), at) for at in (0.0, 0.01, 0.02, 0.03)]
    view.prefill_done(first, 1.0)
    assert found(view, 1.0 + after).wait_seconds == pytest.approx(wait)


@pytest.mark.parametrize(
    ("before", "new_tokens", "seconds"),
    [
        ([], 500, 0.6),
        ([], 1000, 1.1),
        ([], 2500, 2.8),  # three steps
        ([(0.0, 400)], 300, 0.3 + 0.4),
        ([(0.0, 400), (0.1, 500)], 300, 0.3 + 0.9),  # in the same step as the one that waits
        ([(0.0, 400), (0.1, 900)], 300, 0.3 + 1.0 + 0.1 + 0.3),  # a part of it is
        ([(0.0, 2500)], 300, 2.6 + 0.4),
        ([(0.0, 400), (0.05, 600), (0.1, 1400)], 2000, 0.3 + 4 * 0.1 + 4.0),
    ],
)
def test_each_step_has_one_base(before: list[tuple[float, int]], new_tokens: int, seconds: float) -> None:
    """A tenth of a second for each step, a millisecond for each token, a thousand tokens at most: asked at 0.2 s."""
    view = ClusterView(ttft_seconds=100.0)
    view.workers.set_speed("pool", replace(SPEED, max_batched_tokens=1000))
    view.transfers.expect("pool", AT_ONCE)
    view.workers.put("p", Role.PREFILL, pool="pool")
    view.workers.put("d", Role.DECODE, pool="pool")
    for at, tokens in before:
        one = Incoming(prompt_tokens=tokens, output_tokens=1.0)
        view.start(one, found(view, at, one), at)
    path = found(view, 0.2, Incoming(prompt_tokens=new_tokens, output_tokens=1.0))
    assert path.ttft_seconds == pytest.approx(seconds + 0.01)
