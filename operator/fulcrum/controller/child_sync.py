"""Keep a cluster's children as their builders say, without writing what is there already."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fulcrum.api.names import GROUP
from fulcrum.api.quantities import same_amount
from fulcrum.controller.children import Manifest
from fulcrum.controller.kube import CHILD_RESOURCES, Kube
from fulcrum.controller.observed import is_of_namesake, is_owned

logger = logging.getLogger(__name__)

ANNOTATION_APPLIED_HASH: Final = f"{GROUP}/applied-hash"
"""Hash of what was applied last: tells that a field is no longer wanted, which a comparison cannot see."""

_AMOUNTS: Final = frozenset(("requests", "limits"))
"""Maps whose values an API server stores in its own notation."""

ChildKey = tuple[str, str]
"""Kind and name."""


def key_of(child: Manifest) -> ChildKey:
    """Return kind and name of a child."""
    return child["kind"], child["metadata"]["name"]


def stamped(child: Manifest) -> Manifest:
    """Return the child with the hash of its own content in an annotation."""
    digest = hashlib.sha256(msgspec.json.encode(child, order="sorted")).hexdigest()[:16]
    marked = copy.deepcopy(child)
    marked["metadata"].setdefault("annotations", {})[ANNOTATION_APPLIED_HASH] = digest
    return marked


def is_as_wanted(wanted: Any, live: Any) -> bool:
    """Report whether `live` has everything that `wanted` says; what the server added does not count."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and (_are_amounts_as_wanted if key in _AMOUNTS else is_as_wanted)(value, live[key])
            if not _is_empty(value)
            else _is_empty(live.get(key))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(is_as_wanted(*pair) for pair in zip(wanted, live, strict=True))
        )
    return bool(wanted == live)


def _are_amounts_as_wanted(wanted: Any, live: Any) -> bool:
    return isinstance(live, dict) and all(same_amount(amount, live.get(name)) for name, amount in wanted.items())


def _is_empty(value: Any) -> bool:
    return value is None or value in ({}, [])


class NameTakenError(Exception):
    """Objects have the names of children and are not ours; the message says which, and what to do."""


class ChildSync:
    """Applies children that are not as wanted. Remembers only which ones others insist on changing."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._contested: dict[tuple[str, ChildKey], str] = {}

    async def sync(
        self, namespace: str, wanted: tuple[Manifest, ...], live: Mapping[ChildKey, Manifest | None]
    ) -> list[ChildKey]:
        """Bring the children up to date; returns the ones that were written. Children not in `live` are read first.

        Errors: NameTakenError, once all others are up to date, when another object has the name of one.
        """
        unread = [key_of(child) for child in wanted if key_of(child) not in live]
        read = await asyncio.gather(*(self._kube.get(CHILD_RESOURCES[kind], namespace, name) for kind, name in unread))
        existing = {**live, **dict(zip(unread, read, strict=True))}
        written, taken = [], []
        for child in map(stamped, wanted):
            key = key_of(child)
            now = existing[key]
            if now is not None and not is_owned(now["metadata"], child["metadata"]["ownerReferences"][0]["uid"]):
                taken.append(why_taken(now, child))
                continue
            if now is not None and is_as_wanted(child, now):
                continue
            digest = child["metadata"]["annotations"][ANNOTATION_APPLIED_HASH]
            if now is not None and self._contested.get((namespace, key)) == digest:
                continue
            result = await self._kube.apply(CHILD_RESOURCES[key[0]], namespace, key[1], child)
            written.append(key)
            if result is not None and not is_as_wanted(child, result):
                # An admission hook insists on another value; applying again and again would be a war.
                logger.warning("child_contested kind=%s namespace=%s name=%s", key[0], namespace, key[1])
                self._contested[namespace, key] = digest
        if taken:
            raise NameTakenError(" ".join(taken))
        return written


def why_taken(live: Manifest, child: Manifest) -> str:
    """Return what owns the object with the name of `child`, and what to do."""
    kind, name = key_of(child)
    owner = child["metadata"]["ownerReferences"][0]
    if is_of_namesake(live["metadata"], owner["name"], owner["kind"]):
        return (
            f"{kind} {name} belongs to an earlier {owner['kind']} {owner['name']} and is removed with it; this takes a "
            "moment."
        )
    return (
        f"{kind} {name} exists and does not belong to this {owner['kind']}, so it is left alone: rename or delete it "
        f"(kubectl delete {kind.lower()} {name}), or give the {owner['kind']} another name."
    )
