"""Maximum flow, cuts and routes, against cases that can be reckoned by hand and against a linear program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from tests.placement.cases import inventory

from fulcrum.placement.flow import Site, most_flow
from fulcrum.placement.inventory import Inventory, RegionLink

NOTHING = inventory(("H100-SXM-80GB", 8, 1))
KV = 0.7
"""Bytes per request, so that a link carries as many requests/s as it has bytes/s at 70 %."""


def site(
    name: str,
    prefill: float,
    decode: float,
    *,
    region: str = "a",
    local: float = 1e9,
    network: float = 1e9,
    mixed: float = 0,
) -> Site:
    return Site(
        name=name,
        region=region,
        prefill_rate=prefill,
        decode_rate=decode,
        mixed_rate=mixed,
        local_bytes_per_second=local,
        network_bytes_per_second=network,
    )


def linked(rate: float) -> Inventory:
    return Inventory(nodes=NOTHING.nodes, links=(RegionLink(between=("a", "b"), bytes_per_second=rate),))


@pytest.mark.parametrize(
    ("sites", "rate", "links"),
    [
        ([site("x", 5, 3)], 3, ()),
        ([site("x", 5, 0), site("y", 0, 9)], 5, ()),
        ([site("x", 5, 0, network=2), site("y", 0, 9)], 2, ("network of x",)),
        ([site("x", 5, 3, network=1), site("y", 0, 9)], 4, ("network of x",)),
        ([site("x", 5, 9, local=2, network=1e-9)], 2, ("links inside x", "network of x")),
        ([site("x", 5, 0), site("y", 0, 9, region="b")], 4, ("link a - b",)),
        ([site("x", 5, 0, mixed=2)], 2, ()),
        ([site("x", 5, 3, mixed=2)], 5, ()),
    ],
)
def test_flows_that_can_be_reckoned_by_hand(sites: list[Site], rate: float, links: tuple[str, ...]) -> None:
    found = most_flow(sites, linked(4), KV)
    assert found.rate == pytest.approx(rate, rel=1e-6)
    assert (found.cut.link_names if found.cut else ()) == links


def test_no_link_no_flow() -> None:
    assert most_flow([site("x", 5, 0), site("y", 0, 9, region="b")], NOTHING, KV).rate == 0.0


rates = st.floats(0, 50).map(lambda rate: 0.0 if rate < 0.1 else rate)
bandwidths = st.floats(0.5, 60)
sites = st.lists(st.tuples(rates, rates, st.sampled_from("ab"), bandwidths, bandwidths), min_size=1, max_size=6).map(
    lambda drawn: [
        site(str(number), prefill, decode, region=region, local=local, network=network)
        for number, (prefill, decode, region, local, network) in enumerate(drawn)
    ]
)


@settings(max_examples=60, deadline=None)
@given(sites, st.floats(0.5, 60))
def test_flow_is_conserved_and_equals_a_linear_program(given_sites: list[Site], link: float) -> None:
    found = most_flow(given_sites, linked(link), KV)
    sent = dict.fromkeys((each.name for each in given_sites), 0.0)
    taken, crossed = dict(sent), 0.0
    by_name = {each.name: each for each in given_sites}
    for route in found.routes:
        sent[route.source] += route.rate
        taken[route.target] += route.rate
        crossed += route.rate if (by_name[route.source].region, by_name[route.target].region) == ("a", "b") else 0.0
    slack = 1e-4 * max(found.rate, 1)
    assert sum(sent.values()) == pytest.approx(found.rate, abs=slack)
    assert sum(taken.values()) == pytest.approx(found.rate, abs=slack)
    assert crossed <= link + slack
    for each in given_sites:
        assert sent[each.name] <= each.prefill_rate + slack
        assert taken[each.name] <= each.decode_rate + slack
    assert found.rate == pytest.approx(by_program(given_sites, link), abs=slack)


def by_program(given_sites: list[Site], link: float) -> float:
    """The same by one variable for each pair of sites, and one for the links inside each site."""
    pairs = [(one, other) for one in given_sites for other in given_sites]
    count = len(given_sites)
    rows, limits = [], []

    def at_most(limit: float, over_network: list[bool], inside: list[bool]) -> None:
        rows.append(np.array([*over_network, *inside], dtype=float))
        limits.append(limit)

    for each in given_sites:
        own = [one is each for one in given_sites]
        for end, carried in enumerate((each.prefill_rate, each.decode_rate)):
            mine = [pair[end] is each for pair in pairs]
            at_most(carried, mine, own)
            at_most(each.network_bytes_per_second, mine, [False] * count)
    for crossing in (("a", "b"), ("b", "a")):
        at_most(link, [(one.region, other.region) == crossing for one, other in pairs], [False] * count)
    bounds = [(0, None)] * len(pairs) + [(0, each.local_bytes_per_second) for each in given_sites]
    return -float(linprog(-np.ones(len(pairs) + count), A_ub=np.array(rows), b_ub=limits, bounds=bounds).fun)
