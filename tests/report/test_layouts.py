"""How a status names layouts: by ratio, and by pool where the ratio does not tell them apart."""

from __future__ import annotations

from fulcrum.performance.layout import Layout
from fulcrum.report.layouts import layout_texts

MOST_CHARACTERS = 256 - len("Observed only: Auto would go from  to ")


def test_another_ratio_needs_no_pools() -> None:
    stands = Layout.of(prefill={"a": 4}, decode={"b": 4})
    assert layout_texts(stands, Layout.of(prefill={"a": 3}, decode={"b": 4}, mixed={"a": 1}), stands) == (
        "4P:4D",
        "3P:4D:1M",
        "4P:4D",
    )


def test_the_same_ratio_is_told_by_the_pools_that_differ() -> None:
    stands = Layout.of(prefill={"a": 2, "c": 1}, decode={"b": 2})
    other = Layout.of(prefill={"b": 2, "c": 1}, decode={"a": 2})
    third = Layout.of(prefill={"a": 1}, decode={"b": 2})
    assert layout_texts(stands, other, third) == (
        "3P:2D (a 2P:0D, b 0P:2D)",
        "3P:2D (a 0P:2D, b 2P:0D)",
        "1P:2D",
    )
    assert layout_texts(Layout.of(mixed={"a": 2}), Layout.of(mixed={"b": 2})) == (
        "2M (a 2M, b 0P:0D)",
        "2M (a 0P:0D, b 2M)",
    )


def test_two_layouts_of_many_pools_fit_into_one_action() -> None:
    names = [f"{place:02}" + "x" * 38 for place in range(32)]
    stands = Layout.of(prefill=dict.fromkeys(names[:16], 10_000), decode=dict.fromkeys(names[16:], 10_000))
    other = Layout.of(prefill=dict.fromkeys(names[16:], 10_000), decode=dict.fromkeys(names[:16], 10_000))
    texts = layout_texts(stands, other)
    assert len(set(texts)) == 2
    assert texts[0].endswith(", 31 more)")
    assert sum(map(len, texts)) <= MOST_CHARACTERS
