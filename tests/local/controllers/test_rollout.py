"""The steps of a rollout, as numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fulcrum_local.controllers.rollout import Replicas, bounds, step, template_hash


def spec(replicas: int, surge: int | str = "25%", unavailable: int | str = "25%") -> dict[str, Any]:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"replicas": replicas, "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}


def sized(name: str, wanted: int, available: int) -> Replicas:
    return Replicas(name=name, wanted=wanted, available=available)


@pytest.mark.parametrize(
    ("given_spec", "expected"),
    [
        (spec(4), (1, 1)),
        (spec(3), (1, 0)),
        (spec(10, "30%", 2), (3, 2)),
        (spec(3, 0, 0), (0, 1)),
        (spec(1, 0, "50%"), (0, 1)),
        ({"replicas": 2, "strategy": {"type": "Recreate"}}, (0, 2)),
        ({}, (1, 0)),
    ],
)
def test_bounds_round_surge_up_and_unavailability_down(given_spec: dict[str, Any], expected: tuple[int, int]) -> None:
    assert bounds(given_spec) == expected


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (sized("n", 0, 0), [], {"n": 4}),
        (sized("n", 0, 0), [sized("o", 4, 4)], {"n": 1}),
        (sized("n", 1, 0), [sized("o", 4, 4)], {"o": 3}),
        (sized("n", 1, 0), [sized("o", 3, 3)], {"n": 2}),
        (sized("n", 2, 0), [sized("o", 3, 3)], {}),
        (sized("n", 2, 1), [sized("o", 3, 3)], {"o": 2}),
        (sized("n", 2, 0), [sized("o", 3, 0)], {}),
        (sized("n", 1, 0), [sized("o", 4, 2)], {"o": 3}),
        (sized("n", 4, 4), [sized("a", 1, 0), sized("o", 1, 1)], {"a": 0, "o": 0}),
        (sized("n", 4, 4), [sized("o", 0, 0)], {}),
        (sized("n", 6, 6), [], {"n": 4}),
    ],
)
def test_steps_with_one_above_and_one_below(new: Replicas, old: list[Replicas], expected: dict[str, int]) -> None:
    assert step(spec(4, 1, 1), new, old) == expected


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    wanted=st.integers(0, 12), surge=st.integers(0, 4), unavailable=st.integers(0, 4),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=3), ups=st.lists(st.booleans(), max_size=40),
)  # fmt: skip
def test_every_rollout_ends_within_its_bounds(
    wanted: int, surge: int, unavailable: int, sizes: list[int], ups: list[bool]
) -> None:
    """Whatever becomes available when: never below the bound, never above it, and at the end only the new one."""
    given_spec = spec(wanted, surge, unavailable)
    most, fewest = bounds(given_spec)
    current = {"new": 0} | {f"old{index}": size for index, size in enumerate(sizes)}
    available = {name: size if name != "new" else 0 for name, size in current.items()}
    started = sum(current.values())
    for up in ups:
        new, *old = (sized(name, current[name], available[name]) for name in current)
        before = sum(available.values())
        changes = step(given_spec, new, old)
        current |= changes
        available = {name: min(count, current[name]) for name, count in available.items()}
        assert sum(current.values()) <= max(wanted + most, started)
        assert sum(available.values()) >= min(wanted - fewest, before)
        if up:
            available["new"] = min(current["new"], available["new"] + 1)
    for _ in range(100):
        new, *old = (sized(name, current[name], available[name]) for name in current)
        current |= step(given_spec, new, old)
        available = dict(current)
    assert current == {name: wanted if name == "new" else 0 for name in current}


def test_a_hash_is_stable_and_changes_with_the_template() -> None:
    assert template_hash({"a": 1}, 0) == template_hash({"a": 1}, 0)
    assert len({template_hash({"a": 1}, 0), template_hash({"a": 2}, 0), template_hash({"a": 1}, 1)}) == 3
    assert template_hash({"a": 1}, 0).isalnum()
