"""Domains: islands with quick links stay together, and Kernighan and Lin repair a bad cut."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.cases import inventory, names

from fulcrum.placement.inventory import inventory_from
from fulcrum.placement.partition import domains, kernighan_lin, rates_between, spectral_halves

H100 = {"accelerator": "H100", "gpus": 8}


def two_regions(gigabits: float) -> object:
    return {
        "nodes": [{**H100, "name": "a", "count": 3, "region": "x"}, {**H100, "name": "b", "count": 3, "region": "y"}],
        "links": [{"between": ["x", "y"], "gigabitsPerSecond": gigabits}],
    }


def test_slow_links_divide_and_quick_ones_do_not() -> None:
    slow = domains(inventory_from(two_regions(25)), lambda _: True)
    assert sorted(names(part) for part in slow) == [["a-0", "a-1", "a-2"], ["b-0", "b-1", "b-2"]]
    assert len(domains(inventory_from(two_regions(20000)), lambda _: True)) == 1


def test_a_half_that_cannot_hold_both_roles_is_not_cut_off() -> None:
    assert len(domains(inventory_from(two_regions(25)), lambda part: len(part) > 3)) == 1


def test_one_network_is_one_domain_at_any_size() -> None:
    for count in (1, 2, 64, 600):
        assert len(domains(inventory(("H100-SXM-80GB", 8, count)), lambda _: True)) == 1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_kernighan_lin_never_makes_the_cut_worse_and_keeps_the_memory(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    rates = random.random((count, count))
    rates = rates + rates.T
    np.fill_diagonal(rates, 0.0)
    memory = random.uniform(1, 2, count)
    before = spectral_halves(rates, memory)
    after = kernighan_lin(rates, memory, before)
    assert across(rates, after) <= across(rates, before) * (1 + 1e-9)
    assert sum(after) == sum(before)
    assert abs(memory[np.array(after)].sum() - memory[np.array(before)].sum()) <= 0.2 * memory.sum() + 1e-9


def test_kernighan_lin_finds_two_islands_from_a_bad_cut() -> None:
    found = inventory_from(two_regions(25))
    nodes = sorted(found.nodes, key=lambda node: node.name)
    memory = np.ones(6)
    assert kernighan_lin(rates_between(nodes, found), memory, [True, True, False, True, False, False]) in (
        [True] * 3 + [False] * 3,
        [False] * 3 + [True] * 3,
    )


def across(rates: np.ndarray, side: list[bool]) -> float:
    left = np.array(side)
    return float(rates[np.ix_(left, ~left)].sum())
