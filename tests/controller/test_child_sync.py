"""When a child is as it should be, so that nothing is written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.child_sync import (
    ANNOTATION_APPLIED_HASH,
    ChildSync,
    NameTakenError,
    is_as_wanted,
    key_of,
    stamped,
)
from fulcrum.controller.children import Manifest, Owner, children


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
        # The server writes amounts in its own notation.
        ({"limits": {"cpu": "0.5", "memory": "1024Mi"}}, {"limits": {"cpu": "500m", "memory": "1Gi"}}, True),
        ({"limits": {"cpu": "0.5"}}, {"limits": {"cpu": "5m"}}, False),
        ({"requests": {"rdma/ib": 1}}, {"requests": {"rdma/ib": "1"}}, True),
        ({"requests": {"cpu": "1"}}, {"requests": {}}, False),
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
        each = children(Owner(name="c", namespace="ns", uid="u"), spec, token_fingerprint="f1")
        return [stamped(child)["metadata"]["annotations"][ANNOTATION_APPLIED_HASH] for child in each]

    assert stamps(2) == stamps(2)
    assert [a == b for a, b in zip(stamps(2), stamps(3), strict=True)].count(False) == 1


class Api:
    """Objects that are there, by kind and name; what is applied is written down."""

    def __init__(self, *there: Manifest) -> None:
        self.there = {key_of(each): each for each in there}
        self.applied: list[tuple[str, str]] = []

    async def get(self, resource: Any, _: str, name: str) -> Manifest | None:
        return self.there.get((resource.kind, name))

    async def apply(self, resource: Any, _: str, name: str, manifest: Manifest) -> Manifest:
        self.applied.append((resource.kind, name))
        return manifest


def made() -> tuple[Manifest, ...]:
    document = {"model": {"name": "m"}, "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 2}}]}
    spec = msgspec.convert(document, InferenceClusterSpec)
    return children(Owner(name="c", namespace="ns", uid="u"), spec, token_fingerprint="f1")


@pytest.mark.parametrize(
    ("owners", "says"),
    [
        ([], "kubectl delete service c-gateway"),
        ([{"kind": "InferenceCluster", "name": "other", "uid": "x"}], "does not belong to this InferenceCluster"),
        ([{"kind": "InferenceCluster", "name": "c", "uid": "x"}], "earlier InferenceCluster c"),
    ],
)
async def test_what_is_not_ours_is_never_taken_over(owners: list[dict[str, str]], says: str) -> None:
    foreign = {"kind": "Service", "metadata": {"name": "c-gateway", "ownerReferences": owners}, "spec": {"mine": True}}
    api = Api(foreign)
    with pytest.raises(NameTakenError, match=says):
        await ChildSync(api).sync("ns", made(), {})  # type: ignore[arg-type]
    assert ("Service", "c-gateway") not in api.applied
    assert len(api.applied) == len(made()) - 1  # all others are as they should be
