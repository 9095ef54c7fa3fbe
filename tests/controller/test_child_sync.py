"""When a child is as it should be, so that nothing is written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.child_sync import ANNOTATION_APPLIED_HASH, is_as_wanted, stamped
from fulcrum.controller.children import Owner, children


@pytest.mark.parametrize(
    ("wanted", "live", "same"),
    [
        ({"a": 1}, {"a": 1, "defaulted": 2}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {}, False),
        ({"a": {"b": 1}}, {"a": None}, False),
        ({"a": {}}, {}, True),  # the server drops what is empty
        ({"a": {}}, {"a": {"medium": "Memory"}}, False),
        ({"a": 0}, {}, False),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1, "y": 2}]}, True),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1}, {"x": 2}]}, False),
        ({"a": True}, {"a": False}, False),
    ],
)
def test_everything_wanted_is_there_and_defaults_do_not_count(wanted: Any, live: Any, same: bool) -> None:
    assert is_as_wanted(wanted, live) is same


def test_the_stamp_changes_with_the_content_and_only_then() -> None:
    def stamps(replicas: int) -> list[str]:
        document = {
            "model": {"name": "m"},
            "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 2}}],
            "gateway": {"replicas": replicas},
        }
        spec = msgspec.convert(document, InferenceClusterSpec)
        made = children(Owner(name="c", namespace="ns", uid="u"), spec)
        return [stamped(child)["metadata"]["annotations"][ANNOTATION_APPLIED_HASH] for child in made]

    assert stamps(2) == stamps(2)
    assert [a == b for a, b in zip(stamps(2), stamps(3), strict=True)].count(False) == 1
