"""`traceparent` and `tracestate` as clients send them."""

from __future__ import annotations

import pytest

from fulcrum.gateway.tracing.context import Parent, chosen, header_lines, read_parent, unsampled_lines

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # the second flag says that the id is random
        (f"cc-{TRACE}-{SPAN}-01-more", True),  # of a version to come
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_parent_is_read_as_the_standard_says(text: str, sampled: bool | None) -> None:
    parent = read_parent({"traceparent": text})
    assert (None if parent is None else parent.sampled) == sampled
    if parent is not None:
        assert (parent.trace_id, parent.span_id) == (int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(("state", "kept"), [("a=1,b=2", "a=1,b=2"), ("x" * 513, ""), ("a=\x00", ""), ("ü=1", "")])
def test_state_is_passed_on_within_bounds(state: str, kept: str) -> None:
    parent = read_parent({"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": state})
    assert parent is not None
    assert parent.state == kept


def test_lines_carry_the_ids_on() -> None:
    parent = Parent(trace_id=int(TRACE, 16), span_id=int(SPAN, 16), sampled=False, state="a=1")
    assert unsampled_lines(parent) == f"traceparent: 00-{TRACE}-{SPAN}-00\r\ntracestate: a=1\r\n".encode()
    assert header_lines(1, 2, "", sampled=True) == b"traceparent: 00-%032x-%016x-01\r\n" % (1, 2)


def test_a_request_without_parent_tells_engines_not_to_trace_it() -> None:
    text = unsampled_lines(None).decode().removeprefix("traceparent: ").removesuffix("\r\n")
    parent = read_parent({"traceparent": text})
    assert parent is not None
    assert not parent.sampled


def test_ratio_is_kept() -> None:
    assert not any(chosen(0.0) for _ in range(1000))
    assert all(chosen(1.0) for _ in range(1000))
    assert 300 < sum(chosen(0.05) for _ in range(10_000)) < 700
