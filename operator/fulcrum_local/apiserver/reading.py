"""Get and list: selection, pages, and consistency with a resourceVersion."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fulcrum_local.apiserver import errors
from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.request import parse_version
from fulcrum_local.apiserver.store import Key, Store, Stored
from fulcrum_local.objects.selectors import SelectorError, field_test, label_test

Selection = Callable[[Stored], bool]
_EXPIRED_CONTINUE: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Part of a list, as of `version`; `token` continues it, `remaining` is None when it is not known."""

    items: list[Stored]
    version: int
    token: str = ""
    remaining: int | None = None


def selection(kind: Kind, query: Mapping[str, str], name: str = "") -> Selection | None:
    """What `labelSelector` and `fieldSelector` (and the name in the path) select; None when that is everything."""
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    if name:
        fields = f"{fields},metadata.name={name}" if fields else f"metadata.name={name}"
    if not labels and not fields:
        return None
    extra = kind.custom.selectable_fields if kind.custom else ()
    try:
        with_labels, with_fields = label_test(labels), field_test(fields, kind.storage, extra)
    except SelectorError as error:
        raise errors.bad_request(str(error)) from None
    return lambda stored: with_labels(stored.obj["metadata"].get("labels") or {}) and with_fields(stored.obj)


def list_page(store: Store, kind: Kind, namespace: str, query: Mapping[str, str], name: str = "") -> Page:
    """The page of a list that the query asks for."""
    selected = selection(kind, query, name)
    limit = max(0, int(query.get("limit") or "0"))
    token, match = query.get("continue", ""), query.get("resourceVersionMatch", "")
    _check_match(query)
    asked = parse_version(query.get("resourceVersion") or "0")
    start: Key | None = None
    version = store.version
    if token:
        if asked:
            raise errors.bad_request("specifying resource version is not allowed when using continue")
        version, start = _read_token(token)
    elif match == "Exact" or (asked and limit and not match):
        version = asked
    elif asked > store.version:
        raise errors.too_large_resource_version(asked, store.version)
    items = _items_at(store, kind, namespace, version, start)
    if start is not None:
        items = [stored for stored in items if stored.key > start]
    if selected is not None:
        items = [stored for stored in items if selected(stored)]
    if not limit or len(items) <= limit:
        return Page(items=items, version=version)
    page = items[:limit]
    return Page(
        items=page,
        version=version,
        token=_token(version, page[-1].key),
        remaining=len(items) - limit if selected is None else None,
    )


def _items_at(store: Store, kind: Kind, namespace: str, version: int, start: Key | None) -> list[Stored]:
    if version == store.version:
        return store.scan(kind.storage, namespace)
    try:
        return store.scan_at(kind.storage, namespace, version)
    except errors.ApiError as error:
        if error.code == 410 and start is not None:
            raise errors.ApiError(410, _EXPIRED_CONTINUE) from None
        raise


def _token(version: int, last: Key) -> str:
    content = {"v": "meta.k8s.io/v1", "rv": version, "start": list(last)}
    return base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=").decode()


def _read_token(token: str) -> tuple[int, Key]:
    try:
        content = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, name = content["start"]
        return int(content["rv"]), (namespace, name)
    except (binascii.Error, msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise errors.bad_request("continue key is not valid") from None


def list_metadata(page: Page) -> Json:
    """`metadata` of the list object."""
    metadata: Json = {"resourceVersion": str(page.version)}
    if page.token:
        metadata["continue"] = page.token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
    return metadata


def _check_match(query: Mapping[str, str]) -> None:
    """422 for a resourceVersionMatch that says nothing, and for what only a watch can ask for."""
    if "sendInitialEvents" in query:
        why = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"
        raise errors.ApiError(422, f'ListOptions.meta.k8s.io "" is invalid: {why}')
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    if not match:
        return
    if not version:
        why = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif query.get("continue"):
        why = "Forbidden: resourceVersionMatch is forbidden when continue is provided"
    elif match not in ("Exact", "NotOlderThan"):
        why = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan"'
    elif match == "Exact" and version == "0":
        why = 'Forbidden: resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
    else:
        return
    raise errors.ApiError(422, f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: {why}')
