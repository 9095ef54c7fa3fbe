"""The check of docs/concepts/walk.md: it finds what a page can have wrong."""

from __future__ import annotations

import pytest
from tests.docs.walk import Call, calls_on_page, misplaced, returns, stays_of, traced

from fulcrum.api.durations import seconds, text_of

PAGE = """
## One tick

| # | call | file | what it does |
|---|---|---|---|
| 1 | `first` | `a/b.py` | begins |
| 2 | `Second.go_on` | `c.py` | goes on |

## Another

| 1 | `third` | `d.py` | ends |
"""
FIRST, SECOND = ("first", "a/b.py"), ("Second.go_on", "c.py")


def test_the_calls_of_a_heading_are_read() -> None:
    assert calls_on_page("One tick", PAGE) == [FIRST, SECOND]
    assert calls_on_page("Another", PAGE) == [("third", "d.py")]


@pytest.mark.parametrize(
    ("listed", "problems"),
    [
        ([FIRST, SECOND], []),
        ([SECOND, FIRST], ["first is called before Second.go_on"]),
        ([FIRST, FIRST], ["first is called before first"]),
        ([("first", "c.py"), SECOND], ["first of c.py is not called"]),
        ([FIRST, ("gone", "c.py"), SECOND], ["gone of c.py is not called"]),
    ],
)
def test_a_call_that_is_absent_or_elsewhere_or_in_another_order_is_found(
    listed: list[Call], problems: list[str]
) -> None:
    assert misplaced(listed, [FIRST, ("between", "c.py"), SECOND, FIRST]) == problems


def test_files_of_a_list_are_counted_with_those_that_come_again() -> None:
    assert stays_of([FIRST, SECOND, SECOND, FIRST]) == ["a/b.py", "c.py", "a/b.py"]
    assert returns(["a/b.py", "c.py", "a/b.py"]) == 1


def test_calls_are_traced_and_a_class_is_followed() -> None:
    with traced(followed=str) as trace:
        seconds("1m")
        text_of(60)
        seconds("2m")
    assert [name for name, _ in trace.calls if "<" not in name] == ["seconds", "text_of", "seconds"]
    assert (trace.stays, trace.returns) == (["api/durations.py"], 0)
