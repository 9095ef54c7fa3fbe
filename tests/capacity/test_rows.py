"""What two load reports of a worker say about its speed between them."""

from __future__ import annotations

import msgspec
import pytest

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, WorkCounters
from fulcrum.capacity.rows import rows_between

WORK = WorkCounters(
    prompts=100,
    prompt_tokens=100_000,
    cached_tokens=20_000,
    prefill_seconds=10.0,
    decode_tokens=5000,
    decode_seconds=100.0,
    computed_tokens=80_000,
)


def report(*, running: int | None = 16, kv_usage: float | None = 0.25, **work: float | None) -> LoadReport:
    return LoadReport(
        role=Role.MIXED,
        role_epoch=0,
        ready=True,
        draining=False,
        running=running,
        kv_usage=kv_usage,
        kv_capacity_tokens=100_000,
        work=msgspec.structs.replace(WORK, **work),
    )


def test_prompts_of_an_interval_become_one_row() -> None:
    after = report(prompts=104, prompt_tokens=105_000, cached_tokens=21_000, prefill_seconds=10.8)
    prefill, decode = rows_between(report(), after, seconds=5.0, isl_cv2=0.5)
    assert prefill is not None
    assert decode is None
    assert (prefill.prompts, prefill.tokens) == (4, 4000)
    assert prefill.squared_tokens == pytest.approx(4 * 1000**2 * 1.5)
    assert prefill.seconds == pytest.approx(0.8)
    assert prefill.usable


def test_steps_of_an_interval_become_one_row() -> None:
    # 16 requests for 5 s at 20 ms a step: 4,000 tokens, and 80 s between them.
    after = report(decode_tokens=9000, decode_seconds=180.0, kv_usage=0.35)
    prefill, decode = rows_between(report(), after, seconds=5.0)
    assert prefill is None
    assert decode is not None
    assert decode.seconds_per_step == pytest.approx(0.020)
    assert decode.batch == pytest.approx(16)
    assert decode.context_tokens == pytest.approx(30_000)
    assert decode.usable


@pytest.mark.parametrize(("computed", "known"), [(0, True), (500, False), (None, False)])
def test_prompts_stretch_steps_unless_they_are_known_to_be_computed_elsewhere(
    computed: int | None, known: bool
) -> None:
    """Ten prompts a second wait a step each for their KV; or one is computed, while the token of another waits."""
    counted = [None if computed is None else count for count in (80_000, 80_000 + (computed or 0))]
    work = {"prompts": 150, "prompt_tokens": 150_000, "prefill_seconds": 11.5}
    before = report(computed_tokens=counted[0])
    after = report(**work, decode_tokens=5500, decode_seconds=110.0, computed_tokens=counted[1])
    before, after = (msgspec.structs.replace(each, role=Role.DECODE) for each in (before, after))
    prefill, decode = rows_between(before, after, seconds=5.0)
    assert prefill is None
    assert (decode is not None) is known


@pytest.mark.parametrize("idle_first", [False, True])
def test_short_answers_with_pauses_between_them_become_a_row(idle_first: bool) -> None:
    """Answers of three tokens leave a decode worker idle at most moments at which it is asked."""
    # In 10 s 13 answers, 26 steps of 0.2 s; two requests with 200 tokens each were there at one of the moments.
    busy, idle = report(running=2, kv_usage=0.004), report(running=0, kv_usage=0.0)
    before, after = (idle, busy) if idle_first else (busy, idle)
    work = msgspec.structs.replace(
        WORK, prompts=113, prompt_tokens=100_013, prefill_seconds=13.9, decode_tokens=5026, decode_seconds=105.2
    )
    before, after = (msgspec.structs.replace(each, role=Role.DECODE) for each in (before, after))
    prefill, decode = rows_between(before, msgspec.structs.replace(after, work=work), seconds=10.0)
    assert prefill is None
    assert decode is not None
    assert decode.seconds_per_step == pytest.approx(0.2)
    assert decode.batch == pytest.approx(1.52)
    assert decode.context_tokens == pytest.approx(1.52 * 200)


def test_no_more_than_the_batch_are_in_a_step() -> None:
    before = msgspec.structs.replace(report(running=2), max_batch=2)
    after = msgspec.structs.replace(report(running=0, decode_tokens=5100, decode_seconds=112.0), max_batch=2)
    _, decode = rows_between(before, after, seconds=10.0)
    assert decode is not None
    assert decode.batch == 2


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(report(), id="nothing happened"),
        pytest.param(report(prompts=1, prompt_tokens=10, prefill_seconds=0.1), id="the engine started again"),
        pytest.param(
            report(
                prompts=110,
                prompt_tokens=110_000,
                prefill_seconds=17.0,
                decode_tokens=6000,
                decode_seconds=120.0,
                computed_tokens=90_000,
            ),
            id="prompts overlapped, and stretched the steps",
        ),
        pytest.param(report(prompts=101, prompt_tokens=101_000, cached_tokens=21_000), id="all from the prefix cache"),
        pytest.param(report(decode_tokens=5007, decode_seconds=100.7, running=0), id="idle at times, and few tokens"),
        pytest.param(report(decode_tokens=9000, decode_seconds=180.0, running=None), id="load unknown"),
        pytest.param(msgspec.structs.replace(report(), work=None), id="counters unknown"),
        pytest.param(
            msgspec.structs.replace(report(decode_tokens=9000, decode_seconds=180.0), kv_capacity_tokens=None),
            id="size of the cache unknown",
        ),
    ],
)
def test_what_cannot_be_told_is_not_told(after: LoadReport) -> None:
    assert rows_between(report(), after, seconds=5.0) == (None, None)


def test_of_a_worker_that_is_idle_whenever_it_is_asked_nobody_knows_the_context() -> None:
    after = report(decode_tokens=9000, decode_seconds=180.0, running=0)
    assert rows_between(report(running=0), after, seconds=5.0) == (None, None)


def test_an_interval_of_no_length_says_nothing() -> None:
    after = report(decode_tokens=9000, decode_seconds=180.0)
    assert rows_between(report(), after, seconds=0.0) == (None, None)
    assert rows_between(msgspec.structs.replace(report(), work=None), after, seconds=1.0) == (None, None)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.MIXED])
def test_prompts_of_a_decode_worker_were_prefilled_elsewhere(role: Role) -> None:
    """vLLM 0.32.0 books the prompt as computed there, in the time of a step."""
    before = msgspec.structs.replace(report(), role=role)
    after = msgspec.structs.replace(report(prompts=104, prompt_tokens=105_000, prefill_seconds=10.8), role=role)
    prefill, _ = rows_between(before, after, seconds=5.0)
    assert (prefill is None) is (role is Role.DECODE)


def test_a_flip_in_between_mixes_both_kinds_of_work() -> None:
    before = msgspec.structs.replace(report(), role=Role.DECODE)
    after = msgspec.structs.replace(report(prompts=104, prompt_tokens=105_000, prefill_seconds=10.8), role_epoch=1)
    assert rows_between(before, after, seconds=5.0)[0] is None


def test_a_prompt_that_took_a_step_was_pulled() -> None:
    # 20 ms a token; a mixed worker that was given the KV answers after about one step.
    after = report(prompts=104, prompt_tokens=105_000, prefill_seconds=10.08, decode_tokens=5400, decode_seconds=108.0)
    assert rows_between(report(), after, seconds=5.0)[0] is None


def test_a_prefill_worker_whose_prompts_overlap_was_busy_all_the_time() -> None:
    before = msgspec.structs.replace(report(), role=Role.PREFILL)
    after = msgspec.structs.replace(report(prompts=104, prompt_tokens=105_000, prefill_seconds=18.0), role=Role.PREFILL)
    prefill, _ = rows_between(before, after, seconds=5.0)
    assert prefill is not None
    assert prefill.seconds == 5.0
