"""The split of a restore: against every split tried one by one, and its promises as properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import How, Waits, restore

BLOCK = 16
SPEED = SpeedCoefficients(prefill_a=0.01, prefill_b=2e-3, prefill_c=2e-7, decode_a=0.0, decode_b=0.0, decode_c=0.0)


def link(seconds_per_token: float, base: float = 0.0) -> TransferCost:
    return TransferCost(base_seconds=base, seconds_per_token=seconds_per_token)


def compute(speed: SpeedCoefficients, start: int, end: int) -> float:
    return speed.prefill_b * (end - start) + speed.prefill_c * (end**2 - start**2)


speeds = st.builds(
    SpeedCoefficients,
    prefill_a=st.floats(0, 0.05),
    prefill_b=st.floats(1e-6, 1e-2),
    prefill_c=st.one_of(st.just(0.0), st.floats(1e-10, 1e-6)),
    decode_a=st.just(0.0),
    decode_b=st.just(0.0),
    decode_c=st.just(0.0),
)
links = st.builds(TransferCost, base_seconds=st.floats(0, 0.1), seconds_per_token=st.floats(1e-7, 1e-1))
waits = st.builds(Waits, link_seconds=st.floats(0, 5), compute_seconds=st.floats(0, 5))


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, int, int]:
    """Tokens present, matched and in the prompt."""
    present = BLOCK * draw(st.integers(0, 40))
    matched = present + BLOCK * draw(st.integers(0, 400))
    return present, matched, matched + draw(st.integers(1, 2000))


@given(speed=speeds, cost=links, wait=waits, prompt=prompts())
def test_no_other_split_is_quicker(
    speed: SpeedCoefficients, cost: TransferCost, wait: Waits, prompt: tuple[int, int, int]
) -> None:
    """Every front at a block's end, written out once more, is at most as quick."""
    present, matched, tokens = prompt
    found = restore(
        present_tokens=present, matched_tokens=matched, prompt_tokens=tokens, speed=speed, link=cost, waits=wait
    )
    tail = speed.prefill_a + compute(speed, matched, tokens)
    tried = [wait.compute_seconds + speed.prefill_a + compute(speed, present, tokens)]
    for split in range(present, matched, BLOCK):
        loaded = wait.link_seconds + cost.base_seconds + cost.seconds_per_token * (matched - split)
        front = speed.prefill_a + compute(speed, present, split) if split > present else 0.0
        tried.append(max(loaded, wait.compute_seconds + front) + tail)
    assert found.predicted_seconds == pytest.approx(min(tried), rel=1e-9)
    assert found.recompute_tokens + found.load_tokens == matched - present
    assert found.recompute_tokens >= 0
    assert found.load_tokens >= 0


@given(speed=speeds, cost=links, wait=waits, prompt=prompts(), layers=st.integers(2, 80))
def test_no_other_layer_split_is_quicker(
    speed: SpeedCoefficients, cost: TransferCost, wait: Waits, prompt: tuple[int, int, int], layers: int
) -> None:
    present, matched, tokens = prompt
    found = restore(
        present_tokens=present,
        matched_tokens=matched,
        prompt_tokens=tokens,
        speed=speed,
        link=cost,
        waits=wait,
        layers=layers,
        front=False,
    )
    best = math.inf
    for split in range(present + BLOCK, matched + 1, BLOCK):
        load = cost.base_seconds + cost.seconds_per_token * (split - present)
        work = speed.prefill_a + compute(speed, split, tokens)
        begins = max(wait.compute_seconds, wait.link_seconds + load / layers)
        best = min(best, max(begins + work, wait.link_seconds + load + work / layers))
    alone = wait.compute_seconds + speed.prefill_a + compute(speed, present, tokens)
    assert found.predicted_seconds <= min(best, alone) * (1 + 1e-9) + 1e-12


@given(
    speed=speeds,
    cost=links,
    wait=waits,
    prompt=prompts(),
    layers=st.one_of(st.none(), st.integers(2, 80)),
    promise=st.floats(0, 30),
)
def test_a_promise_saves_compute_and_never_time(  # noqa: PLR0917 (drawn by name)
    speed: SpeedCoefficients,
    cost: TransferCost,
    wait: Waits,
    prompt: tuple[int, int, int],
    layers: int | None,
    promise: float,
) -> None:
    """With a promise: kept where it can be, never slower than loading or recomputing alone, never more compute."""
    present, matched, tokens = prompt

    def way(*, within: float | None = None, front: bool = True, at: int | None = layers) -> tuple[float, int]:
        found = restore(
            present_tokens=present,
            matched_tokens=matched,
            prompt_tokens=tokens,
            speed=speed,
            link=cost,
            waits=wait,
            layers=at,
            front=front,
            within_seconds=within,
        )
        return found.predicted_seconds, found.recompute_tokens

    quickest, most = way()
    seconds, recompute = way(within=promise)
    alone, _ = way(front=False, at=None)
    assert recompute <= most
    assert quickest - 1e-12 <= seconds <= alone * (1 + 1e-9)
    if quickest <= promise:
        assert seconds <= promise * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds_per_token", "how"),
    [(1e-7, How.LOAD), (2.5e-3, How.FRONT), (10.0, How.NONE)],
)
def test_the_link_decides(seconds_per_token: float, how: How) -> None:
    assert restore(matched_tokens=1984, prompt_tokens=2000, speed=SPEED, link=link(seconds_per_token)).how is how


def test_at_parity_the_front_halves_the_time() -> None:
    """Loading as fast as computing, with no attention: half is computed while the other half is on the link."""
    linear = SpeedCoefficients(prefill_a=0.0, prefill_b=1e-3, prefill_c=0.0, decode_a=0, decode_b=0, decode_c=0)
    found = restore(matched_tokens=3200, prompt_tokens=3201, speed=linear, link=link(1e-3))
    assert found.recompute_tokens == 1600
    assert found.predicted_seconds == pytest.approx(1.6 + 1e-3)


def test_a_promise_with_time_to_spare_loads_everything() -> None:
    """Compute is shared: what can be loaded within the promise is not computed."""
    slow = link(1.5e-3)
    quickest = restore(matched_tokens=1600, prompt_tokens=1700, speed=SPEED, link=slow)
    frugal = restore(matched_tokens=1600, prompt_tokens=1700, speed=SPEED, link=slow, within_seconds=10)
    assert quickest.how is How.FRONT
    assert frugal.how is How.LOAD


def test_a_busy_link_is_left_alone() -> None:
    found = restore(matched_tokens=1600, prompt_tokens=1700, speed=SPEED, link=link(1e-5), waits=Waits(link_seconds=60))
    assert found.how is How.NONE
    assert found.recompute_tokens == 1600


def test_nothing_matched_is_computed() -> None:
    found = restore(matched_tokens=0, prompt_tokens=100, speed=SPEED, link=link(1e-5))
    assert (found.how, found.recompute_tokens, found.load_tokens) == (How.NONE, 0, 0)


@pytest.mark.parametrize(("present", "matched", "prompt"), [(0, 100, 100), (32, 16, 100), (-16, 0, 100)])
def test_impossible_counts_are_refused(present: int, matched: int, prompt: int) -> None:
    with pytest.raises(ValueError, match="0 <= present <= matched < prompt"):
        restore(present_tokens=present, matched_tokens=matched, prompt_tokens=prompt, speed=SPEED, link=link(1e-3))
