"""Promises that some or all requests miss on any worker: workers are started that help, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.decide.loads import measurements, speed
from tests.decide.world import World, make_spec, pool

from fulcrum.capacity.speed import WorkerSpeed

KEPT, MOST, SOME, NEVER = "1500ms", "700ms", "100ms", "5ms"
"""Promises of the first token that idle workers keep for as many prompts as promised, for most, for some, for none."""
SLOW = speed(decode=0.2)
"""A step takes 40 ms on an idle worker."""


def workers(
    ttft: str,
    *,
    tpot: str = "25ms",
    admission: str = "Predictive",
    of_speed: WorkerSpeed | None = None,
    cv2: float = 2.0,
    **changes: Any,
) -> int:
    """Return how many workers there are in the end for prompts of 8,000 tokens, of which some are far longer."""
    slo = {"ttft": ttft, "tpot": tpot, "attainment": 0.95}
    world = World(make_spec(pool(low=2, high=16), mode="Auto", slo=slo, admission={"policy": admission}))
    speeds = {"p": of_speed or speed()}
    world.measurements = measurements(10.0, 8000.0, 200.0, isl_cv2=cv2, speeds=speeds, peak_rate=None, **changes)
    world.settle()
    return sum(world.roles().values())


@pytest.mark.parametrize("admission", ["Predictive", "Threshold", "Off"])
def test_a_tighter_promise_takes_more_workers_also_where_some_prompts_are_too_long_for_it(admission: str) -> None:
    counts = [workers(ttft, admission=admission) for ttft in (KEPT, MOST, SOME)]
    assert counts[0] < counts[1] < counts[2] < 16


def test_answers_that_are_too_slow_after_long_prompts_leave_those_after_short_ones() -> None:
    """An idle worker keeps a promise of 8.2 ms after prompts of up to 2,800 tokens."""
    assert 2 < workers(KEPT, tpot="8.2ms") < 16


@pytest.mark.parametrize(
    ("ttft", "changes"),
    [
        (NEVER, {}),
        (KEPT, {"of_speed": SLOW}),
        (NEVER, {"of_speed": SLOW}),
        (SOME, {"cv2": 0.0, "of_speed": speed(prefill=0.5)}),
    ],
    ids=["prompts too long", "answers too slow", "both", "all prompts alike"],
)
def test_where_each_request_is_late_even_alone_no_worker_is_started(ttft: str, changes: dict[str, Any]) -> None:
    assert workers(ttft, **changes) == 2
    # Requests that none turns away would wait without end.
    assert workers(ttft, admission="Off", **changes) > 2


def test_workers_stay_while_each_request_is_late_even_alone() -> None:
    slo = {"ttft": KEPT, "tpot": "25ms", "attainment": 0.95}
    world = World(make_spec(pool(low=1, high=16), mode="Auto", slo=slo))
    world.measurements = measurements(10.0, 8000.0, 200.0)
    world.settle()
    before = sum(world.roles().values())
    assert before > 2
    world.pass_time(3600)
    world.measurements = measurements(0.5, 300_000.0, 200.0, attainment=0.0, rejected=1.0, isl_cv2=0.1)
    assert sum(world.plan().target.values()) == before
